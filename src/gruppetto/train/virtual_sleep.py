"""A whole virtual run on disk, to go on from bit for bit: learners, syncer, engine, and what is on its way.

What will happen next in a virtual world is a heap of closures, and closures cannot be written. They are made again:
a resumed run lives through its past once more with its *hands asleep*. The cores decide, clocks and random numbers
run, messages travel, and no tensor is touched, which takes a moment. At the round of the checkpoint the hands wake up:
they are given all tensors of that moment, and find what is on its way in the boxes that sleepers have sent each other.
Deaths and new lives are lived through like everything else.

The few things that hands say to a core (norms, cosines, that something is not finite) are written too, and said again,
and so is what evaluations found.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec
import numpy as np
import torch
from torch import Tensor

from gruppetto.attach.part import read_files, write_files
from gruppetto.errors import StateError
from gruppetto.protocol.actions import Apply, Fold, KeepRest, Persist, Publish, TakeOuterStep
from gruppetto.protocol.donors import Source
from gruppetto.protocol.events import OuterStepped
from gruppetto.protocol.messages import Answer
from gruppetto.protocol.units import Fragment, Version
from gruppetto.sim import World
from gruppetto.train.virtual_hands import Offered, VirtualLearner, VirtualSyncer, offered

__all__ = ["DrowsyLearner", "DrowsySyncer", "Script", "fall_asleep", "read_round", "rehearse", "wake_up"]


Said = TypeVar("Said")


@dataclass(slots=True, kw_only=True, weakref_slot=True, eq=False)
class Box:
    """Something on its way between a learner and the syncer. Empty while hands are asleep."""

    fragment: Fragment | None
    value: object = None


@dataclass(slots=True, kw_only=True)
class Script:
    """What the hands have told the cores so far, and the boxes they have sent."""

    asleep: bool = False
    lines: dict[str, list[Any]] = field(default_factory=dict)
    """All that was said, in order, by what it is about."""
    spoken: Counter[str] = field(default_factory=Counter)
    """How much of it."""
    stepped: int = 0
    remarkable: dict[int, OuterStepped] = field(default_factory=dict)
    """Outer steps with something to say, by their number."""
    boxes: WeakValueDictionary[int, Box] = field(default_factory=WeakValueDictionary)
    """Those that somebody will still open, by their number."""
    sent: int = 0

    def say(self, what: str, say: Callable[[], Said]) -> Said:
        """What ``say`` gives; asleep, what it gave the first time."""
        lines, number = self.lines.setdefault(what, []), self.spoken[what]
        self.spoken[what] += 1
        if not self.asleep:
            lines.append(say())
        line: Said = lines[number]
        return line

    def box(self, fragment: Fragment | None, value: object = None) -> Box:
        box = Box(fragment=fragment, value=value)
        self.boxes[self.sent] = box
        self.sent += 1
        return box


class DrowsySyncer:
    """The syncer's hands; while the script is asleep they say what they said the first time, and do nothing."""

    def __init__(self, hands: VirtualSyncer, script: Script) -> None:
        self.hands, self._script = hands, script

    def seed(self, weights: object) -> None:
        assert isinstance(weights, Box)
        if not self._script.asleep:
            self.hands.seed(weights.value)

    def is_finite(self, contribution: object) -> bool:
        assert isinstance(contribution, Box)
        return self._script.say("finite", lambda: self.hands.is_finite(contribution.value))

    def norms(self, contribution: object) -> tuple[float, ...]:
        assert isinstance(contribution, Box)
        return tuple(self._script.say("norms", lambda: self.hands.norms(contribution.value)))

    def value_norms(self) -> tuple[tuple[float, ...], ...]:
        return tuple(map(tuple, self._script.say("value_norms", self.hands.value_norms)))

    def fold(self, fold: Fold, contribution: object) -> float | None:
        assert isinstance(contribution, Box)
        return self._script.say("cosine", lambda: self.hands.fold(fold, contribution.value))

    def outer_step(self, action: TakeOuterStep) -> OuterStepped:
        script, number = self._script, self._script.stepped
        script.stepped += 1
        if not script.asleep:
            stepped = self.hands.outer_step(action)
            if stepped != OuterStepped(round=action.round):
                script.remarkable[number] = stepped
        return script.remarkable.get(number, OuterStepped(round=action.round))

    def persist(self, action: Persist) -> None:
        if not self._script.asleep:
            self.hands.persist(action)

    def restart(self) -> None:
        if not self._script.asleep:
            self.hands.restart()

    def publish(self, publish: Publish) -> None:
        if not self._script.asleep:
            self.hands.publish(publish)

    def read(self, fragment: Fragment, version: Version) -> object:
        return self._script.box(fragment, None if self._script.asleep else self.hands.read(fragment, version))


