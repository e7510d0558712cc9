"""A learner that begins in a run under way: from a peer, from its own checkpoint, from the syncer alone."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gruppetto
from gruppetto.attach.checkpoints import Checkpoints
from gruppetto.errors import SettingError
from gruppetto.protocol.units import Version
from gruppetto.runtime import donor
from gruppetto.runtime.donation import Manifest, NamedNumber, digest_of

Make = Callable[..., Any]
Start = Callable[..., Any]
SMALL = {"num_fragments": 3, "sync_period": 3, "outer": "finetune", "uplink": "fp32", "num_learners": 3}


class Normed(nn.Module):
    """With a buffer that no gradient reaches, and one that is none of the state."""

    def __init__(self, toy: nn.Module) -> None:
        super().__init__()
        self.toy = toy
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("table", torch.arange(3.0), persistent=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        loss: Tensor = self.toy(ids, labels)
        return loss


class Rider:
    """A model, its optimizer and its learner; ``ride`` keeps on training in a thread of its own."""

    def __init__(self, url: str, model: nn.Module, name: str, **how: Any) -> None:
        self.model = Normed(model)
        make = how.pop("optimizer", lambda p: torch.optim.AdamW(p, lr=1e-2))
        self.optimizer = make(self.model.parameters())
        self.learner = gruppetto.Learner(
            self.model, self.optimizer, syncer=url, name=name, tokens_per_step=16, quiet=True, **how
        )
        self._stop = threading.Event()

    def train(self, steps: int = 1) -> None:
        for index in range(steps):
            self.model(*self.model.toy.batch(index)).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    @contextmanager
    def riding(self) -> Iterator[None]:
        thread = threading.Thread(target=self._ride)
        with self.learner:
            thread.start()
            news = self.learner._client.news
            with news:
                assert news.wait_for(lambda: self.learner.round >= 5, timeout=120.0)
            try:
                yield
            finally:
                self._stop.set()
                thread.join()

    def _ride(self) -> None:
        while not self._stop.wait(0.005):
            self.train()

    def moments(self) -> dict[str, Tensor]:
        names = {id(p): name for name, p in self.model.named_parameters()}
        return {
            f"{names[id(p)]}.{key}": value.clone()
            for p, state in self.optimizer.state.items()
            for key, value in state.items()
        }


def source(rider: Rider) -> str:
    said = rider.learner._client.backlog._recovery
    return "" if said is None else f"{said.source} {said.donor}".strip()


@contextmanager
def found_on_entering(rider: Rider) -> Iterator[str]:
    """Enter, and say where the state came from: the note has gone by then, so it is caught on its way."""
    notes: list[str] = []
    backlog = rider.learner._client.backlog
    tell = backlog.tell_recovery
    backlog.tell_recovery = lambda note: (notes.append(f"{note.source} {note.donor}".strip()), tell(note))[1]  # type: ignore
    with rider.learner:
        yield notes[0] if notes else ""


def test_a_peer_gives_moments_buffers_and_bases(syncer: Start, toy: Make) -> None:
    running = syncer(start_learners=1, **SMALL)
    first = Rider(running.url, toy(0), "a")
    with first.riding():
        late = Rider(running.url, toy(1), "b")
        with found_on_entering(late) as source:
            assert source == "peer a" == late.learner.began_from
            assert late.learner.metrics()["gruppetto/began_from/peer"] == 1.0
            moments = late.moments()
            assert {name.rpartition(".")[2] for name in moments} == {"exp_avg", "exp_avg_sq", "step"}
            assert moments["toy.wte.step"] >= 5 and moments["toy.wte.exp_avg"].abs().sum() > 0
            assert late.model.seen[0] >= 5 and late.learner.lr_factor == 1.0
            for p, base in late.learner._holdings.hold_bases():
                spec = late.learner._holdings.model.fragmentation.fragments[p]
                flat = torch.from_numpy(base.values)
                for piece in spec.pieces:
                    mine = dict(late.model.named_parameters())[piece.name].detach().reshape(-1)
                    assert torch.equal(mine[piece.start : piece.stop], flat[piece.offset : piece.offset + piece.numel])
                base.release()
            late.train(3)


def test_nobody_recovers_at_round_0(syncer: Start, toy: Make) -> None:
    running = syncer(start_learners=2, **SMALL)
    riders = [Rider(running.url, toy(i), f"l{i}") for i in range(2)]
    threads = [threading.Thread(target=rider.learner.__enter__) for rider in riders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [rider.learner._client.recovering for rider in riders] == [None, None]
    assert [rider.learner.lr_factor for rider in riders] == [1.0, 1.0]
    for rider in riders:
        rider.learner.close()


def test_without_a_donor_the_learning_rate_rises_again(syncer: Start, toy: Make) -> None:
    running = syncer(start_learners=1, **SMALL)
    first = Rider(running.url, toy(0), "a", donate=None)
    with first.riding():
        late = Rider(running.url, toy(1), "b", rewarm_steps=4)
        with found_on_entering(late) as source:
            assert source == "syncer" and not late.optimizer.state
            factors = []
            for _ in range(6):
                factors.append(late.learner.lr_factor)
                late.train()
                assert late.optimizer.param_groups[0]["lr"] == 1e-2
            assert factors == [0.2, 0.4, 0.6, 0.8, 1.0, 1.0]


@pytest.mark.parametrize(("how", "factor"), [({"rewarm_steps": 0}, 1.0), ({"recover": False}, 1.0)])
def test_the_ramp_can_be_turned_off(syncer: Start, toy: Make, how: dict[str, Any], factor: float) -> None:
    running = syncer(start_learners=1, **SMALL)
    with Rider(running.url, toy(0), "a", donate=None).riding():
        late = Rider(running.url, toy(1), "b", **how)
        with late.learner:
            assert late.learner.lr_factor == factor


def test_another_optimizer_does_not_fit_and_the_next_rung_holds(
    syncer: Start, toy: Make, caplog: pytest.LogCaptureFixture
) -> None:
    running = syncer(start_learners=1, **SMALL)
    with Rider(running.url, toy(0), "a").riding():
        late = Rider(running.url, toy(1), "b", optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
        with caplog.at_level(logging.WARNING, "gruppetto.learner"), found_on_entering(late) as source:
            assert source == "syncer"
            late.train(2)
    assert sum("no state from a" in record.message and "AdamW" in record.message for record in caplog.records) == 1


def test_a_donor_that_dies_is_left_for_the_next(syncer: Start, toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first donor's bytes break off for good after the manifest; the second one serves."""
    running = syncer(start_learners=1, **SMALL)
    first, second = Rider(running.url, toy(0), "a"), Rider(running.url, toy(1), "b")
    broken: list[str] = []
    serve = donor.DonationServer._bytes

    async def breaks(self: donor.DonationServer, request: Any) -> Any:
        if self._core.learner == "a":  # type: ignore[attr-defined]
            broken.append("a")
            request.transport.abort()
        return await serve(self, request)

    monkeypatch.setattr(donor.DonationServer, "_bytes", breaks)
    with first.riding(), second.riding():
        # Until one was sent to the other donor first.
        for name in "cdefghij":
            late = Rider(running.url, toy(2), name)
            with found_on_entering(late) as source:
                assert source == "peer b"
            if broken:
                break
    assert broken


