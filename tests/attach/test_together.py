"""What the ranks of one learner were told is compared before they begin."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from torch import nn
from torch.optim import SGD

import gruppetto.attach.learner
from gruppetto import Learner
from gruppetto.attach.sharding import FlatModel
from gruppetto.attach.together import come_together
from gruppetto.errors import SettingError

OTHERWISE: dict[str, Callable[[nn.Module], object]] = {
    "trainable_only": lambda model: False,
    "optimizer": lambda model: None,
    "hook": lambda model: False,
    "recover": lambda model: False,
    "rewarm_steps": lambda model: 7,
    "on_disconnect": lambda model: "raise",
    "connect_timeout_s": lambda model: 7.5,
    "max_run_ahead": lambda model: 7,
    "run_ahead_timeout_s": lambda model: 7.5,
    "leave_within_s": lambda model: 7.5,
}
COMPARED_APART = {"name", "checkpoints", "on_checkpoint", "donate", "model"}
EACH_RANK_ITS_OWN = {
    # how it reaches the syncer, and who it is there
    *("syncer", "token", "ca_file", "cert_file", "key_file", "allow_plaintext", "stall_s", "max_bytes_per_s"),
    # heard of any rank, or said by rank 0 for all, whatever the others have
    *("notice", "leave_on_sigterm", "tokens_per_step", "cursor"),
    *("process_group", "quiet"),
}


class Met(Exception):
    """The ranks would meet now."""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Mapping[str, Any]]:
    """What a learner tells the other ranks of itself."""
    said: dict[str, Any] = {}

    def meets(*_: object, **words: Any) -> None:
        said.update(words)
        raise Met

    module = gruppetto.attach.learner
    monkeypatch.setattr(module, "ranks_of", lambda model, group: "two")
    monkeypatch.setattr(module, "Ranks", lambda members, device: SimpleNamespace(leads=False))
    monkeypatch.setattr(module, "come_together", meets)

    def told_by(**changed: Callable[[nn.Module], object]) -> Mapping[str, Any]:
        model = nn.Linear(2, 2)
        given = {"optimizer": SGD(model.parameters(), lr=0.1), **{key: of(model) for key, of in changed.items()}}
        if given["optimizer"] is None:
            given["hook"] = False
        with pytest.raises(Met):
            Learner(model, syncer="http://127.0.0.1:1", **given)  # type: ignore[arg-type]
        return dict(said)

    return told_by


def test_of_every_argument_it_is_known_whether_ranks_may_differ() -> None:
    arguments = set(inspect.signature(Learner).parameters)
    assert arguments == {*OTHERWISE, *COMPARED_APART, *EACH_RANK_ITS_OWN}


def test_what_has_to_be_alike_is_told_to_the_others(told: Callable[..., Mapping[str, Any]]) -> None:
    usual = told()["alike"]
    assert set(usual) == set(OTHERWISE)
    for key, other in OTHERWISE.items():
        said = told(**{key: other})["alike"]
        apart = {name for name in usual if said[name] != usual[name]}
        assert apart - {"hook"} == {key} - {"hook"} and key in apart


def test_where_it_gives_its_state_is_told_as_it_was_said(told: Callable[..., Mapping[str, Any]]) -> None:
    """'auto' may come to nothing on one rank alone, which is no mistake of anybody's."""
    for donate, gives in (("auto", True), (None, False), ("127.0.0.1:0", True)):
        said = told(donate=lambda model, donate=donate: donate)
        assert (said["donates"], said["gives"]) == (donate or "", gives)


class Group:
    """Stands for the ranks: what they all say is known from a pass before."""

    def __init__(self, rank: int, said: dict[int, bytes]) -> None:
        self.rank, self._said = rank, said

    def everybody(self, own: bytes) -> list[bytes]:
        self._said[self.rank] = own
        return [data for _, data in sorted(self._said.items())]


def met(*ranks: Mapping[str, Any]) -> list[bool | str]:
    """What comes of it at each rank: whether it gives, or why it refuses."""
    said: dict[int, bytes] = {}
    found: list[bool | str] = []
    for _ in ("each speaks", "each hears all"):
        found.clear()
        for rank, words in enumerate(ranks):
            flat, how = FlatModel(nn.Linear(2, 2), trainable_only=True), {"name": None, "session": "s", **words}
            try:
                found.append(come_together(Group(rank, said), flat, fallback="x", **how)[2])  # type: ignore[arg-type]
            except SettingError as wrong:
                found.append(str(wrong))
    return found


def test_all_ranks_refuse_in_the_same_words() -> None:
    usual = {"alike": {"hook": True, "rewarm_steps": 20, "max_run_ahead": None}}
    assert met(usual, usual, usual) == [False] * 3
    other = {"alike": {**usual["alike"], "max_run_ahead": 4}}
    why = (
        "Learner.max_run_ahead: max_run_ahead is None on rank 0, 4 on rank 2; give one value to all ranks of a learner"
    )
    assert met(usual, usual, other) == [why] * 3


def test_a_state_is_given_by_all_ranks_or_by_none() -> None:
    auto = {"alike": {}, "donates": "auto", "gives": True}
    assert met(auto, auto) == [True, True]
    assert met(auto, {**auto, "gives": False}) == [False, False]
    assert (
        met(auto, {"alike": {}})
        == ["Learner.donate: donate is 'auto' on rank 0, None on rank 1; give one value to all ranks of a learner"] * 2
    )


def test_ranks_of_two_versions_say_so_though_they_tell_other_things() -> None:
    flat, old = FlatModel(nn.Linear(2, 2), trainable_only=True), msgspec.msgpack.encode({"version": "0.1", "old": 1})
    ranks = Group(1, {0: old})
    with pytest.raises(SettingError, match=r"rank 0 runs Gruppetto 0\.1, rank 1 "):
        come_together(ranks, flat, fallback="x", name=None, session="s", alike={})  # type: ignore[arg-type]