class DrowsyLearner:
    """A learner's hands, likewise. ``step``: (tokens, windows) of every step."""

    def __init__(self, hands: VirtualLearner, script: Script, step: tuple[int, int]) -> None:
        self.hands, self._script = hands, script
        self._tokens, self._windows = step
        self._cursor = 0

    def start(self, slot: int, cursor: int) -> None:
        self._cursor = cursor
        if not self._script.asleep:
            self.hands.start(slot, cursor)

    def train(self, round: int) -> tuple[int, int]:
        if self._script.asleep:
            return self._tokens, self._cursor + self._windows
        return self.hands.train(round)

    def seed(self) -> object:
        return self._script.box(None, None if self._script.asleep else self.hands.seed())

    def snapshot(self, fragments: Sequence[Fragment]) -> None:
        if not self._script.asleep:
            self.hands.snapshot(fragments)

    def contribution(self, answer: Answer, factor: float) -> object:
        asleep = self._script.asleep
        return self._script.box(answer.fragment, None if asleep else self.hands.contribution(answer, factor))

    @property
    def keeps_rest(self) -> bool:
        return self.hands.keeps_rest

    def keep_rest(self, action: KeepRest) -> None:
        if not self._script.asleep:
            self.hands.keep_rest(action)

    def drop_rests(self) -> None:
        if not self._script.asleep:
            self.hands.drop_rests()

    def apply(self, action: Apply, value: object) -> None:
        if self._script.asleep:
            return
        assert value is None or isinstance(value, Box)
        self.hands.apply(action, None if value is None else value.value)

    def begin(self) -> None:
        if not self._script.asleep:
            self.hands.begin()

    def keep(self) -> None:
        if not self._script.asleep:
            self.hands.keep()

    def cut(self) -> object:
        return self._script.box(None, None if self._script.asleep else self.hands.cut())

    def adopt(self, source: Source, cut: object, bases: tuple[Fragment, ...]) -> tuple[object, ...]:
        assert cut is None or isinstance(cut, Box)
        if self._script.asleep:
            return tuple(self._script.box(p) for p in bases)
        values = self.hands.adopt(source, None if cut is None else cut.value, bases)
        return tuple(self._script.box(p, value) for p, value in zip(bases, values, strict=True))


def fall_asleep(
    place: Path, *, settings: Mapping[str, Any], world: World, script: Script, hands: Mapping[str, VirtualLearner],
    syncer: VirtualSyncer,
) -> None:  # fmt: skip
    """Write everything. Between two events, right after a round was published. Raises OSError."""
    tensors: dict[str, Tensor] = {}
    boxes: dict[str, list[Any]] = {}
    for number, box in sorted(script.boxes.items()):
        octets = np.frombuffer(box.value.body.payload, np.uint8) if isinstance(box.value, Offered) else box.value
        assert isinstance(octets, np.ndarray)
        tensors[f"box.{number}"] = torch.from_numpy(octets.copy())
        boxes[str(number)] = [box.fragment, isinstance(box.value, Offered)]
    rest = {
        "settings": _plain(settings),
        "round": world.syncer.round,
        "digest": _digest(world),
        "lines": script.lines,
        "remarkable": {str(number): msgspec.to_builtins(stepped) for number, stepped in script.remarkable.items()},
        "boxes": boxes,
        "syncer": syncer.take_apart("syncer", tensors),
        "learners": {name: each.take_apart(name, tensors) for name, each in hands.items()},
    }
    write_files(place, tensors, rest)


def read_round(place: Path, settings: Mapping[str, Any]) -> tuple[int, dict[str, Tensor], dict[str, Any]]:
    """The round at which to wake up, and what :func:`wake_up` wants. Raises :class:`StateError`."""
    tensors, rest = read_files(place)
    now = _plain(settings)
    different = sorted(
        key for key in {*now, *rest.get("settings", {})} if rest.get("settings", {}).get(key) != now.get(key)
    )
    if different:
        raise StateError(
            f"was saved with other settings of {', '.join(different)}", where=str(place), fix="resume with the same"
        )
    return int(rest["round"]), tensors, rest


def rehearse(script: Script, rest: Mapping[str, Any]) -> None:
    """Before the past is lived through again: hands fall asleep, and know what they said."""
    script.asleep = True
    script.lines = rest["lines"]
    script.remarkable = {int(n): msgspec.convert(said, OuterStepped) for n, said in rest["remarkable"].items()}


def wake_up(
    place: Path, tensors: Mapping[str, Tensor], rest: Mapping[str, Any], *, world: World, script: Script,
    hands: Mapping[str, VirtualLearner], syncer: VirtualSyncer,
) -> None:  # fmt: skip
    """Put everything where it was. Raises :class:`StateError` if the world is not the one that was saved."""
    if _digest(world) != rest["digest"]:
        raise StateError(
            "its past cannot be lived through again: this version decides otherwise",
            where=str(place),
            fix="resume with the version that saved it",
        )
    syncer.put_together(rest["syncer"], tensors)
    for name, each in hands.items():
        each.put_together(rest["learners"][name], tensors)
    for number, box in script.boxes.items():
        _, is_contribution = rest["boxes"][str(number)]
        payload = tensors[f"box.{number}"].numpy()
        box.value = payload
        if is_contribution:
            assert box.fragment is not None
            box.value = offered(syncer.contribution(box.fragment, payload))
    script.asleep = False


def _plain(settings: Mapping[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(settings))


def _digest(world: World) -> str:
    """Of everything that the cores know."""
    cores = [(learner.lives, learner.alive, learner.core.snapshot()) for learner in world.learners.values()]
    return hashlib.sha256(msgspec.json.encode((world.engine.now, world.syncer.snapshot(), cores))).hexdigest()
