"""The hands of virtual training: what a simulated learner and a simulated syncer do to real tensors.

They are the parts of the real service and the real library, without threads, network and disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gruppetto.attach.holdings import Holdings
from gruppetto.attach.part import put_together, take_apart
from gruppetto.attach.sharding import FlatModel
from gruppetto.numerics import CODECS, Codec, Fragmentation, encode_difference, encode_with_rest, inspect
from gruppetto.numerics.outer import OuterSetting
from gruppetto.protocol.actions import Apply, Fold, KeepRest, Publish, TakeOuterStep
from gruppetto.protocol.events import OuterStepped
from gruppetto.protocol.messages import Answer, ApplyMode
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.units import Fragment, Version
from gruppetto.runtime.intake import Body
from gruppetto.runtime.parameters import Parameters
from gruppetto.train.batches import Batches
from gruppetto.train.data import Data
from gruppetto.train.inner import adamw, learning_rate
from gruppetto.train.model import build
from gruppetto.train.setting import TrainSetting
from gruppetto.train.step import train_step

__all__ = ["VirtualLearner", "VirtualSyncer"]


class VirtualSyncer:
    """The syncer's hands: the parameters of the real service, without its threads and disk."""

    def __init__(
        self, parts: Fragmentation, rules: dict[str, str], outer: OuterSetting, *, uplink: Codec, downlink: Codec
    ) -> None:
        self.parts, self.uplink, self.downlink = parts, uplink, downlink
        self._parameters = Parameters(parts, rules=rules, outer=outer, downlink=downlink)

    def seed(self, weights: object) -> None:
        assert isinstance(weights, list)
        for p, theta in enumerate(weights):
            self._parameters.seed(Fragment(p), self._body(Fragment(p), theta.view(np.uint8), CODECS["fp32"]))

    def is_finite(self, contribution: object) -> bool:
        assert isinstance(contribution, Body)
        return contribution.inspection.finite

    def norms(self, contribution: object) -> tuple[float, ...]:
        assert isinstance(contribution, Body)
        return tuple(contribution.inspection.norm.tolist())

    def value_norms(self) -> tuple[tuple[float, ...], ...]:
        return self._parameters.value_norms()

    def fold(self, fold: Fold, contribution: object) -> float | None:
        assert isinstance(contribution, Body)
        return self._parameters.fold(fold.fragment, contribution, self.uplink, fold.weight, fold.caps)

    def outer_step(self, action: TakeOuterStep) -> OuterStepped:
        report = self._parameters.outer_step(action.fragments, action.round)
        return OuterStepped(round=action.round, zero=report.zero, not_finite=report.not_finite)

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
        return self.downlink.decode(body, self.parts.fragments[fragment].numel)

    def contribution(self, fragment: Fragment, payload: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Body:
        """What the gate would make of an uploaded body."""
        return self._body(fragment, payload, self.uplink)

    def take_apart(self, name: str, tensors: dict[str, Tensor]) -> list[Any]:
        """The published values, between two rounds: tensors under ``name``, and what is said beside them."""
        said = []
        for p in map(Fragment, range(self.parts.num_fragments)):
            value = self._parameters.current(p)
            assert value is not None
            arrays = [torch.from_numpy(values) for values in (value.theta, *value.outer_state)]
            said.append([value.version, take_apart(arrays, f"{name}.{p}", tensors)])
            self._parameters.release(value)
        return said

    def put_together(self, said: Sequence[Any], tensors: Mapping[str, Tensor]) -> None:
        """The inverse of :meth:`take_apart`."""
        for p, (version, arrays) in enumerate(said):
            theta, *outer_state = (values.numpy() for values in put_together(arrays, tensors))
            self._parameters.restore(Fragment(p), Version(version), theta, tuple(outer_state))

    def _version(self, fragment: Fragment) -> Version:
        value = self._parameters.current(fragment)
        assert value is not None
        self._parameters.release(value)
        return value.version

    def _body(self, fragment: Fragment, payload: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], codec: Codec) -> Body:
        seen = inspect(payload, codec, self.parts.fragments[fragment])
        return Body(payload.data, seen, lambda: None)


