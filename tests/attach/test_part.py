"""A learner's part of a checkpoint of the whole run: saved in the loop, written beside it, gone on from in one life."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gruppetto
from gruppetto.attach.part import Parts, load_part, put_together, take_apart
from gruppetto.errors import SettingError, StateError
from gruppetto.launch.ask_checkpoint import take_checkpoint
from gruppetto.runtime.run_checkpoint import install

Make = Callable[..., Any]
Start = Callable[..., Any]
SMALL = {"num_fragments": 3, "sync_period": 3, "outer": "finetune", "uplink": "fp32", "token": "sesame"}


class Rider:
    """A toy model, AdamW with state, and a learner that saves parts."""

    def __init__(self, url: str, model: Any, parts: Path | None, **how: Any) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.8, 0.95))
        self.parts = (
            None if parts is None else Parts(parts, model, self.optimizer, extra=lambda: {"luck": torch.ones(2)})
        )
        self.learner = gruppetto.Learner(
            model,
            self.optimizer,
            syncer=url,
            token="sesame",
            name="a",
            tokens_per_step=16,
            quiet=True,
            max_run_ahead=0,
            **{"on_checkpoint": self.parts, **how},
        )

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.model(*self.model.batch(self.learner.cursor)).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def checkpointed(self, url: str, name: str = "m") -> dict[str, Any]:
        """Train until the checkpoint that is asked for meanwhile is complete."""
        found: list[dict[str, Any]] = []
        asking = threading.Thread(target=lambda: found.append(take_checkpoint(url, secret="sesame", name=name)))
        asking.start()
        while asking.is_alive():
            self.train()
        return found[0]


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    take_apart(model.state_dict(), "model", tensors)
    take_apart(optimizer.state_dict(), "optimizer", tensors)
    return tensors


def test_a_resumed_learner_is_the_one_that_was_saved(syncer: Start, toy: Make, tmp_path: Path) -> None:
    running = syncer(**SMALL)
    one = Rider(running.url, toy(), tmp_path / "parts")
    with one.learner:
        one.train(7)
        report = one.checkpointed(running.url)
        one.train(9)  # given up
        assert one.parts is not None
        one.parts.close()
    part = Path(report["learners"]["a"]["part"])
    assert part == tmp_path / "parts" / "m" and report["left_out"] == {}
    running.stop()
    install(Path(report["path"]), running._state)
    running.start()
    again = Rider(running.url, toy(seed=5), tmp_path / "parts")
    extra = load_part(part, again.model, again.optimizer, again.learner)
    assert torch.equal(extra["luck"], torch.ones(2))
    assert again.optimizer.param_groups[0]["betas"] == (0.8, 0.95)
    core = again.learner._core
    steps, cursor, counters = core.steps, core.cursor, core.snapshot().fragments
    assert steps >= 7 and any(number for _, number, _ in counters)
    saved = everything(again.model, again.optimizer)
    with again.learner as learner:
        assert core.incarnation == 1  # the same life
        assert (core.steps, learner.cursor) == (steps, cursor)
        assert core.snapshot().fragments == counters
        now = everything(again.model, again.optimizer)
        assert saved.keys() == now.keys() and all(torch.equal(saved[key], now[key]) for key in saved)
        again.train(6)
        assert learner.round > report["round"]
    assert again.parts is not None
    again.parts.close()


def test_the_part_is_of_the_moment_of_the_cut(syncer: Start, toy: Make, tmp_path: Path) -> None:
    """Asked within the callback, the learner speaks of the cut, not of what the same boundary applies behind it."""
    running = syncer(**SMALL)
    seen: list[Any] = []

    def on_checkpoint(learner: gruppetto.Learner, mark: str) -> Path:
        seen.append((mark, learner.state_dict()["core"], learner._hands.cut))
        return tmp_path / mark

    one = Rider(running.url, toy(), None, on_checkpoint=on_checkpoint)
    with one.learner as learner:
        one.train(4)
        report = one.checkpointed(running.url)
        assert learner._hands.cut is None
    ((mark, core, cut),) = seen
    assert mark == "m" and f'"cursor": {cut.cursor}' in core and all(v <= report["round"] for v, _, _ in cut.fragments)
    assert report["learners"]["a"]["part"] == str(tmp_path / "m")


@pytest.mark.parametrize("how", ["raises", "fails later", "has none"])
def test_who_cannot_save_is_left_out_with_the_reason_and_trains_on(
    syncer: Start, toy: Make, tmp_path: Path, how: str
) -> None:
    running = syncer(**SMALL)
    full = tmp_path / "full"
    full.write_text("a file where a directory is needed")

    def raises(learner: gruppetto.Learner, mark: str) -> Path:
        raise RuntimeError("no room")

    given = {"raises": raises, "has none": None}
    one = Rider(running.url, toy(), full) if how == "fails later" else Rider(
        running.url, toy(), None, on_checkpoint=given[how]
    )  # fmt: skip
    with one.learner as learner:
        one.train(3)
        report = one.checkpointed(running.url)
        before = learner.round
        one.train(3)
        assert learner.round > before
    says = {"raises": "RuntimeError: no room", "fails later": "Error: ", "has none": "attached without on_checkpoint"}
    assert report["learners"] == {} and says[how] in report["left_out"]["a"]
    if one.parts is not None:
        one.parts.close()


def test_a_learner_that_leaves_finishes_what_it_was_saving(syncer: Start, toy: Make, tmp_path: Path) -> None:
    running = syncer(rounds=4, **SMALL)
    one = Rider(running.url, toy(), tmp_path / "parts")
    with one.learner as learner:
        while not learner.finished:
            one.train()
    assert one.learner._hands.saving == 0
    assert one.parts is not None
    one.parts.close()


def test_what_is_no_callback_is_refused(toy: Make) -> None:
    with pytest.raises(SettingError, match="on_checkpoint is 'disk'; pass a function, or Parts"):
        Rider("http://127.0.0.1:9", toy(), None, on_checkpoint="disk")


def test_what_is_taken_apart_comes_back() -> None:
    tensors: dict[str, torch.Tensor] = {}
    value = {"a": [1, (2.5, None)], 3: {"b": torch.arange(3), "c": True}, "d": "text", "e": [], "f": {}}
    back = put_together(take_apart(value, "x", tensors), tensors)
    assert torch.equal(back[3].pop("b"), torch.arange(3)) and list(tensors) == ["x.3.b"]
    value[3].pop("b")  # type: ignore[index, call-overload, attr-defined, union-attr]
    assert back == value and isinstance(back["a"][1], tuple)
    with pytest.raises(StateError, match=r"x\.y is a object"):
        take_apart({"y": object()}, "x", tensors)


def test_a_part_that_is_damaged_or_of_another_model_is_refused(toy: Make, tmp_path: Path) -> None:
    one = Rider("http://127.0.0.1:9", toy(), tmp_path)
    assert one.parts is not None
    place = Path(one.parts(one.learner, "m").result())
    one.parts.close()
    with pytest.raises(StateError, match="holds no part"):
        load_part(tmp_path / "other", one.model, one.optimizer, one.learner)
    other = nn.Linear(2, 2)
    with pytest.raises(StateError, match="does not fit this model"):
        load_part(place, other, torch.optim.SGD(other.parameters(), lr=0.1), one.learner)
    body = bytearray((place / "part.safetensors").read_bytes())
    body[-1] ^= 1
    (place / "part.safetensors").write_bytes(body)
    with pytest.raises(StateError, match="the checksum of its tensors is wrong"):
        load_part(place, one.model, one.optimizer, one.learner)


def test_parts_of_checkpoints_that_have_gone_go_too(syncer: Start, toy: Make, tmp_path: Path) -> None:
    """Those by the syncer's timer; what somebody has named stays, and so does everything the syncer still has."""
    running = syncer(**SMALL, checkpoint_every_s=1.0, checkpoints_kept=1)
    one, parts = Rider(running.url, toy(), tmp_path / "parts"), tmp_path / "parts"
    state = running._state / "checkpoints"
    with one.learner:
        one.checkpointed(running.url, name="friday")
        seen: set[str] = set()
        while len(seen) < 4:
            one.train()
            seen |= {place.name for place in state.glob("auto-*") if (place / "manifest.json").exists()}
        assert one.parts is not None
        one.parts.close()
    kept = {place.name for place in state.iterdir() if (place / "manifest.json").exists()}
    there = {place.name for place in parts.iterdir()}
    assert kept <= there and "friday" in there
    assert len(there - {"friday"}) <= 3 < len(seen)
