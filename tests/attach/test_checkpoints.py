"""A learner's own checkpoints: exact, atomic, pruned, and never the end of a learner."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import gruppetto
from gruppetto.attach.checkpoints import Checkpoints
from gruppetto.attach.on_disk import Facts
from gruppetto.attach.sharding import FlatModel
from gruppetto.errors import SettingError, StateError
from gruppetto.runtime.donation import digest_of

SMALL = {"num_fragments": 3, "sync_period": 3, "outer": "finetune", "uplink": "fp32"}


class Trained:
    def __init__(self, url: str, model: nn.Module, **how: Any) -> None:
        self.model, self.optimizer = model, torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.learner = gruppetto.Learner(
            model, self.optimizer, syncer=url, name="a", tokens_per_step=16, quiet=True, max_run_ahead=0, **how
        )

    def train(self, steps: int) -> None:
        for index in range(steps):
            self.model(*self.model.batch(index)).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def everything(self) -> dict[str, Any]:
        """All values, of model and optimizer."""
        state = self.optimizer.state_dict()["state"]
        moments = {f"{i}.{key}": value for i, entry in state.items() for key, value in entry.items()}
        return {key: value.clone() for key, value in {**self.model.state_dict(), **moments}.items()}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_everything_comes_back_by_value(syncer: Callable[..., Any], toy: Callable[..., Any], tmp_path: Path) -> None:
    running = syncer(**SMALL)
    store = Checkpoints(tmp_path)
    one = Trained(running.url, toy(0))
    with one.learner:
        one.train(7)
        assert store.save(one.model, one.optimizer, one.learner, extra={"lr": [0.1, None], "who": "me"})
        saved = one.everything()
        one.train(3)  # goes on while it is written
        store.wait()
        assert not same(saved, one.everything())
    path = store.newest()
    assert path is not None
    again = Trained(running.url, toy(1))
    assert store.load(path, again.model, again.optimizer, again.learner) == {"lr": [0.1, None], "who": "me"}
    assert same(saved, again.everything())
    with again.learner:
        again.train(2)
        assert again.learner.connected


def test_a_named_one_is_kept_and_the_others_are_pruned(
    syncer: Callable[..., Any], toy: Callable[..., Any], tmp_path: Path
) -> None:
    store = Checkpoints(tmp_path / "own", keep=2)
    one = Trained(syncer(**SMALL).url, toy(0))
    with one.learner:
        for name in (None, "mine", None, None, None):
            one.train(1)
            assert store.save(one.model, one.optimizer, one.learner, name=name)
            store.wait()
    names = sorted(path.name for path in (tmp_path / "own").iterdir())
    assert len(names) == 3 and names[0] == "mine" and names[1:] == sorted(names[1:])
    assert store.newest() == tmp_path / "own" / names[-1]


def test_a_learner_saves_by_itself(syncer: Callable[..., Any], toy: Callable[..., Any], tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, every_steps=3)
    one = Trained(syncer(**SMALL).url, toy(0), checkpoints=store)
    with one.learner:
        one.train(2)
        assert not store.any()
        one.train(1)
        store.wait()
        assert store.newest() is not None


def whole(tmp_path: Path, syncer: Callable[..., Any], toy: Callable[..., Any]) -> tuple[Checkpoints, Trained, Any]:
    running = syncer(**SMALL)
    store, one = Checkpoints(tmp_path), Trained(running.url, toy(0))
    with one.learner:
        for _ in range(2):
            one.train(1)
            store.save(one.model, one.optimizer, one.learner)
            store.wait()
    return store, one, running


@pytest.mark.parametrize("damage", ["bit", "short", "gone", "facts", "a fact", "no facts", "format"])
def test_what_is_damaged_is_passed_over_with_a_line(
    damage: str,
    syncer: Callable[..., Any],
    toy: Callable[..., Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, one, _ = whole(tmp_path, syncer, toy)
    newest = store.newest()
    assert newest is not None
    tensors, facts = next(newest.glob("*.safetensors")), newest / "learner.json"
    match damage:
        case "bit":
            data = bytearray(tensors.read_bytes())
            data[-1] ^= 1
            tensors.write_bytes(data)
        case "short":
            tensors.write_bytes(tensors.read_bytes()[:-1])
        case "gone":
            tensors.unlink()
        case "facts":
            facts.write_bytes(facts.read_bytes()[:-9])
        case "a fact":
            facts.write_text(facts.read_text().replace('"run_id', '"run_ie'))
        case "no facts":
            facts.unlink()
        case "format":
            facts.write_text(json.dumps(json.loads(facts.read_text()) | {"format": 99}))
    with caplog.at_level(logging.WARNING, "gruppetto.learner"):
        older = store.newest()
    assert older is not None and older != newest
    if damage != "no facts":  # such a directory is none of ours
        assert sum("passed over" in record.message and newest.name in record.message for record in caplog.records) == 1
    with pytest.raises(StateError):
        store.load(newest, one.model, one.optimizer, None)


def edit(path: Path, change: Callable[[dict[str, Any]], None], *, old: bool) -> None:
    """Change what stands in ``learner.json``, as of a version without a digest of it or with a digest that is right."""
    facts = json.loads((path / "learner.json").read_text())
    change(facts)
    facts |= {"format": 1} if old else {}
    facts["digest"] = ""
    if not old:
        facts["digest"] = digest_of(msgspec.json.encode(msgspec.convert(facts, Facts)))
    (path / "learner.json").write_text(json.dumps(facts))


def without(part: str) -> Callable[[dict[str, Any]], None]:
    def change(facts: dict[str, Any]) -> None:
        facts["tensors"] = {key: kind for key, kind in facts["tensors"].items() if part not in key}

    return change


def endless(facts: dict[str, Any]) -> None:
    core = json.loads(facts["learner"]["core"])
    core["fragments"][0][0] = float("inf")
    facts["learner"]["core"] = json.dumps(core).replace("Infinity", "1e400")


def recover(store: Checkpoints, one: Trained) -> None:
    run_id = json.loads(json.loads((store._by_age()[0] / "learner.json").read_text())["learner"]["core"])["run_id"]
    layout = FlatModel(one.model, trainable_only=True).layout
    store.recover(run_id, layout, one.model, one.optimizer)


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("change", [without("exp_avg:"), without("step:"), without("exp_avg_sq:wte"), endless])
def test_a_checkpoint_with_which_nobody_can_go_on_is_passed_over(
    change: Callable[[dict[str, Any]], None],
    old: bool,
    syncer: Callable[..., Any],
    toy: Callable[..., Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, _, running = whole(tmp_path, syncer, toy)
    for path in store._by_age():
        edit(path, change, old=old)
    fresh = Trained(running.url, toy(1))
    with caplog.at_level(logging.WARNING, "gruppetto.learner"), pytest.raises(StateError, match="no checkpoint"):
        recover(store, fresh)
    assert sum("passed over" in record.message for record in caplog.records) == 2
    with pytest.raises(StateError):
        store.load(store._by_age()[0], fresh.model, fresh.optimizer, Trained(running.url, toy(1)).learner)
    assert not fresh.optimizer.state
    fresh.train(1)


def test_one_of_a_version_without_a_digest_is_still_read(
    syncer: Callable[..., Any], toy: Callable[..., Any], tmp_path: Path
) -> None:
    store, _, running = whole(tmp_path, syncer, toy)
    for path in store._by_age():
        edit(path, lambda facts: None, old=True)
    fresh = Trained(running.url, toy(1))
    recover(store, fresh)
    assert fresh.optimizer.state
    fresh.train(1)


def test_another_model_is_refused(syncer: Callable[..., Any], toy: Callable[..., Any], tmp_path: Path) -> None:
    store, _, _ = whole(tmp_path, syncer, toy)
    path, other = store.newest(), nn.Linear(2, 2)
    assert path is not None
    with pytest.raises(StateError, match="another model"):
        store.load(path, other, torch.optim.AdamW(other.parameters()), None)


def test_a_disk_that_says_no_does_not_end_training(
    syncer: Callable[..., Any], toy: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Checkpoints(tmp_path / "store")
    one = Trained(syncer(**SMALL).url, toy(0))
    with caplog.at_level(logging.WARNING, "gruppetto.learner"), one.learner:
        one.train(1)
        (tmp_path / "store").rmdir()
        (tmp_path / "store").write_text("a file where the directory was")
        assert store.save(one.model, one.optimizer, one.learner)
        store.wait()
        one.train(1)
    assert sum("could not be written" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("wrong", [{"every_steps": 0}, {"keep": 0}, {"keep": True}])
def test_impossible_settings_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="Checkpoints"):
        Checkpoints(tmp_path, **wrong)


@pytest.mark.parametrize("name", ["", "..", "a/b", "round-0000000001"])
def test_impossible_names_are_refused(
    name: str, syncer: Callable[..., Any], toy: Callable[..., Any], tmp_path: Path
) -> None:
    one = Trained(syncer(**SMALL).url, toy(0))
    with one.learner, pytest.raises(SettingError):
        Checkpoints(tmp_path).save(one.model, one.optimizer, one.learner, name=name)
