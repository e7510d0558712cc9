"""The tensors of one virtual learner: model, optimizer, and the vectors of the real library. Bytes in, bytes out.

It lives in the process that trains it: the run's own, or a worker (:mod:`gruppetto.train.virtual_workers`). Nothing
here knows of time, data or the other learners.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gruppetto.attach.holdings import Holdings
from gruppetto.attach.inner_state import InnerState, gather, kind_of, put_buffers, put_optimizer
from gruppetto.attach.part import put_together, take_apart
from gruppetto.attach.rewarm import Rewarm
from gruppetto.attach.sharding import FlatModel
from gruppetto.numerics import CODECS, encode_difference, encode_with_rest
from gruppetto.protocol.actions import Apply, KeepRest
from gruppetto.protocol.messages import Answer, ApplyMode
from gruppetto.protocol.units import Fragment
from gruppetto.runtime.cut import cut
from gruppetto.train.inner import adamw
from gruppetto.train.model import build
from gruppetto.train.setting import TrainSetting
from gruppetto.train.step import backward, update

__all__ = ["LearnerTensors", "Recipe"]

Octets = NDArray[np.uint8]


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What a learner is made of, as plain values."""

    setting: TrainSetting
    vocab_size: int
    fragments_asked: int
    fragmenter: str
    merge: tuple[tuple[str, str], ...]
    """How the model is cut, with ``fragments_asked`` and ``fragmenter``; by as many as came of that it may be cut in
    other places."""
    apply: ApplyMode
    uplink: str
    downlink: str
    feedback: bool
    """What a coarse uplink leaves unsaid is said with the next contribution."""
    rewarm_steps: int

    @property
    def keeps_rest(self) -> bool:
        """Its contributions leave something unsaid, and it is to be said later."""
        return self.feedback and CODECS[self.uplink].keeps_rest


