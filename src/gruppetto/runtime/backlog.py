"""What a learner still has to send and to fetch. All of it is coalesced or bounded: a slow link never fills memory.

No locks and no I/O: its owner calls it with a lock of its own held.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from gruppetto.protocol.messages import Answer, Applied, Deferred, Marked, Progress
from gruppetto.protocol.units import Fragment, Version
from gruppetto.runtime.leases import Lease
from gruppetto.runtime.wire import MAX_METRICS, ProgressFrame, RecoveryNote

__all__ = ["Backlog", "Offer", "SeedPart"]

MAX_DEFERRED = 64
"""One is sent per ask; when the link is slow the oldest are worthless first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A contribution to be encoded and uploaded: Δ = base − theta, and the ``rest`` that is owed, if any. Holds all."""

    answer: Answer
    base: Lease
    theta: Lease
    rest: Lease | None = None

    def release(self) -> None:
        self.base.release()
        self.theta.release()
        if self.rest is not None:
            self.rest.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedPart:
    """The initial weights of one fragment, to be uploaded. Holds them."""

    fragment: Fragment
    theta: Lease

    def release(self) -> None:
        self.theta.release()


class Backlog:
    """Waiting frames, uploads and downloads of one learner.

    Of several Progress messages the newest goes, with the ``applied`` of all. Of several offers or wanted versions of
    one fragment the newest counts.
    """

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._applied: list[Applied] = []
        self._last_applied: dict[Fragment, Applied] = {}
        self._metrics: dict[str, float] = {}
        self._recovery: RecoveryNote | None = None
        self._deferred: deque[Deferred] = deque(maxlen=MAX_DEFERRED)
        self._marked: Marked | None = None
        self._offers: dict[Fragment, Offer] = {}
        self._seeds: deque[SeedPart] = deque()
        self._uploading = 0
        self._wanted: dict[Fragment, Version] = {}
        self._pulling: set[Fragment] = set()

    # ── to be said ───────────────────────────────────────────────────────────────────────────────────────────────

    def report(self, progress: Progress) -> None:
        """Send this instead of the one that waits."""
        for applied in progress.applied:
            self._last_applied[applied.fragment] = applied
        self._applied += progress.applied
        if len(self._applied) > 2 * len(self._last_applied):
            # Booking only the last one of each fragment gives the same totals.
            self._applied = list(self._last_applied.values())
        self._progress = progress

    def note(self, metrics: dict[str, float]) -> None:
        """Numbers to go with the next Progress; of too many, the oldest stay away."""
        self._metrics |= metrics
        for name in list(self._metrics)[:-MAX_METRICS]:
            del self._metrics[name]

    def tell_recovery(self, note: RecoveryNote) -> None:
        """To go with the next Progress too."""
        self._recovery = note

    def defer(self, deferred: Deferred) -> None:
        """Tell the syncer that an answer will come later."""
        self._deferred.append(deferred)

    def mark(self, marked: Marked) -> None:
        """Answer a checkpoint's marker. There is one checkpoint at a time: an answer to an older one is worthless."""
        self._marked = marked

    def take_frames(self) -> list[Deferred | Marked | ProgressFrame]:
        """All that can be said now."""
        frames: list[Deferred | Marked | ProgressFrame] = list(self._deferred)
        self._deferred.clear()
        if self._marked is not None:
            frames.append(self._marked)
            self._marked = None
        if self._progress is not None:
            progress = replace(self._progress, applied=tuple(self._applied))
            frames.append(ProgressFrame(progress=progress, metrics=self._metrics, recovery=self._recovery))
            self._progress, self._applied, self._metrics, self._recovery = None, [], {}, None
        return frames

    # ── to be moved ──────────────────────────────────────────────────────────────────────────────────────────────

    def offer(self, offer: Offer) -> None:
        """Upload this contribution. Takes over its holds."""
        older = self._offers.pop(offer.answer.fragment, None)
        if older is not None:
            older.release()
        self._offers[offer.answer.fragment] = offer

    def seed(self, part: SeedPart) -> None:
        """Upload these initial weights. Takes over the hold."""
        self._seeds.append(part)

    def next_upload(self) -> Offer | SeedPart | None:
        """The next to be uploaded; its holds go to the caller, who says :meth:`uploaded` at the end."""
        job: Offer | SeedPart | None = None
        if self._seeds:
            job = self._seeds.popleft()
        else:
            # The syncer's books must know of the base before they hear of work on top of it.
            untold = {applied.fragment for applied in self._applied}
            fragment = next((f for f in self._offers if f not in untold), None)
            job = None if fragment is None else self._offers.pop(fragment)
        self._uploading += job is not None
        return job

    def uploaded(self) -> None:
        """An upload has ended, well or not."""
        self._uploading -= 1

    def want(self, fragment: Fragment, version: Version) -> None:
        """Download this version."""
        self._wanted[fragment] = version

    def next_pull(self) -> tuple[Fragment, Version] | None:
        """A fragment to be downloaded, never one that is on its way; the caller says :meth:`pulled` at the end."""
        fragment = next((f for f in self._wanted if f not in self._pulling), None)
        if fragment is None:
            return None
        self._pulling.add(fragment)
        return fragment, self._wanted.pop(fragment)

    def pulled(self, fragment: Fragment) -> None:
        """A download has ended, well or not."""
        self._pulling.discard(fragment)

    @property
    def coming(self) -> set[Fragment]:
        """Fragments wanted or on their way here."""
        return self._wanted.keys() | self._pulling

    @property
    def downloads(self) -> int:
        """How many these are."""
        return len(self.coming)

    @property
    def uploads(self) -> int:
        """Vectors waiting to go or on their way."""
        return len(self._offers) + len(self._seeds) + self._uploading

    # ── the link ─────────────────────────────────────────────────────────────────────────────────────────────────

    def link_down(self) -> None:
        """Forget what belonged to the connection. What was applied is told again: it may have been lost with it."""
        self._progress = None
        self._deferred.clear()
        self._wanted.clear()
        for offer in self._offers.values():
            offer.release()
        for part in self._seeds:
            part.release()
        self._offers.clear()
        self._seeds.clear()
        self._applied = list(self._last_applied.values())

    def new_life(self) -> None:
        """What was applied before belongs to an account that is closed."""
        self._applied, self._last_applied = [], {}
        self._marked = None
