"""What the syncer has on offer: published values, the map of shards, checkpoints, and how the run stands."""

from __future__ import annotations

from typing import Any

from gruppetto.protocol.units import Fragment
from gruppetto.runtime.health import status_before_the_first_learner, status_of
from gruppetto.runtime.model_stream import ModelStream
from gruppetto.runtime.parameters import Value
from gruppetto.runtime.service_standing import ServiceStanding
from gruppetto.runtime.shard_map import Place

__all__ = ["OnOffer"]


class OnOffer(ServiceStanding):
    """Answers those who ask. What is borrowed is given back."""

    def borrow(self, fragment: Fragment) -> Value | None:
        """The published value of a fragment, to be given back; None while there is none."""
        return self.engine_for(fragment).parameters.current(fragment)

    def borrow_model(self) -> ModelStream | None:
        """All published values, of one moment, each to be given back; None while there are none."""
        engine = self.engine
        if engine is None or not engine.parameters.seeded:
            return None
        parts = engine.parameters.parts
        values: dict[Fragment, Value] = {}
        for p in map(Fragment, range(len(parts.fragments))):
            value = engine.parameters.current(p)
            assert value is not None
            values[p] = value
        return ModelStream(engine.layout, parts, values, engine.core.published_round, self.setting.shard)

    def give_back(self, *values: Value) -> None:
        """Their reader has gone."""
        assert self.engine is not None
        for value in values:
            self.engine.parameters.release(value)

    def hear_of(self, place: Place, peer: str) -> None:
        """A shard is announced, from the address ``peer``. Raises :class:`SettingError` for one that does not fit."""
        self.look_at_shards()
        self.directory.hear(place, self._clock.now(), peer)
        self.look_at_shards()

    def take_checkpoint(self, name: str) -> dict[str, Any]:
        """Begin a checkpoint of the whole run; how it stands.

        Raises :class:`StateError` for an impossible name, and while another one is being taken.
        """
        if not self.setting.shard.is_whole:
            why = f"the {self.setting.shard.of} shards of this run cannot be cut at one moment; each is durable alone"
            return {"mark": name, "stage": "refused", "why": why}
        if self.engine is None:
            return {"mark": name, "stage": "refused", "why": "the run has no weights yet; ask again when it has begun"}
        self.engine.checkpoints.take(name)
        report = self.checkpoint_report()
        assert report is not None
        return report

    def checkpoint_report(self) -> dict[str, Any] | None:
        """How the newest checkpoint stands; None if nobody has asked this process for one."""
        if self.engine is None or self.engine.checkpoints.report is None:
            return None
        report, mark = self.engine.checkpoints.report, self.engine.core.open_mark
        if report["stage"] == "waiting" and mark is not None and mark.mark == report["mark"]:
            return {**report, "waiting_for": mark.waiting_for}
        return report

    def status(self) -> dict[str, Any]:
        """What people and tools see; the keys are explained in :mod:`gruppetto.runtime.health`."""
        now, where = self._clock.now(), self.directory.map()
        shards = {"shard": str(self.setting.shard), "shards": {str(k): url for k, url in where.addresses.items()}}
        if self.engine is None:
            told = status_before_the_first_learner(
                self.protocol, self.seen, run_id=self.run_id, epoch=self.epoch, now=now
            )
            return {**told, **shards}
        return {**status_of(self.engine.core, self.seen, now), **shards}
