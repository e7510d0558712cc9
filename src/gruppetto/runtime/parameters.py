"""The tensors of the service: Θ, the outer optimizer's memory, and the running merges.

Nobody ever reads a value while it is written. The outer step works on copies in spare buffers; they become the current
value only at ``publish``, after they are durable, and the buffers of the old value are used again once its last reader
has gone. A result that is not finite is thrown away with its momentum.

Where values travel as steps, each outer step is taken in the words in which it is published
(:mod:`gruppetto.numerics.downlink`): a byte an element more for what is left unsaid, which is durable too, and one
payload a fragment, for as long as the value is the newest.

``fold`` and ``outer_step`` belong to one worker thread, everything else to the thread of the service.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import SettingError
from gruppetto.numerics.accumulate import GATHERING, MOST_GATHERED_BYTES, Accumulator
from gruppetto.numerics.codec import CODECS, Codec
from gruppetto.numerics.direction import cosine
from gruppetto.numerics.downlink import REST, Downlink, Kept, take_step
from gruppetto.numerics.fragments import Fragmentation, FragmentSpec
from gruppetto.numerics.kernels import Float32
from gruppetto.numerics.outer import OUTER_OPTIMIZERS, OuterSetting, OuterState
from gruppetto.protocol.units import Fragment, Round, Version
from gruppetto.runtime.intake import Body
from gruppetto.runtime.wire import checksum

__all__ = ["Parameters", "Step", "StepReport", "Value"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """The difference between two published values of a fragment, known by the CRC-32 of the first one's float32."""

    base: int
    body: NDArray[np.uint8]
    checksum: int