def test_who_still_looks_for_a_state_when_the_run_ends_looks_no_longer(
    syncer: Start, toy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left to train, and the last weights are there only as long as the syncer is."""
    url, asked = syncer(start_learners=1, rounds=30, **SMALL).url, threading.Event()
    first = Rider(url, toy(0), "a")

    async def stands_still(self: donor.DonationServer, request: Any) -> Any:
        asked.set()
        await asyncio.sleep(3600.0)

    def ride() -> None:
        while not first.learner.finished:
            wanted = first.learner._client.donations.wants_cut()  # type: ignore[union-attr]
            if first.learner.round < 20 or wanted or asked.wait(0.005):
                first.train()

    monkeypatch.setattr(donor.DonationServer, "_bytes", stands_still)
    thread = threading.Thread(target=ride)
    with first.learner:
        thread.start()
        with first.learner._client.news:
            assert first.learner._client.news.wait_for(lambda: first.learner.round >= 5, timeout=120.0)
        late = Rider(url, toy(1), "b")
        with late.learner:
            assert asked.is_set() and late.learner.finished and not late.learner.began_from
        thread.join()
    for mine, other in zip(first.model.parameters(), late.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def edited(manifest: Manifest, key: str, **how: Any) -> Manifest:
    return replace(manifest, tensors=tuple(replace(t, **how) if t.key == key else t for t in manifest.tensors))


LIES: dict[str, Callable[[Manifest], Manifest]] = {
    "as long as all memory": lambda m: replace(m, total_bytes=2**53),
    "no moments": lambda m: replace(m, tensors=tuple(t for t in m.tensors if t.key != "exp_avg")),
    "odd moments": lambda m: edited(m, "exp_avg", shape=(1,)),
    "huge moments": lambda m: edited(m, "exp_avg", shape=(0, 2**62, 2**62)),
    "whole moments": lambda m: edited(m, "exp_avg", dtype="int32"),
    "more": lambda m: replace(m, numbers=(NamedNumber(name=m.tensors[0].name, key="foo", value=3),)),
    "newer than the run": lambda m: replace(m, versions=tuple(Version(v + 10**6) for v in m.versions)),
    "beyond all numbers": lambda m: replace(m, versions=tuple(Version(2**63 + 1) for _ in m.versions)),
    "NaN": lambda m: m,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_donor_that_lies_costs_one_rung(
    lie: str, syncer: Start, toy: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running = syncer(start_learners=1, **SMALL)
    encode, read = donor.encode_manifest, donor._read

    def nothing_but_nan(cut: Any, start: int, stop: int) -> tuple[bytes, str]:
        body = b"\xff" * len(read(cut, start, stop)[0])
        return body, digest_of(body)

    monkeypatch.setattr(donor, "encode_manifest", lambda manifest: encode(LIES[lie](manifest)))
    if lie == "NaN":
        monkeypatch.setattr(donor, "_read", nothing_but_nan)
    with Rider(running.url, toy(0), "a").riding():
        late = Rider(running.url, toy(1), "b")
        with caplog.at_level(logging.WARNING, "gruppetto.learner"), found_on_entering(late) as source:
            assert source == "syncer"
            late.train(3)
            assert all(bool(p.isfinite().all()) for p in late.model.parameters())
    assert sum("no state from a" in record.message for record in caplog.records) == 1


def test_the_own_checkpoint_serves_when_no_peer_does(syncer: Start, toy: Make, tmp_path: Path) -> None:
    running = syncer(start_learners=1, **SMALL)
    with Rider(running.url, toy(0), "a", donate=None).riding():
        own = Checkpoints(tmp_path / "own")
        one = Rider(running.url, toy(1), "b", checkpoints=own)
        with one.learner:
            one.train(7)
            own.save(one.model, one.optimizer, one.learner)
            moments = one.moments()
            own.wait()
        again = Rider(running.url, toy(2), "b", checkpoints=tmp_path / "own")
        with found_on_entering(again) as source:
            assert source == "checkpoint" and again.learner.lr_factor == 1.0
            assert {name: value.tolist() for name, value in again.moments().items()} == {
                name: value.tolist() for name, value in moments.items()
            }
            again.train(2)


def test_a_checkpoint_of_another_run_is_passed_over(
    syncer: Start, toy: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = Checkpoints(tmp_path / "own", every_steps=2)
    before = Rider(syncer(**SMALL).url, toy(1), "b", checkpoints=own)
    with before.learner:
        before.train(2)
        own.wait()
    running = syncer(start_learners=1, **SMALL)
    with Rider(running.url, toy(0), "a", donate=None).riding():
        late = Rider(running.url, toy(1), "b", checkpoints=own)
        with caplog.at_level(logging.WARNING, "gruppetto.learner"), found_on_entering(late) as source:
            assert source == "syncer"
    assert any("belongs to run" in record.message for record in caplog.records)


@pytest.mark.parametrize("wrong", ["nowhere", "0.0.0.0:1", 7, "10.0.0.1:7000"])
def test_an_impossible_place_to_give_is_refused(toy: Make, wrong: Any) -> None:
    with pytest.raises(SettingError, match=r"Learner\.donate"):
        Rider("http://127.0.0.1:1", toy(0), "a", donate=wrong)
