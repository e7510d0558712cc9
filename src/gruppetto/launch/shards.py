"""The syncers of a local run that several shards serve: each shard has its seats, and dies and comes back by itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from gruppetto.config import RunConfig
from gruppetto.errors import SettingError
from gruppetto.launch.ask_shards import SILENT_S, with_shards
from gruppetto.launch.at_once import at_once
from gruppetto.launch.children import Child
from gruppetto.launch.engine import Engine
from gruppetto.launch.revival import Revival
from gruppetto.launch.routes import Routes
from gruppetto.launch.syncers import Seat, Syncers
from gruppetto.numerics.deal import Shard

__all__ = ["AllSyncers"]


class AllSyncers:
    """Of the run in ``directory``: the :class:`Syncers` of each shard, the first one's first; there may be just it.

    Raises :class:`SettingError` for several on an ``engine`` elsewhere.
    """

    def __init__(self, config: RunConfig, directory: Path, routes: Routes, engine: Engine) -> None:
        shards = config.syncer.shards
        if shards > 1 and engine.host:
            raise SettingError(
                f"is {shards}, and an engine places one syncer",
                where="syncer.shards",
                fix="use 1, or gruppetto train, or start each shard by hand",
            )
        first = Syncers(config, directory, routes, engine, shard=Shard(of=shards))
        others = (Shard(number=number, of=shards) for number in range(2, shards + 1))
        more = [Syncers(config, directory, routes, engine, shard=shard, announced_at=first.urls) for shard in others]
        self.shards = [first, *more]
        self.first = first

    @property
    def seats(self) -> list[Seat]:
        return [seat for shard in self.shards for seat in shard.seats]

    def children(self) -> Iterator[Child]:
        return (child for shard in self.shards for child in shard.children())

    def start(self) -> None:
        """All at once: the others wait for the first one by themselves."""
        for shard in self.shards:
            shard.start()

    def mend(self, revival: Revival, *, finished: bool) -> None:
        """See who has died, and put another process into the seat whose time has come."""
        for shard in self.shards:
            shard.mend(revival, finished=finished)

    def lost(self, revival: Revival) -> tuple[str, list[Child]]:
        """What is to be said when all of a shard are dead for good, and of whom; "" while there is hope for each."""
        for shard in self.shards:
            if what := shard.lost(revival):
                return what, list(shard.children())
        return "", []

    def ask(self) -> dict[str, Any] | None:
        """How the run stands, from whoever is in charge of the first shard, and from the others."""
        if len(self.shards) == 1:
            return self.shards[0].ask()
        asks = {str(number): partial(shard.ask, SILENT_S) for number, shard in enumerate(self.shards, start=1)}
        answers = at_once(asks, within_s=SILENT_S)
        if "1" not in answers:
            return None
        return with_shards(answers["1"], {number: answers.get(number) for number in asks if number != "1"})

    def listen_for_standby(self) -> None:
        """Find out whether those that are to wait have come so far."""
        for shard in self.shards:
            shard.listen_for_standby()

    def stop(self) -> None:
        """Learners have gone; the first shard, which the others look for, goes last."""
        for shard in reversed(self.shards):
            shard.stop()
