"""The syncer of a local run and, if one is wanted, the standby beside it: two seats, of which one is in charge.

A seat has an address that stays, and a process that may change. Who is in charge is written in the state directory. A
run that has begun gets no second first syncer: with a standby about, every process that is started from then on waits
its turn, and the turn comes at once when nobody serves. So it does not matter who died first, or how many.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gruppetto.config import RunConfig
from gruppetto.errors import AddressError, GruppettoError
from gruppetto.launch.ask import TIMEOUT_S, fetch_status, find_endpoint, is_standby
from gruppetto.launch.children import Child, stop
from gruppetto.launch.engine import Engine
from gruppetto.launch.papers import looker_papers
from gruppetto.launch.ports import free_port
from gruppetto.launch.revival import Revival
from gruppetto.launch.routes import Routes
from gruppetto.numerics.deal import ONE, Shard
from gruppetto.report.rundir import RUN
from gruppetto.runtime.authority import Authority
from gruppetto.runtime.setting import host_and_port

__all__ = ["STANDBY", "SYNCER", "Seat", "Syncers", "suffix_of"]

SYNCER, STANDBY = "syncer", "standby"
PAGE = "/dashboard/"


@dataclass(slots=True, kw_only=True, eq=False)
class Seat:
    """Where a syncer sits: ``name`` is that of its log, not of what it does."""

    name: str
    suffix: str = ""
    """Which shard's it is, if not the first one's."""
    listen: str = ""
    """HOST:PORT; empty: as the settings say."""
    url: str = ""
    child: Child | None = None
    waits: bool = False
    """Its process has been heard waiting: it would take over."""
    served: bool = False
    """Its process has been in charge."""

    @property
    def running(self) -> bool:
        return self.child is not None and self.child.running

    @property
    def doing(self) -> str:
        """What its process does while another one is in charge: one that served will find itself replaced, and end."""
        return "replaced" if self.served else "waiting" if self.waits else "starting"

    @property
    def role(self) -> str:
        """What its process is, or was when it died."""
        waited = not self.served and (self.waits or self.name.startswith(STANDBY))
        return f"{STANDBY if waited else SYNCER}{self.suffix}"


class Syncers:
    """The syncers of one shard of the run in ``directory``, which mostly has no other. Raises :class:`AddressError` if
    no port is free for two.

    ``announced_at``: the addresses of the first shard; "" for it.
    """

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        routes: Routes,
        engine: Engine,
        *,
        shard: Shard = ONE,
        announced_at: str = "",
    ) -> None:
        self._config, self._directory, self._routes, self._engine = config, directory, routes, engine
        self._papers = looker_papers(config.syncer.certs, config.syncer.token_file)
        self._shard, self._announced_at = shard, announced_at
        self._suffix = suffix_of(shard)
        self.state = directory / f"{config.syncer.state}{self._suffix}"
        self.seats = [Seat(name=SYNCER)]
        if engine.host:
            _, port = host_and_port(config.syncer.listen)
            names = (SYNCER, STANDBY) if config.launch.standby else (SYNCER,)
            self.seats = [Seat(name=name, listen=f"{engine.host}:{port}") for name in names]
        elif config.launch.standby or not shard.is_whole:
            host, port = host_and_port(config.syncer.listen)
            self.seats = [self._seat(SYNCER, host, port + shard.number - 1 if port else 0)]
            if config.launch.standby:
                self.seats.append(self._seat(STANDBY, host, 0))
        self._in_charge = self.seats[0]
        """Who was, when somebody last said that he is."""
        self.page = ""
        """Where whoever was in charge then shows the run."""

    @property
    def address(self) -> str:
        """How learners find whoever is in charge: all addresses, or the directory in which the one syncer says its."""
        if len(self.seats) == 1 or not all(seat.url for seat in self.seats):
            return str(self.state)
        return self.urls

    @property
    def urls(self) -> str:
        """All addresses, with commas between them."""
        return ",".join(seat.url for seat in self.seats)

    @property
    def first(self) -> Seat:
        """Who is in charge; while nobody is, who is likely to be next."""
        return next((seat for seat in (self._in_charge, *self.seats) if seat.running), self._in_charge)

    @property
    def other(self) -> Seat | None:
        return next((seat for seat in self.seats if seat is not self.first), None)

    @property
    def url(self) -> str:
        """Where whoever is in charge said that he listens; "" until it has been heard."""
        return self.page.removesuffix(PAGE)

    @property
    def running(self) -> bool:
        return any(seat.running for seat in self.seats)

    def children(self) -> Iterator[Child]:
        return (seat.child for seat in self.seats if seat.child is not None)

    def start(self) -> None:
        """The first one, and one that waits."""
        for seat in self.seats:
            self._start(seat, waits=seat.name.startswith(STANDBY))

    def mend(self, revival: Revival, *, finished: bool) -> None:
        """See who has died, and put another process into the seat whose time has come. A ``finished`` run needs one
        that serves its weights, and nobody who waits."""
        for seat in self.seats:
            if seat.child is None:
                continue
            if seat.running and (seat.waits or seat.served):
                revival.took_part(seat)
            if revival.newly_dead(seat.child):
                revival.mourn(seat, seat.child, seat.role, heir=self._without(seat))
            if revival.is_due(seat) and not (finished and self.running):
                revival.make_way(seat, seat.child)
                self._start(seat, waits=len(self.seats) > 1 and Authority(self.state).newest() > 0)
                revival.started(seat)

    def lost(self, revival: Revival) -> str:
        """What is to be said when all are dead for good; "" while there is hope."""
        seat = self.first
        if seat.child is None or self.running or any(map(revival.hopes_for, self.seats)):
            return ""
        because = f" ({why})" if (why := revival.given_up(seat)) else ""
        who = "the syncer" if self._shard.is_whole else f"shard {self._shard} of the syncer"
        return f"{who} is {seat.child.state}{because}"

    def ask(self, timeout_s: float = TIMEOUT_S) -> dict[str, Any] | None:
        """How the run stands, from whoever is in charge; None while nobody answers: busy, or dead, which its exit code
        says better."""
        endpoint = find_endpoint(self.state)
        for seat in self.seats:
            if endpoint is None or seat.child is None or seat.child.process.pid != endpoint.pid:
                continue
            seat.served, self._in_charge = True, seat
            with suppress(GruppettoError):
                status = fetch_status(endpoint.url, token=self._papers.token, tls=self._papers.tls, timeout_s=timeout_s)
                self.page = f"{endpoint.url}{PAGE}"
                return status
        return None

    def listen_for_standby(self) -> None:
        """Find out whether the one that is to wait has come so far."""
        for seat in self.seats:
            if len(self.seats) > 1 and seat.running and not (seat.waits or seat.served):
                # One without an address of its own is asked by nobody: as soon as it runs, it waits.
                unasked = seat.child is not None and not seat.child.process.waits
                seat.waits = is_standby(seat.url, tls=self._papers.tls) if seat.url else unasked

    def stop(self) -> None:
        """First those who wait: nobody is to take over from who is told to stop."""
        stop(seat.child for seat in self.seats if seat.child is not None and not seat.served)
        stop(self.children())

    def _start(self, seat: Seat, *, waits: bool) -> None:
        verb = ["syncer", str(self._directory / RUN), "--state", str(self.state)]
        verb += ["--trace", str(self._directory / f"trace{self._suffix}.jsonl"), *(["--standby"] if waits else [])]
        if not self._shard.is_whole:
            verb += ["--shard", str(self._shard)]
        if self._announced_at:
            verb += ["--directory", self._announced_at]
        endpoint = find_endpoint(self.state)
        listen = seat.listen
        if not listen and endpoint is not None:
            # Learners dial the address of the one before.
            listen = endpoint.url.rpartition("//")[2]
        if listen:
            verb += ["--listen", listen]
        command = self._routes.command(f"{SYNCER}{self._suffix}", [*verb, "--follow-parent"])
        seat.child = self._engine.start(seat.name, command, self._directory / f"{seat.name}.log", threads=1)
        seat.waits = seat.served = False

    def _without(self, dead: Seat) -> str:
        """How the run does without it; "" if it cannot."""
        if not self.running:
            return ""
        return "the syncer goes on" if dead.role.startswith(STANDBY) else "a standby is there"

    def _seat(self, name: str, host: str, port: int) -> Seat:
        shown = f"[{host}]" if ":" in host else host
        listen = f"{shown}:{port or _free_port(host)}"
        place = self._config.syncer
        scheme = "http" if place.tls_cert is None and place.certs is None else "https"
        return Seat(name=f"{name}{self._suffix}", suffix=self._suffix, listen=listen, url=f"{scheme}://{listen}")


def suffix_of(shard: Shard) -> str:
    """What the names of a shard's state, trace and log end in.

    >>> [suffix_of(Shard(number=number, of=2)) for number in (1, 2)]
    ['', '-2']
    """
    return "" if shard.number == 1 else f"-{shard.number}"


def _free_port(host: str) -> int:
    """Of a host of this machine, at this moment."""
    try:
        return free_port(host)
    except OSError as wrong:
        raise AddressError(
            f"cannot be listened on ({wrong.strerror})", where=f"syncer.listen ({host})", fix="use 127.0.0.1:0"
        ) from wrong
