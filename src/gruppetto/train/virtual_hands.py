"""The hands of virtual training: what a simulated learner and a simulated syncer do to real tensors.

They are the parts of the real service and the real library, without threads, network and disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gruppetto.attach.part import put_together, take_apart
from gruppetto.numerics import CODECS, Codec, Downlink, Fragmentation, inspect
from gruppetto.numerics.downlink import Kept
from gruppetto.numerics.outer import OuterSetting
from gruppetto.protocol.actions import Apply, Fold, KeepRest, Persist, Publish, TakeOuterStep
from gruppetto.protocol.donors import Source
from gruppetto.protocol.events import OuterStepped
from gruppetto.protocol.messages import Answer
from gruppetto.protocol.units import Fragment, Version
from gruppetto.runtime.intake import Body
from gruppetto.runtime.parameters import Parameters
from gruppetto.train.batches import Batches
from gruppetto.train.data import Data
from gruppetto.train.inner import learning_rate
from gruppetto.train.setting import TrainSetting
from gruppetto.train.virtual_learner import Octets

__all__ = ["Offered", "Tensors", "VirtualLearner", "VirtualSyncer", "offered"]

_Value = tuple[Version, NDArray[np.float32], Kept]
"""Version, Θ and outer state of one fragment."""


class VirtualSyncer:
    """The syncer's hands: the parameters of the real service, without its threads and disk."""

    def __init__(
        self,
        parts: Fragmentation,
        rules: dict[str, str],
        outer: OuterSetting,
        *,
        uplink: Codec,
        downlink: Downlink,
        mortal: bool = False,
    ) -> None:
        """``mortal``: it may die, so that a copy of what is durable is kept."""
        self.parts, self.uplink, self.downlink = parts, uplink, downlink
        self._make = partial(Parameters, parts, rules=rules, outer=outer, downlink=downlink)
        self._parameters = self._make()
        self._durable: dict[Fragment, _Value] = {}
        self._keeps_durable = mortal
        self._open: dict[Fragment, list[tuple[Fold, Body]]] = {}
        """What the running merges are made of."""
        self.on_merge: Callable[[list[NDArray[np.float32]], list[float]], None] | None = None
        """Called with every outer step, with the contributions to a fragment, and their weights, for whoever looks."""

    def seed(self, weights: object) -> None:
        assert isinstance(weights, list)
        for p, theta in enumerate(weights):
            self._parameters.seed(Fragment(p), self._body(Fragment(p), theta.view(np.uint8), CODECS["fp32"]))

    def is_finite(self, contribution: object) -> bool:
        assert isinstance(contribution, Offered)
        return contribution.body.inspection.finite

    def norms(self, contribution: object) -> tuple[float, ...]:
        assert isinstance(contribution, Offered)
        return tuple(contribution.body.inspection.norm.tolist())

    def value_norms(self) -> tuple[tuple[float, ...], ...]:
        return self._parameters.value_norms()

    def fold(self, fold: Fold, contribution: object) -> float | None:
        assert isinstance(contribution, Offered)
        body = contribution.body
        self._open.setdefault(fold.fragment, []).append((fold, body))
        return self._parameters.fold(fold.fragment, body, self.uplink, fold.weight, fold.caps)

    def outer_step(self, action: TakeOuterStep) -> OuterStepped:
        report = self._parameters.outer_step(action.fragments, action.round)
        for fragment in action.fragments:
            self._seen(fragment, self._open.pop(fragment, []))
        return OuterStepped(round=action.round, zero=report.zero, not_finite=report.not_finite)

    def _seen(self, fragment: Fragment, folds: Sequence[tuple[Fold, Body]]) -> None:
        if self.on_merge is None or not folds:
            return
        numel = self.parts.fragments[fragment].numel
        deltas = [self.uplink.decode(np.frombuffer(body.payload, np.uint8), numel) for _, body in folds]
        self.on_merge(deltas, [fold.weight for fold, _ in folds])

    def persist(self, action: Persist) -> None:
        if self._keeps_durable:
            for p, (theta, outer_state) in self._parameters.pending(action.fragments).items():
                kept = tuple(part.copy() for part in outer_state)
                self._durable[p] = (action.state.versions[p], theta.copy(), kept)

    def restart(self) -> None:
        self._parameters = self._make()
        self._open.clear()
        for p, (version, theta, outer_state) in sorted(self._durable.items()):
            self._parameters.restore(p, version, theta, outer_state)

    def publish(self, publish: Publish) -> None:
        self._parameters.publish(publish.message.versions)

    def read(self, fragment: Fragment, version: Version) -> object:
        value = self._parameters.current(fragment)
        assert value is not None and value.version == version
        # The buffer may be used again once the value is retired; what is on its way must not change.
        body = value.body.copy()
        self._parameters.release(value)
        return body

    def value(self, fragment: Fragment) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Θ of one fragment."""
        body = self.read(fragment, self._version(fragment))
        assert isinstance(body, np.ndarray)
        return self.downlink.whole.decode(body, self.parts.fragments[fragment].numel)

    def contribution(self, fragment: Fragment, payload: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Body:
        """What the gate would make of an uploaded body."""
        return self._body(fragment, payload, self.uplink)

    def take_apart(self, name: str, tensors: dict[str, Tensor]) -> list[Any]:
        """The published values between two rounds, and what waits in merges for later ones: tensors under ``name``, and
        what is said beside them."""
        said: list[Any] = []
        for p in map(Fragment, range(self.parts.num_fragments)):
            value = self._parameters.current(p)
            assert value is not None
            arrays = [torch.from_numpy(values) for values in (value.theta, *value.kept)]
            said.append([value.version, take_apart(arrays, f"{name}.{p}", tensors)])
            self._parameters.release(value)
        waiting: list[tuple[Any, str]] = []
        for fold, body in (each for folds in self._open.values() for each in folds):
            waiting.append((msgspec.to_builtins(fold), f"{name}.waiting.{len(waiting)}"))
            tensors[waiting[-1][1]] = torch.from_numpy(np.frombuffer(body.payload, np.uint8).copy())
        return [said, waiting]

    def put_together(self, said: Sequence[Any], tensors: Mapping[str, Tensor]) -> None:
        """The inverse of :meth:`take_apart`."""
        values, waiting = said
        for p, (version, arrays) in enumerate(values):
            theta, *kept = (values.numpy() for values in put_together(arrays, tensors))
            self._parameters.restore(Fragment(p), Version(version), theta, tuple(kept))
            if self._keeps_durable:
                self._durable[Fragment(p)] = (Version(version), theta.copy(), tuple(part.copy() for part in kept))
        for plain, name in waiting:
            fold = msgspec.convert(plain, Fold)
            body = self.contribution(fold.fragment, tensors[name].numpy())
            self.fold(fold, offered(body))

    def _version(self, fragment: Fragment) -> Version:
        value = self._parameters.current(fragment)
        assert value is not None
        self._parameters.release(value)
        return value.version

    def _body(self, fragment: Fragment, payload: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], codec: Codec) -> Body:
        seen = inspect(payload, codec, self.parts.fragments[fragment])
        return Body(payload.data, codec, seen, lambda: None)


class Offered:
    """A contribution that may still be in the making; looked at once, where it arrives."""

    def __init__(self, make: Callable[[], Body]) -> None:
        self._make = make
        self._body: Body | None = None

    @property
    def body(self) -> Body:
        if self._body is None:
            self._body = self._make()
        return self._body


def offered(body: Body) -> Offered:
    """One that is there already."""
    return Offered(lambda: body)


class Tensors(Protocol):
    """What trains: here (:class:`LearnerTensors`), or in a worker (:class:`~gruppetto.train.virtual_workers`)."""

    def begin(self) -> None: ...
    def start(self, windows: NDArray[np.int64]) -> None: ...
    def train(self, rate: float) -> None: ...
    def seed(self) -> list[Octets]: ...
    def snapshot(self, fragments: Sequence[int]) -> None: ...
    def contribution(self, answer: Answer, factor: float) -> Callable[[], Octets]: ...
    @property
    def keeps_rest(self) -> bool: ...
    def keep_rest(self, action: KeepRest) -> None: ...
    def drop_rests(self) -> None: ...
    def apply(self, action: Apply, value: NDArray[Any] | None) -> None: ...
    def cut(self) -> Octets: ...
    def keep(self) -> None: ...
    def adopt(self, source: str, state: Octets | None, bases: Sequence[int]) -> list[NDArray[np.float32]]: ...
    def take_apart(self, vectors: bool) -> tuple[Any, Octets]: ...
    def put_together(self, said: Any, tensors: Octets) -> None: ...


class VirtualLearner:
    """A learner's hands: its data, and its tensors, wherever they are."""

    def __init__(
        self,
        setting: TrainSetting,
        data: Data,
        tensors: Tensors,
        syncer: VirtualSyncer,
        *,
        rounds: int,
        factor: float,
    ) -> None:
        self._setting, self._data, self._factor = setting, data, factor
        self._rounds, self._syncer = rounds, syncer
        self._tensors = tensors
        self._batches: Batches | None = None

    def start(self, slot: int, cursor: int) -> None:
        batches = self._batches
        if batches is None or (batches.slot.slot, batches.cursor) != (slot, cursor):
            self._batches = batches = Batches.of(self._data, self._setting, slot=slot, cursor=cursor)
        windows, _ = next(batches)
        self._tensors.start(windows.numpy())

    def train(self, round: int) -> tuple[int, int]:
        self._tensors.train(learning_rate(self._setting.inner, round, self._rounds))
        assert self._batches is not None
        return self._setting.tokens_per_step, self._batches.cursor

    def seed(self) -> object:
        return self._tensors.seed()

    def snapshot(self, fragments: Sequence[Fragment]) -> None:
        self._tensors.snapshot(fragments)

    def contribution(self, answer: Answer, factor: float) -> object:
        payload = self._tensors.contribution(answer, self._factor * factor)
        return Offered(lambda: self._syncer.contribution(answer.fragment, payload()))

    @property
    def keeps_rest(self) -> bool:
        return self._tensors.keeps_rest

    def keep_rest(self, action: KeepRest) -> None:
        self._tensors.keep_rest(action)

    def drop_rests(self) -> None:
        self._tensors.drop_rests()

    def apply(self, action: Apply, value: object) -> None:
        assert value is None or isinstance(value, np.ndarray)
        self._tensors.apply(action, value)

    def begin(self) -> None:
        self._tensors.begin()

    def keep(self) -> None:
        self._tensors.keep()

    def cut(self) -> object:
        return self._tensors.cut()

    def adopt(self, source: Source, cut: object, bases: tuple[Fragment, ...]) -> tuple[object, ...]:
        assert cut is None or isinstance(cut, np.ndarray)
        return tuple(self._tensors.adopt(source.value, cut, bases))

    def take_apart(self, name: str, tensors: dict[str, Tensor], *, vectors: bool = True) -> dict[str, Any]:
        """All of it (or of the library's vectors its bases and what it owes alone): one tensor under ``name``, and what
        is said beside it."""
        said, octets = self._tensors.take_apart(vectors)
        tensors[name] = torch.from_numpy(octets.copy())
        batches = self._batches
        place = None if batches is None else [batches.slot.slot, batches.cursor]
        return {"name": name, "place": place, "state": said}

    def put_together(self, said: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """The inverse of :meth:`take_apart`."""
        self._tensors.put_together(said["state"], tensors[str(said["name"])].numpy())
        if said["place"] is not None:
            slot, cursor = said["place"]
            self._batches = Batches.of(self._data, self._setting, slot=slot, cursor=cursor)
