"""Who serves through a mailbox: one object, ``lease``, made with ``If-None-Match: *`` and changed with ``If-Match``.

Of several that want it one gets it, whatever clocks say: a lease counts as given up when it has not *changed* for
``lease_s`` of the watcher's own clock, in which the store has answered every look. Every change of hands begins a term,
and all names of a term have its number, so that whoever has lost his lease without knowing writes where nobody looks.

A lease is a seat, not a state. What makes a syncer the right one is its state directory: a later life of the same run
takes the seat at once; another run takes it when nobody has begun there, or the run there is over; and whoever waits
while the run goes on elsewhere can never go on with it, and says so when it matters.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress

import msgspec

from gruppetto.errors import AddressError, ConnectionLost, StateError, SteppedDown
from gruppetto.runtime.clock import Clock
from gruppetto.runtime.mailbox.bucket import Bucket, Conflict
from gruppetto.runtime.mailbox.endurance import Endurance
from gruppetto.runtime.mailbox.letters import MOST
from gruppetto.runtime.plausible import is_name

__all__ = [
    "LEASE",
    "LOOKS_A_LEASE",
    "MAX_LEASE_BYTES",
    "Lease",
    "SeatRemoved",
    "Tenure",
    "Watch",
    "decode_lease",
    "may_take",
]

_log = logging.getLogger("gruppetto.syncer")

LEASE = "lease"
MAX_LEASE_BYTES = 4096
FORMAT = "gruppetto mailbox 1"
LOOKS_A_LEASE = 3
"""A lease is renewed, and looked at by those that wait, so often within its time."""
MAX_LEASE_S = 86_400.0


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """What the one who serves says of himself. JSON: people look at it too."""

    format: str = FORMAT
    term: int
    holder: str
    """New for every process."""
    run_id: str
    epoch: int
    """Of the run's state."""
    beat: int = 0
    lease_s: float = 10.0
    begun: bool = False
    """The run has weights."""
    over: bool = False
    """It has reached its last round."""
    ended: bool = False
    """He has gone, in good order."""


_decoder = msgspec.json.Decoder(Lease)


def decode_lease(data: bytes, where: str) -> Lease:
    """Raises :class:`StateError` for what is none."""
    try:
        lease = _decoder.decode(data)
        plausible = lease.format == FORMAT and 0 < lease.term <= MOST and is_name(lease.run_id) and lease.epoch >= 0
        if not (plausible and 0 < lease.lease_s <= MAX_LEASE_S and len(lease.holder) <= 64):
            raise ValueError
    except (msgspec.MsgspecError, ValueError) as wrong:
        raise StateError("this is no mailbox of this version", where=where, fix="use another prefix") from wrong
    return lease


def may_take(lease: Lease, *, run_id: str, epoch: int, silent: bool, where: str) -> bool:
    """Whether the syncer of ``epoch`` of a run may take the seat now, or has to wait. ``silent``: the lease has not
    changed for its time. Raises :class:`StateError` when waiting is of no use.

    >>> held = Lease(term=3, holder="x", run_id="tour", epoch=2, begun=True)
    >>> may_take(held, run_id="tour", epoch=3, silent=False, where="")  # a later life of that state
    True
    >>> may_take(held, run_id="other", epoch=1, silent=False, where="")
    False
    >>> may_take(held, run_id="other", epoch=1, silent=True, where="s3://lab/tour")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    gruppetto.errors.StateError: s3://lab/tour: run tour was served here up to epoch 2, and is not in this state ...
    """
    if lease.run_id == run_id:
        if epoch > lease.epoch:
            return True
        raise StateError(
            f"run {run_id} is served here in epoch {lease.epoch}, and this state is of epoch {epoch}",
            where=where,
            fix="use the newest state directory of the run",
        )
    if not (silent or lease.ended):
        return False
    if lease.over or not lease.begun:
        return True
    raise StateError(
        f"run {lease.run_id} was served here up to epoch {lease.epoch}, and is not in this state directory",
        where=where,
        fix="start the syncer on that run's state directory, or use another prefix",
    )


class SeatRemoved(SteppedDown):
    """The bucket was emptied below us. Nobody has taken over: a next life of the same state serves in a clean place."""

    exit_code = 1


class Watch:
    """For how long something has not changed, as far as it could be seen.

    >>> watch = Watch()
    >>> watch.saw("a", 0.0), watch.saw("a", 4.0), watch.saw("b", 5.0), watch.saw("b", 7.0)
    (0.0, 4.0, 0.0, 2.0)
    >>> watch.missed()
    >>> watch.saw("b", 100.0)
    0.0
    """

    def __init__(self) -> None:
        self._seen: str | None = None
        self._since = 0.0

    def saw(self, what: str, now: float) -> float:
        """It is like this now; the seconds for which it has been."""
        if what != self._seen:
            self._seen, self._since = what, now
        return now - self._since

    def missed(self) -> None:
        """It could not be seen: counting begins anew."""
        self._seen = None