class VirtualLearner:
    """A learner's hands: model, optimizer, data, and the vectors of the real library."""

    def __init__(
        self,
        setting: TrainSetting,
        data: Data,
        protocol: ProtocolSetting,
        parts: Fragmentation,
        uplink: Codec,
        syncer: VirtualSyncer,
        *,
        factor: float,
        feedback: bool = True,
    ) -> None:
        """``feedback``: what an encoding leaves unsaid is said with the next contribution."""
        self._setting, self._data, self._factor = setting, data, np.float32(factor)
        assert protocol.rounds is not None
        self._rounds = protocol.rounds
        self._parts, self._uplink, self._syncer = parts, uplink, syncer
        self._feedback = feedback and factor == 1
        self._model = build(setting.model, data.tokenizer.vocab_size)
        self._optimizer = adamw(self._model, setting.inner)
        self._holdings = Holdings(FlatModel(self._model))
        self._holdings.cut(parts, ApplyMode(protocol.apply))
        self._batches: Batches | None = None

    def train(self, round: int, slot: int, cursor: int) -> tuple[int, int]:
        if self._batches is None:
            self._batches = Batches.of(self._data, self._setting, slot=slot, cursor=cursor)
        rate = learning_rate(self._setting.inner, round, self._rounds)
        batch = next(self._batches)
        self._holdings.before_write()
        result = train_step(self._model, self._optimizer, batch, rate=rate, clip_norm=self._setting.inner.clip_norm)
        return result.tokens, self._batches.cursor

    def seed(self) -> object:
        weights = []
        for p in range(self._parts.num_fragments):
            lease = self._holdings.seed_part(Fragment(p))
            weights.append(lease.values.copy())
            lease.release()
        return weights

    def snapshot(self, fragments: Sequence[Fragment]) -> None:
        self._holdings.take_snapshots(tuple(fragments))

    def contribution(self, answer: Answer) -> object:
        offer = self._holdings.offer(answer)
        if self.keeps_rest:
            left, owed = self._holdings.lend(answer.fragment), None if offer.rest is None else offer.rest.values
            payload = encode_with_rest(offer.base.values, offer.theta.values, owed, self._uplink, left.values)
            self._holdings.left(answer, left)
        elif self._factor == 1:
            payload = encode_difference(offer.base.values, offer.theta.values, self._uplink)
        else:
            payload = self._uplink.encode(self._factor * (offer.base.values - offer.theta.values))
        offer.release()
        return self._syncer.contribution(answer.fragment, payload)

    @property
    def keeps_rest(self) -> bool:
        return self._feedback and self._uplink.keeps_rest

    def keep_rest(self, action: KeepRest) -> None:
        self._holdings.keep_rest(action)

    def apply(self, action: Apply, value: object) -> None:
        if value is None:
            self._holdings.apply(action)
            return
        assert isinstance(value, np.ndarray)
        lease = self._holdings.lend(action.fragment)
        self._syncer.downlink.decode(value, len(lease.values), out=lease.values)
        self._holdings.arrive(action.fragment, action.version, lease)
        self._holdings.apply(action)

    def take_apart(self, name: str, tensors: dict[str, Tensor], *, vectors: bool = True) -> dict[str, Any]:
        """Model, optimizer, and the vectors of the library (or its bases alone): tensors under ``name``, and what is
        said beside them."""
        held = self._holdings.vectors()
        bases = {key: values for key, values in held.items() if key.startswith(("base.", "rest."))}
        parts = {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "vectors": held if vectors else bases,
        }
        slot = None if self._batches is None else self._batches.slot.slot
        return {"slot": slot, "state": take_apart(parts, name, tensors)}

    def put_together(self, said: Mapping[str, Any], tensors: Mapping[str, Tensor], *, cursor: int) -> None:
        """The inverse of :meth:`take_apart`; the next batch is the one at ``cursor``."""
        parts = put_together(said["state"], tensors)
        self._model.load_state_dict(parts["model"])
        self._optimizer.load_state_dict(parts["optimizer"])
        self._holdings.put_vectors(parts["vectors"])
        if said["slot"] is not None:
            self._batches = Batches.of(self._data, self._setting, slot=said["slot"], cursor=cursor)