@dataclass(slots=True, kw_only=True, eq=False)
class Value:
    """One version of one fragment: flat float32 [numel], and the body that learners download."""

    version: Version
    theta: Float32
    outer_state: OuterState
    body: NDArray[np.uint8]
    """Θ whole, in the downlink's encoding; with fp32 the very bytes of ``theta``."""
    checksum: int
    rest: NDArray[np.uint8] | None = None
    """What the steps up to here have left unsaid, where values travel as steps, in the words of ``REST``; None:
    nothing."""
    step: Step | None = None
    """How it is made from the value before; None where nobody can know that one: with the first of a life."""
    readers: int = 0
    retired: bool = False

    @property
    def kept(self) -> Kept:
        """What has to be durable beside Θ: :meth:`Parameters.restore` knows what is what."""
        return self.outer_state if self.rest is None else (*self.outer_state, self.rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What came of the outer steps of a round."""

    zero: tuple[Fragment, ...]
    not_finite: tuple[Fragment, ...]
    degenerate: tuple[str, ...]
    """Large tensors whose gradients cancelled exactly."""
    merged_norm: float
    """Of the merged gradients of all fragments together."""
    update_norm: float


class Parameters:
    """All fragments of a run."""

    def __init__(
        self,
        parts: Fragmentation,
        *,
        rules: Mapping[str, str],
        outer: OuterSetting,
        downlink: Downlink,
        allocate: Callable[[int], Float32] | None = None,
    ) -> None:
        """``allocate``: makes room for what is published, of so many elements; None: ordinary memory."""
        self.parts, self.outer, self.downlink = parts, outer, downlink
        self._rules = rules
        self._current: dict[Fragment, Value] = {}
        self._next: dict[Fragment, Value] = {}
        self._merges: dict[Fragment, Accumulator] = {}
        kept = 2 if downlink.steps is None else 3
        self._spares = _Spares(most_kept=2 + kept * len(parts.fragments))
        self._published = _Spares(most_kept=2 + len(parts.fragments), allocate=allocate)
        """For Θ itself, and its encoding where that is another one."""
        self._norms: dict[Fragment, float] = {}
        """Of the values that this life began with."""

    @property
    def seeded(self) -> bool:
        """Every fragment has a published value."""
        return len(self._current) == len(self.parts.fragments)

    def spec(self, fragment: Fragment) -> FragmentSpec:
        return self.parts.fragments[fragment]

    # ── the values ───────────────────────────────────────────────────────────────────────────────────────────────

    def current(self, fragment: Fragment) -> Value | None:
        """The published value, borrowed: give it back with :meth:`release`."""
        value = self._current.get(fragment)
        if value is not None:
            value.readers += 1
        return value

    def release(self, value: Value) -> None:
        """A reader has gone."""
        value.readers -= 1
        self._recycle(value)

    def seed(self, fragment: Fragment, body: Body) -> None:
        """Take initial weights as version 0, to be published with all others."""
        self._norms[fragment] = float(np.sqrt(body.inspection.norm_sq.sum()))
        theta = self._published.copy_of(np.frombuffer(body.payload, "<f4"))
        self._next[fragment] = self._value(Version(0), theta, self._memory(theta))

    def forget_seed(self) -> None:
        self._next.clear()

    def value_norms(self) -> tuple[tuple[float, ...], ...]:
        """√numel · RMS of each piece: its norm if all elements of its fragment were of one size.

        By the fragment's mean square rather than the piece's own, since a piece may begin at zero; where the whole
        fragment does, by that of the model.
        """
        of_model = math.hypot(*self._norms.values()) / math.sqrt(sum(spec.numel for spec in self.parts.fragments))
        found = []
        for p, spec in enumerate(self.parts.fragments):
            size = self._norms[Fragment(p)] / math.sqrt(max(1, spec.numel)) or of_model
            found.append(tuple(size * math.sqrt(piece.numel) for piece in spec.pieces))
        return tuple(found)

    def check_gathering(self, most_folds: int) -> None:
        """Raises :class:`SettingError` if so many contributions to one fragment are more than may be gathered."""
        for spec in self.parts.fragments:
            gathered = sum(piece.numel for piece in spec.pieces if self._rules[piece.name] in GATHERING)
            gathered_bytes = 4 * gathered * most_folds
            if gathered_bytes > MOST_GATHERED_BYTES:
                names = sorted({piece.name for piece in spec.pieces if self._rules[piece.name] in GATHERING})
                raise SettingError(
                    f"{names[0]!r} and others would gather {gathered_bytes / 2**30:.0f} GiB from {most_folds} learners",
                    where="merge.rules",
                    fix="use clipped-rda, more fragments, or a smaller run.num_slots",
                )

    @property
    def seed_is_complete(self) -> bool:
        return len(self._next) == len(self.parts.fragments)

    def restore(self, fragment: Fragment, version: Version, theta: Float32, kept: Kept) -> None:
        """Take a value that is durable already as the current one, with all that :attr:`Value.kept` made of it."""
        parts = len(self._memory(theta[:0]))
        # What was read from a file is not ours to write.
        own = tuple(self._spares.copy_of(cast(Float32, part)) for part in kept[:parts])
        value = self._value(version, self._published.copy_of(theta), own)
        if kept[parts:] and self.downlink.steps is not None:  # or it was written when values travelled otherwise
            value.rest = self._room_for_rest(theta.size)
            if kept[-1].dtype == np.float32:  # by a version that kept every bit of it
                REST.encode(cast(Float32, kept[-1]), value.rest)
            else:
                value.rest[:] = kept[-1]
        self._current[fragment] = value
        self._norms[fragment] = float(np.linalg.norm(theta))

    def pending(self, fragments: Iterable[Fragment]) -> dict[Fragment, tuple[Float32, Kept]]:
        """The newest values of these fragments, to be made durable: those that the outer steps have just made, or those
        that are published already."""
        values = {p: self._next.get(p) or self._current[p] for p in fragments}
        return {p: (value.theta, value.kept) for p, value in values.items()}

    def publish(self, versions: Iterable[tuple[Fragment, Version]]) -> None:
        """The new values become the current ones, all at once; where there is none, the current one gets a new version.
        Only when the last commit allows it."""
        for p, version in versions:
            if p not in self._next:
                self._current[p].version = version
                continue
            old, self._current[p] = self._current.get(p), self._next.pop(p)
            if old is not None:
                old.retired = True
                self._recycle(old)

    # ── the worker thread ────────────────────────────────────────────────────────────────────────────────────────

    def fold(
        self,
        fragment: Fragment,
        body: Body,
        codec: Codec,
        weight: float,
        caps: Sequence[tuple[int, float]] = (),
    ) -> float | None:
        """Fold a contribution into the running merge of its fragment; returns its cosine against the momentum."""
        merge = self._merges.get(fragment)
        if merge is None:
            spec = self.spec(fragment)
            rules = [self._rules[piece.name] for piece in spec.pieces]
            merge = Accumulator(spec, rules, self._spares.take(spec.numel))
            self._merges[fragment] = merge
        stats = merge.fold_encoded(body.payload, codec, weight, body.inspection, caps)
        assert stats.finite, "the gate lets nothing else in"
        # The first part of an outer optimizer's memory is its momentum, if it has any.
        momentum = self._optimizer_part(self._current[fragment].outer_state)[:1]
        return cosine(body.payload, codec, momentum[0]) if momentum else None

    def outer_step(self, fragments: Iterable[Fragment], round: Round) -> StepReport:
        """Close the running merges and take one outer step on each."""
        zero: list[Fragment] = []
        not_finite: list[Fragment] = []
        degenerate: list[str] = []
        merged_sq = update_sq = 0.0
        lr = self.outer.lr_at(round)
        for p in fragments:
            merge, old = self._merges.pop(p), self._current[p]
            theta = self._published.copy_of(old.theta)
            outer_state = tuple(self._spares.copy_of(part) for part in old.outer_state)
            optimizer = self._optimizer_part(outer_state)
            stats = merge.outer_step(theta, optimizer, self.outer.optimizer, lr, self.outer.momentum)
            if self.outer.averages and stats.finite:
                self.outer.average(outer_state[-1], theta, round)
            self._spares.put(merge.room)
            degenerate += stats.degenerate
            if not stats.finite:
                not_finite.append(p)
                self._drop(theta, outer_state)
                continue
            said = self._say(old, theta)
            if said is None:
                not_finite.append(p)
                self._drop(theta, outer_state)
                continue
            if stats.zero:
                zero.append(p)
            merged_sq += float(np.square(stats.merged_norm).sum())
            update_sq += stats.update_norm**2
            self._next[p] = self._value(Version(round), theta, outer_state)
            self._next[p].step, self._next[p].rest = said
        return StepReport(
            zero=tuple(zero),
            not_finite=tuple(not_finite),
            degenerate=tuple(degenerate),
            merged_norm=merged_sq**0.5,
            update_norm=update_sq**0.5,
        )

    # ── small parts ──────────────────────────────────────────────────────────────────────────────────────────────

    def _memory(self, theta: Float32) -> OuterState:
        """What is kept beside a value at first: the optimizer's memory, and the mean of values if there is one."""
        memory = OUTER_OPTIMIZERS[self.outer.optimizer].init(theta)
        return (*memory, np.zeros_like(theta)) if self.outer.averages else memory

    def _optimizer_part(self, memory: OuterState) -> OuterState:
        return memory[:-1] if self.outer.averages else memory

    def _say(self, old: Value, theta: Float32) -> tuple[Step | None, NDArray[np.uint8] | None] | None:
        """Make of ``theta`` what the words of a step say, if values travel as steps; the step, and what it leaves
        unsaid. None: it would not be finite."""
        if self.downlink.steps is None:
            return None, None
        left = self._room_for_rest(theta.size)
        body, _, is_finite = take_step(old.theta, theta, old.rest, self.downlink.steps, left)
        if not is_finite:
            self._spares.put(left)
            return None
        return Step(base=old.checksum, body=body, checksum=checksum(body)), left

    def _room_for_rest(self, numel: int) -> NDArray[np.uint8]:
        return self._spares.take_bytes(REST.payload_bytes(numel))

    def _value(self, version: Version, theta: Float32, outer_state: OuterState) -> Value:
        body, whole = theta.view(np.uint8), self.downlink.whole
        if whole is not CODECS["fp32"]:
            body = whole.encode(theta, self._published.take_bytes(whole.payload_bytes(theta.size)))
        return Value(version=version, theta=theta, outer_state=outer_state, body=body, checksum=checksum(body))

    def _recycle(self, value: Value) -> None:
        if value.retired and value.readers == 0:
            self._drop(value.theta, value.kept)
            if self.downlink.whole is not CODECS["fp32"]:
                self._published.put(value.body)

    def _drop(self, theta: Float32, kept: Kept) -> None:
        self._published.put(theta)
        self._spares.put(*kept)


class _Spares:
    """Buffers to be used again: touching fresh memory costs three times as much as writing to it.

    A buffer may be somewhat larger than what it holds, since no two fragments are quite the same size.
    """

    WASTE = 1.25

    def __init__(self, most_kept: int, allocate: Callable[[int], Float32] | None = None) -> None:
        self._most_kept, self._allocate = most_kept, allocate
        self._buffers: list[Float32] = []
        self._lock = Lock()

    def copy_of(self, values: Float32) -> Float32:
        copy = self.take(values.size)
        copy[:] = values
        return copy

    def take(self, numel: int) -> Float32:
        """Room with arbitrary content."""
        return self._take(numel)[:numel]

    def take_bytes(self, num_bytes: int) -> NDArray[np.uint8]:
        """The same for bytes."""
        return self.take(-(-num_bytes // 4)).view(np.uint8)[:num_bytes]

    def put(self, *arrays: Float32 | NDArray[np.uint8]) -> None:
        """Whatever was taken from here and nobody reads any more."""
        with self._lock:
            self._buffers += [cast(Float32, array if array.base is None else array.base) for array in arrays]
            del self._buffers[: -self._most_kept]

    def _take(self, numel: int) -> Float32:
        with self._lock:
            fitting = [i for i, b in enumerate(self._buffers) if numel <= b.size <= self.WASTE * numel]
            if fitting:
                return self._buffers.pop(min(fitting, key=lambda i: self._buffers[i].size))
        return np.empty(numel, np.float32) if self._allocate is None else self._allocate(numel)