class Tenure:
    """The seat of one syncer. ``clock`` measures what others' leases are judged by."""

    def __init__(self, bucket: Bucket, *, run_id: str, epoch: int, lease_s: float, clock: Clock) -> None:
        self._bucket, self._clock = bucket, clock
        self._own = Lease(term=1, holder=secrets.token_hex(8), run_id=run_id, epoch=epoch, lease_s=lease_s)
        self._tag = ""

    @property
    def term(self) -> int:
        return self._own.term

    async def claim(self, stopping: asyncio.Event) -> bool:
        """Wait for the seat, and take it; False if we are to stop first. Raises :class:`StateError` where the run is
        one that this syncer cannot go on with, and :class:`AddressError`."""
        watch, endurance, told = Watch(), Endurance(_log), False
        while not stopping.is_set():
            pause_s = self._own.lease_s / LOOKS_A_LEASE
            try:
                lease = await self._try(watch)
            except ConnectionLost as wrong:
                endurance.missed(wrong)
                watch.missed()
            else:
                endurance.answered()
                if lease is None:
                    await self._check_store(endurance)
                    return True
                pause_s = min(pause_s, lease.lease_s / LOOKS_A_LEASE)
                if not told:
                    _log.warning("run %s is served through %s; this syncer waits", lease.run_id, self._bucket.where)
                told = True
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), pause_s)
        return False

    async def _check_store(self, endurance: Endurance) -> None:
        """A store that ignores conditions lets two have the seat. Raises :class:`AddressError`."""
        if not await endurance.tried(lambda: self._bucket.heeds_conditions(LEASE, self._spelled())):
            raise AddressError(
                "the store does not heed If-None-Match and If-Match",
                where=self._bucket.where,
                fix="use one that does, as Amazon S3",
            )

    async def _try(self, watch: Watch) -> Lease | None:
        """One try; the lease that is in the way, or None: the seat is ours."""
        while True:
            found, where = await self._bucket.get(LEASE, MAX_LEASE_BYTES), self._bucket.where
            try:
                if found is None:
                    self._own = msgspec.structs.replace(self._own, term=1)
                    self._tag = await self._bucket.put_new(LEASE, self._spelled())
                    return None
                lease, tag = decode_lease(found[0], where), found[1]
                if lease.holder == self._own.holder:  # the answer to an earlier try was lost
                    self._own, self._tag = lease, tag
                    return None
                silent = watch.saw(tag, self._clock.now()) >= lease.lease_s
                own = self._own
                if not may_take(lease, run_id=own.run_id, epoch=own.epoch, silent=silent, where=where):
                    return lease
                self._own = msgspec.structs.replace(own, term=lease.term + 1)
                self._tag = await self._bucket.put_if(LEASE, self._spelled(), tag)
                return None
            except Conflict:
                continue  # another one was quicker

    async def renew(self, *, begun: bool, over: bool, ended: bool = False) -> None:
        """Say that we are still here. Raises :class:`SteppedDown` when another one has the seat, :class:`SeatRemoved`
        when nobody has, and what the store raises: the lease then stands as it was, or as it should."""
        self._own = msgspec.structs.replace(self._own, beat=self._own.beat + 1, begun=begun, over=over, ended=ended)
        for _ in range(2):
            try:
                self._tag = await self._bucket.put_if(LEASE, self._spelled(), self._tag)
                return
            except Conflict:
                found = await self._bucket.get(LEASE, MAX_LEASE_BYTES)
                if found is None:
                    raise SeatRemoved(
                        f"the lease was removed from {self._bucket.where}, and maybe all beside it; "
                        "start this syncer again, on the same state: nothing that was merged is lost"
                    ) from None
                if decode_lease(found[0], self._bucket.where).holder != self._own.holder:
                    break
                self._tag = found[1]  # an earlier renewal has come through, and its answer has not
        raise SteppedDown(f"another syncer serves through {self._bucket.where} by now")

    async def end(self, *, begun: bool, over: bool) -> None:
        """Leave the seat, if it can be said at all."""
        with suppress(SteppedDown, StateError, ConnectionLost, AddressError):
            await self.renew(begun=begun, over=over, ended=True)

    def _spelled(self) -> bytes:
        return msgspec.json.encode(self._own)
