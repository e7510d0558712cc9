"""A process of a run on a Ray cluster, as the launcher sees any process: waited for, listened to, told to leave.

A learner of many ranks is one such process: an actor on each of its nodes, each of which starts its ranks by torchrun.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from gruppetto.errors import UserError
from gruppetto.launch.children import NODE_LOST, STOPPED
from gruppetto.launch.needs import COUNTED
from gruppetto.launch.ray_host import Host
from gruppetto.launch.remote import KILLED, as_told, waited_for
from gruppetto.runtime.clock import Clock

__all__ = ["Errand", "RayProcess"]

LOOK_S = 0.5
POLL_S = 0.05
Course = Generator[list[Any], list[Any], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What is to be run, and what it needs."""

    name: str
    arguments: Sequence[str]
    threads: int
    log: Path
    """On the launcher's machine."""
    bundles: Sequence[Mapping[str, float]]
    """What each node has to have, as Ray counts it: CPU, GPU, memory in bytes, labels."""
    ranks_per_node: int = 1
    file: str
    """run.toml, the one file that it needs,"""
    content: bytes
    digest: str
    """and what stands there, for a node that does not see the run directory,"""
    state: str
    """nor in it the directory in which the syncer says its address."""
    is_syncer: bool = False
    """It writes to the run directory: it has to see it."""


@dataclass(slots=True, eq=False)
class RayProcess:
    """See :class:`gruppetto.launch.children.Process`. The engine tells it where the syncer is (:attr:`syncer`)."""

    errand: Errand
    clock: Clock
    python: str
    pid: int = 0
    returncode: Any = None
    waits: str = "a node"
    evicted: bool = False
    syncer: str = ""
    """The address of the syncer in charge, once it is known."""
    held: bool = False
    """It does not ask for a node yet: others come first."""
    nodes: frozenset[str] = frozenset()
    """Ray's names of the nodes it runs on."""
    began: float = field(init=False)
    _hosts: list[Any] = field(default_factory=list)
    _awaited: list[Any] = field(default_factory=list)
    _told: bool = False
    _course: Course = field(init=False)
    _group: Any = None

    def __post_init__(self) -> None:
        self.began = self.clock.now()
        self._course = self._run()
        self._awaited = next(self._course)

    def poll(self) -> int | None:
        """Go on as far as can be without waiting."""
        while self.returncode is None:
            try:
                ready, _ = (
                    ray.wait(self._awaited, num_returns=len(self._awaited), timeout=0) if self._awaited else ([], [])
                )
                if len(ready) < len(self._awaited):
                    break
                self._awaited = self._course.send(ray.get(self._awaited))
                if not self._awaited:
                    break
            except StopIteration as end:
                self._end(end.value)
            except RayError as error:
                self._end(self._why_lost(error))
        code: int | None = self.returncode
        return code

    def terminate(self) -> None:
        """Ask it to leave in good order; one that has no node yet has left."""
        self._told = True
        if not self._hosts:
            self._end(STOPPED)
        for host in self._hosts:
            host.leave.remote()

    def evict(self) -> None:
        """The same, because its node goes, or is needed: it may come back elsewhere."""
        self.evicted = True
        self.terminate()

    def kill(self) -> None:
        self._end(KILLED)
        self.release()

    def wait(self, timeout: float | None = None) -> int:
        return waited_for(self.errand.name, self.poll, clock=self.clock, timeout_s=timeout, every_s=POLL_S)

    def release(self) -> None:
        """Its actors and its place on the cluster; what it had started ends with them."""
        for host in self._hosts:
            ray.kill(host, no_restart=True)
        self._hosts = []
        if self._group is not None:
            remove_placement_group(self._group)

    # ── its course ───────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> Course:
        """Each ``yield`` hands out what has to be there before it goes on; nothing: look again later."""
        errand = self.errand
        while self.held:
            yield []
        bundles = [dict(bundle) for bundle in errand.bundles]
        self._group = placement_group(bundles, strategy="PACK" if len(bundles) > 1 else "STRICT_PACK")
        yield [self._group.ready()]
        self._hosts = [self._host(i, bundle) for i, bundle in enumerate(errand.bundles)]
        where = yield [host.where.remote() for host in self._hosts]
        self.nodes = frozenset(node for node, _ in where)
        answers = yield [
            *(host.sees.remote(errand.file, errand.digest) for host in self._hosts),
            self._hosts[0].free_port.remote(),
        ]
        *seen, port = answers
        self.waits = "the syncer's address"
        while not (self.syncer or errand.is_syncer or all(seen)):
            yield []
        self.waits = ""
        pids = yield [
            host.start.remote(self._arguments(i, where[0][1], port), errand.threads, {} if sees else self._instead())
            for i, (host, sees) in enumerate(zip(self._hosts, seen, strict=True))
        ]
        self.pid = pids[0]
        heard = [0] * len(self._hosts)
        while True:
            looks = yield [host.look.remote(at, LOOK_S) for host, at in zip(self._hosts, heard, strict=True)]
            with errand.log.open("ab") as log:
                for i, (_, said) in enumerate(looks):
                    log.write(said)
                    heard[i] += len(said)
            codes = [code for code, _ in looks]
            if bad := next((code for code in codes if code), 0):
                return int(bad)  # ranks that have lost one of them are of no use
            if None not in codes:
                return 0

    def _host(self, number: int, bundle: Mapping[str, float]) -> Any:
        others = {name: amount for name, amount in bundle.items() if name not in COUNTED}
        return (
            ray.remote(_Actor)
            .options(
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                memory=bundle.get("memory"),
                resources=others or None,
                max_concurrency=4,  # it is told to leave while it is listened to
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number),
            )
            .remote(self.python)
        )

    def _arguments(self, number: int, first: str, port: int) -> list[str]:
        errand = self.errand
        if errand.ranks_per_node == 1 and len(errand.bundles) == 1:
            return list(errand.arguments)
        torchrun = ["-m", "torch.distributed.run", "--nnodes", str(len(errand.bundles)), "--node-rank", str(number)]
        torchrun += ["--nproc-per-node", str(errand.ranks_per_node)]
        return [*torchrun, "--master-addr", first, "--master-port", str(port), *errand.arguments]

    def _instead(self) -> Mapping[str, str | bytes]:
        if self.errand.is_syncer:
            return {self.errand.file: ""}
        return {self.errand.file: self.errand.content, self.errand.state: self.syncer}

    def _end(self, code: int) -> None:
        if self.returncode is None:
            self.waits = ""
            self.returncode = as_told(code, told=self._told)

    def _why_lost(self, error: RayError) -> int:
        said = str(error)
        if "ModuleNotFoundError" in said:
            line = "gruppetto cannot be imported on a node of the cluster; install the same version there"
            with self.errand.log.open("a", encoding="utf-8") as log:
                log.write(f"gruppetto: {line}\n")
            return UserError.exit_code
        with self.errand.log.open("a", encoding="utf-8") as log:
            log.write(f"its node or its actor is gone ({type(error).__name__})\n")
        return NODE_LOST


class _Actor(Host):
    """A host that asks Ray where it is."""

    def __init__(self, python: str) -> None:
        super().__init__(ray.util.get_node_ip_address(), python)

    def where(self) -> tuple[str, str]:
        """The node, and its address."""
        return ray.get_runtime_context().get_node_id(), self._address
