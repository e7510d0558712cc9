"""A run on a Ray cluster: syncer, standby and learners as actors, each in a placement group of its own.

What Ray is for here is places: which node has room for what, which node goes, which one comes. What a learner does
there, and how it finds its syncer, is the same as anywhere: the actor starts ``gruppetto learner`` as a process, and
that process ends with it. Learners of a group beyond those that belong to the run wait for room, and ride along while
there is some.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from gruppetto.config import RunConfig
from gruppetto.config.write import END, to_toml
from gruppetto.errors import UserError
from gruppetto.launch.children import Child
from gruppetto.launch.engine import HERE
from gruppetto.launch.needs import COUNTED, bundles_for
from gruppetto.launch.ray_process import Errand, RayProcess
from gruppetto.launch.syncers import STANDBY, SYNCER
from gruppetto.report.rundir import RUN
from gruppetto.runtime.clock import Clock

__all__ = ["RayEngine"]

_log = logging.getLogger("gruppetto.launch")

LOOK_AT_NODES_S = 1.0
PATIENCE_S = 10.0
"""A process that has waited for a node for so long says why, and one that belongs to the run takes the place of one
that does not."""


class RayEngine:
    """``config`` in ``directory`` on the cluster at ``address`` (``auto`` finds that of this machine), or on a Ray of
    this machine that is started for it, and told that it has room for those who belong to the run.

    Raises :class:`UserError` when no cluster answers there.
    """

    def __init__(self, config: RunConfig, directory: Path, *, address: str | None, clock: Clock) -> None:
        self._config, self._directory, self._clock = config, directory, clock
        self._content = f"{to_toml(config)}\n{END}\n".encode()
        self._processes: list[RayProcess] = []
        self._extras = frozenset(config.extras)
        self._syncer, self._looked_at = "", -LOOK_AT_NODES_S
        self._said: set[RayProcess] = set()
        here: dict[str, Any] = {"address": address} if address is not None else _room_for(config)
        try:
            with warnings.catch_warnings(action="ignore"):  # it tells of its start by warnings
                ray.init(
                    **here, include_dashboard=None if address else False, log_to_driver=False, logging_level="ERROR"
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            said = " ".join(str(error).split())
            raise UserError(
                f"no Ray cluster to be used ({said:.200})",
                where=address or "local",
                fix="check `ray status`, --address",
            ) from error
        self.host = "127.0.0.1" if len({node["NodeManagerAddress"] for node in _nodes()}) == 1 else HERE

    def start(self, name: str, arguments: Sequence[str], log: Path, *, threads: int) -> Child:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        errand = Errand(
            name=name,
            arguments=list(arguments),
            threads=threads,
            log=log,
            bundles=bundles_for(self._config, name),
            ranks_per_node=self._config.group_of(name).on_a_node,
            file=str(self._directory / RUN),
            content=self._content,
            digest=hashlib.sha256(self._content).hexdigest(),
            state=str(self._directory / self._config.syncer.state),
            is_syncer=name in (SYNCER, STANDBY),
        )
        process = RayProcess(errand, self._clock, sys.executable, syncer=self._syncer, held=name in self._extras)
        self._processes = [one for one in self._processes if one.returncode is None]
        self._processes.append(process)
        return Child(name=name, process=process, log=log)

    def look(self, syncer: str) -> None:
        """Tell learners where the syncer is; tell those to leave whose nodes go, or are needed."""
        self._syncer = syncer or self._syncer
        for process in self._processes:
            process.syncer = self._syncer
        now = self._clock.now()
        if now < self._looked_at + LOOK_AT_NODES_S:
            return
        self._looked_at = now
        living = [one for one in self._processes if one.poll() is None]
        going = _draining()
        for process in living:
            if process.nodes & going and not process.evicted:
                _log.warning("%s leaves: its node is about to go", process.errand.name)
                process.evict()
        homeless = [one for one in living if one.waits and not one.nodes]
        first = [one for one in homeless if one.errand.name not in self._extras]
        for process in homeless:
            process.held = process not in first and bool(first)
        waiting = [one for one in homeless if now > one.began + PATIENCE_S]
        for process in waiting:
            if process not in self._said:
                self._said.add(process)
                self._explain(process)
        self._make_room([one for one in waiting if one in first], living)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.release()
        ray.shutdown()

    def _explain(self, process: RayProcess) -> None:
        wants = ", ".join(f"{name} {amount:g}" for name, amount in process.errand.bundles[0].items())
        fits = any(_fits(process.errand.bundles[0], node["Resources"]) for node in _nodes())
        if process.errand.name in self._extras:
            _log.info("%s waits for room (%s)", process.errand.name, wants)
        elif fits:
            _log.warning("%s waits for a node with %s free", process.errand.name, wants)
        else:
            _log.warning("%s waits: no node of the cluster has %s; see `ray status`", process.errand.name, wants)

    def _make_room(self, waiting: Sequence[RayProcess], living: Sequence[RayProcess]) -> None:
        """The youngest extra learner of another group makes way, one at a time, on a node where who waits would fit.

        One of the same group is as good as who waits, and rides already.
        """
        riding = [one for one in living if one.pid and not one.evicted and one.errand.name not in (SYNCER, STANDBY)]
        if any(one.evicted for one in living) or len(riding) < 2:
            return
        sizes = {str(node["NodeID"]): node["Resources"] for node in _nodes()}
        for process in waiting:
            group = self._config.group_of(process.errand.name)
            able = [
                one
                for one in riding
                if one.errand.name in self._extras
                and self._config.group_of(one.errand.name) is not group
                and any(_fits(process.errand.bundles[0], sizes.get(node, {})) for node in one.nodes)
            ]
            if able:
                chosen = max(able, key=lambda one: one.began)
                _log.info("%s makes room for %s", chosen.errand.name, process.errand.name)
                chosen.evict()
                return


def _fits(wants: Mapping[str, float], node: Mapping[str, float]) -> bool:
    """If nobody else were there."""
    return all(node.get(name, 0.0) >= amount for name, amount in wants.items())


def _room_for(config: RunConfig) -> dict[str, Any]:
    """Of a Ray of this machine: all who belong to the run, and the processors that are here besides."""
    names = [SYNCER, *([STANDBY] if config.launch.standby else []), *(entry.name for entry in config.learners)]
    wanted: Counter[str] = Counter()
    for name in names:
        for bundle in bundles_for(config, name):
            wanted.update(bundle)
    labels = {label: float(amount) for label, amount in wanted.items() if label not in COUNTED}
    cpus = max(os.cpu_count() or 1, float(wanted["CPU"]))
    return {"address": "local", "num_cpus": int(-(-cpus // 1)), "resources": labels}


def _nodes() -> list[Mapping[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _draining() -> frozenset[str]:
    """Nodes that have notice: their cloud takes them back, or somebody drains them. Ray has no public question yet."""
    with suppress(Exception):
        from ray._private.state import state

        return frozenset(state.get_draining_nodes())
    return frozenset()