class LearnerTensors:
    """One learner's. The same calls in the same order lead to the same bits, in any process of the machine."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._uplink, self._downlink = CODECS[recipe.uplink], CODECS[recipe.downlink]
        self._kept: dict[str, Tensor] | None = None
        self.begin()

    @property
    def keeps_rest(self) -> bool:
        return self._recipe.keeps_rest

    def begin(self) -> None:
        """As a new process; what was kept is on its disk still."""
        recipe = self._recipe
        self._model = self.make_model()
        self._optimizer = adamw(self._model, recipe.setting.inner)
        flat = FlatModel(self._model)
        self._holdings = Holdings(flat)
        self._holdings.cut(cut(flat.layout, recipe.fragments_asked, recipe.fragmenter, recipe.merge), recipe.apply)
        self._rewarm: Rewarm | None = None
        self._warmed = 0
        self._started: tuple[Tensor, bool] | None = None

    def make_model(self) -> nn.Module:
        """The model as it is at first, the same for all learners."""
        return build(self._recipe.setting.model, self._recipe.vocab_size)

    # ── a step ───────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, windows: NDArray[np.int64]) -> None:
        """A step begins on these windows; their gradients may be taken at any time before it ends."""
        self._started = torch.from_numpy(windows), False

    def compute(self) -> bool:
        """Take the gradients of the step in progress; False if there is nothing to do."""
        if self._started is None or self._started[1]:
            return False
        windows, _ = self._started
        backward(self._model, (windows, windows))
        self._started = windows, True
        return True

    def train(self, rate: float) -> None:
        """The step ends, at this learning rate; a fresh optimizer in mid-run is warmed up."""
        self.compute()
        self._started = None
        if self._rewarm is not None:
            rate *= self._rewarm.factor
            self._rewarm.after_step()
            self._warmed += 1
        self._holdings.before_write()
        update(self._model, self._optimizer, rate=rate, clip_norm=self._recipe.setting.inner.clip_norm)

    # ── what the core wants ──────────────────────────────────────────────────────────────────────────────────────

    def seed(self) -> list[Octets]:
        """The first weights, a float32 body for each fragment."""
        weights = []
        for p in range(self._holdings.model.num_fragments):
            lease = self._holdings.seed_part(Fragment(p))
            weights.append(lease.values.copy().view(np.uint8))
            lease.release()
        return weights

    def snapshot(self, fragments: Sequence[int]) -> None:
        self._holdings.take_snapshots(tuple(map(Fragment, fragments)))

    def contribution(self, answer: Answer, factor: float) -> Callable[[], Octets]:
        """The encoded difference of base and snapshot, ``factor`` times as large; for whoever calls for it later."""
        offer = self._holdings.offer(answer)
        base, theta = offer.base.values, offer.theta.values
        if self._recipe.keeps_rest:
            if factor != 1:
                theta = base - np.float32(factor) * (base - theta)
            left, owed = self._holdings.lend(answer.fragment), None if offer.rest is None else offer.rest.values
            payload = encode_with_rest(base, theta, owed, self._uplink, left.values)
            self._holdings.left(answer, left)
        elif factor == 1:
            payload = encode_difference(base, theta, self._uplink)
        else:
            payload = self._uplink.encode(np.float32(factor) * (base - theta))
        offer.release()
        return lambda: payload

    def keep_rest(self, action: KeepRest) -> None:
        """That contribution has counted: what is left of it is said with the next one."""
        self._holdings.keep_rest(action)

    def drop_rests(self) -> None:
        """Nothing is owed."""
        self._holdings.drop_rests()

    def apply(self, action: Apply, value: NDArray[Any] | None) -> None:
        """``value``: what has arrived, in the downlink's encoding, or a base as float32; None: the base held before."""
        if value is not None:
            lease = self._holdings.lend(action.fragment)
            if value.dtype == np.float32:
                lease.values[:] = value
            else:
                self._downlink.decode(value, len(lease.values), out=lease.values)
            self._holdings.arrive(action.fragment, action.version, lease)
        self._holdings.apply(action)

    # ── states for others, and for itself ────────────────────────────────────────────────────────────────────────

    def cut(self) -> Octets:
        """Optimizer state, buffers and bases as they are now."""
        return np.frombuffer(safetensors.torch.save(self._state()), np.uint8)

    def keep(self) -> None:
        """Save them for the worst case; they replace what was kept before."""
        self._kept = {name: values.clone() for name, values in self._state().items()}

    def adopt(self, source: str, state: Octets | None, bases: Sequence[int]) -> list[NDArray[np.float32]]:
        """Go on with that optimizer: of a peer's cut, of what was kept, or fresh, with a ramp of its rate.

        The values of ``bases``, as they lie in that state. The parameters stay: they become Θ when bases are applied.
        """
        if source == "syncer":
            self._rewarm, self._warmed = Rewarm(None, steps=self._recipe.rewarm_steps), 0
            return []
        found = self._kept if state is None else safetensors.torch.load(state.tobytes())
        assert found is not None
        inner = InnerState(kind=kind_of(self._optimizer))
        for name, values in found.items():
            part, _, rest = name.partition("|")
            parameter, _, key = rest.rpartition("|")
            if part == "optimizer":
                inner.tensors[parameter, key] = values
            elif part == "buffer":
                inner.buffers[key] = values
        put_optimizer(self._model, self._optimizer, inner)
        put_buffers(self._model, inner.buffers)
        return [found[f"base||{p}"].numpy() for p in bases]

    def _state(self) -> dict[str, Tensor]:
        inner = gather(self._model, self._optimizer)
        bases = self._holdings.hold_bases()
        state = {f"base||{p}": torch.from_numpy(lease.values.copy()) for p, lease in bases}
        for _, lease in bases:
            lease.release()
        state |= {f"optimizer|{name}|{key}": values for (name, key), values in inner.tensors.items()}
        state |= {f"buffer||{name}": values for name, values in inner.buffers.items()}
        return state

    # ── on disk ──────────────────────────────────────────────────────────────────────────────────────────────────

    def take_apart(self, vectors: bool) -> tuple[Any, Octets]:
        """All of it, or without the vectors in use: what is said of it, and the tensors as one file."""
        held = self._holdings.vectors()
        parts = {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "vectors": held if vectors else {key: v for key, v in held.items() if key.startswith(("base.", "rest."))},
            "kept": self._kept,
            "warmed": None if self._rewarm is None else self._warmed,
            "started": self._started is not None and self._started[0],
        }
        tensors: dict[str, Tensor] = {}
        said = take_apart(parts, "", tensors)
        return said, np.frombuffer(safetensors.torch.save(tensors), np.uint8)

    def put_together(self, said: Any, tensors: Octets) -> None:
        """The inverse of :meth:`take_apart`."""
        parts = put_together(said, safetensors.torch.load(tensors.tobytes()))
        self.begin()
        self._model.load_state_dict(parts["model"])
        self._optimizer.load_state_dict(parts["optimizer"])
        self._holdings.put_vectors(parts["vectors"])
        self._kept = parts["kept"]
        if parts["warmed"] is not None:
            self._rewarm, self._warmed = Rewarm(None, steps=self._recipe.rewarm_steps), parts["warmed"]
            for _ in range(self._warmed):
                self._rewarm.after_step()
        # Its gradients may have been taken before the cut: they are taken again.
        self._started = None if parts["started"] is False else (parts["started"], False)
