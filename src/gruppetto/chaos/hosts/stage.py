"""One run over several hosts: a syncer at one, a light learner at each of the others, and what was seen of it.

The syncer is the shipping command line, with TLS and certificates of ``gruppetto certs`` unless told otherwise. What is
judged comes from outside of it: the trace, put through a fresh core, and the steps as learners themselves time them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from types import TracebackType
from typing import Any, Self

from gruppetto.chaos.hosts.hosts import Hosts
from gruppetto.errors import RunFailed
from gruppetto.runtime.clock import MonotonicClock, wall_time_s
from gruppetto.runtime.security.identity import Identity, Role
from gruppetto.trace.log import Header, Record, read_trace
from gruppetto.trace.measures import Measures
from gruppetto.trace.metrics import measure

__all__ = ["Seen", "Stage"]

PORT = 7171
PATIENCE_S = 90.0
LOOK_EVERY_S = 0.1
RUN = """
[run]
num_fragments = 24
sync_period = 24
start_learners = {learners}
num_learners = {learners}
{run}
[codec]
uplink = "{uplink}"
downlink = "{downlink}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A stretch of time. By learner: its step, and the share of the rounds that hold its work.

    Of all steps the lower quartile: whatever else the machine has to do makes steps longer, never shorter.
    """

    seconds: float
    rounds: int
    step_s: dict[str, float]
    merged: dict[str, float]
    up_bytes: dict[str, int]
    """What packets of the host weighed, TCP's own bytes included."""
    down_bytes: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Moment:
    at: float
    up_bytes: dict[str, int]
    down_bytes: dict[str, int]


class Stage:
    """A run at ``hosts``, from entering to leaving. ``syncer``: the name or address that learners dial; its host is
    called ``syncer``, and names are those that the host of the first learner knows."""

    def __init__(
        self,
        place: Path,
        hosts: Hosts,
        *,
        learners: Sequence[str],
        syncer: str,
        listen: str = "::",
        tls: bool = True,
        step_s: float = 0.25,
        width: int = 64,
        uplink: str = "int4",
        downlink: str = "delta-int4",
        run: str = "",
    ) -> None:
        self.place, self.hosts, self.learners = place, hosts, tuple(learners)
        self.trace, self._steps = place / "trace.jsonl", place / "steps.jsonl"
        self._host, self._listen, self._tls, self._step_s, self._width = syncer, listen, tls, step_s, width
        self._settings = RUN.format(learners=len(self.learners), uplink=uplink, downlink=downlink, run=run)
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        self.place.mkdir(parents=True, exist_ok=True)
        (self.place / "RUN.toml").write_text(self._settings, encoding="utf-8")
        if self._tls:
            self._certify()
        try:
            self._start_syncer()
            self._start_learners()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()

    # ── while it runs ────────────────────────────────────────────────────────────────────────────────────────────

    def moment(self) -> _Moment:
        """Now, to look back to."""
        ports = self.hosts.internet.ports
        return _Moment(
            wall_time_s(),
            {name: ports[name].up.passed_bytes for name in self.learners},
            {name: ports[name].down.passed_bytes for name in self.learners},
        )

    def since(self, then: _Moment) -> Seen:
        """What was seen since then."""
        now = self.moment()
        closed = self._closed(then.at)
        steps = self._took_s(then.at)
        return Seen(
            seconds=now.at - then.at,
            rounds=len(closed),
            step_s={name: _lower_quartile(steps[name]) for name in self.learners},
            merged={name: sum(name in who for who in closed) / max(1, len(closed)) for name in self.learners},
            up_bytes={name: now.up_bytes[name] - then.up_bytes[name] for name in self.learners},
            down_bytes={name: now.down_bytes[name] - then.down_bytes[name] for name in self.learners},
        )

    def until(self, fine: Callable[[], bool], what: str, *, within_s: float = PATIENCE_S) -> float:
        """Wait; how long it took. Raises :class:`RunFailed` when a process has ended, or nothing of it came."""
        clock, pause = MonotonicClock(), threading.Event()
        while not fine():
            if clock.now() > within_s or any(process.poll() is not None for process in self._processes):
                raise RunFailed(f"no {what} after {clock.now():.0f} s; {self.said()}")
            pause.wait(LOOK_EVERY_S)
        return clock.now()

    def until_merged(self, name: str, *, rounds: int = 3, within_s: float = PATIENCE_S) -> float:
        """Wait until so many more rounds hold a learner's work; how long it took."""
        then = wall_time_s()
        return self.until(
            lambda: sum(name in who for who in self._closed(then)) >= rounds, f"work of {name}", within_s=within_s
        )

    def said(self) -> str:
        """The last lines of all processes."""
        return " | ".join(
            f"{log.stem}: {' / '.join(log.read_text(encoding='utf-8', errors='replace').strip().splitlines()[-4:])}"
            for log in sorted(self.place.glob("*.log"))
        )

    def end(self) -> Measures:
        """End learners and syncer in good order; what the whole trace says, its events put through a fresh core."""
        syncer, riders = self._processes
        assert riders.stdin is not None
        riders.stdin.write("end\n")
        riders.stdin.close()
        for process in (riders, syncer):
            if process is syncer:
                process.terminate()
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired as wrong:
                raise RunFailed(f"a process does not end; {self.said()}") from wrong
        return measure(self.trace)

    def metrics(self) -> dict[str, dict[str, float]]:
        """What each learner says of itself, once it has ended."""
        return {line["who"]: line["metrics"] for line in self._lines() if "metrics" in line}

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _closed(self, since: float) -> list[list[str]]:
        """Who is in each of the rounds that were closed since then."""
        zero, found = 0.0, []
        for line in read_trace(self.trace):
            if isinstance(line, Header):
                zero = float(line.data.get("started_at", zero))
            elif isinstance(line, Record) and line.name == "RoundClosed" and zero + line.t >= since:
                found.append(list(line.data["participants"]))
        return found

    def _took_s(self, since: float) -> dict[str, list[float]]:
        took: dict[str, list[float]] = {name: [] for name in self.learners}
        for line in self._lines():
            if "took_s" in line and line["at"] - line["took_s"] >= since:
                took[line["who"]].append(line["took_s"])
        return took

    def _lines(self) -> list[dict[str, Any]]:
        if not self._steps.exists():
            return []
        return [json.loads(line) for line in self._steps.read_bytes().split(b"\n")[:-1]]

    def _certify(self) -> None:
        from gruppetto.runtime.security.issuing import Authority

        authority = Authority(self.place / "certs", now=wall_time_s())
        authority.found(days=2)
        authority.make(Identity(role=Role.SYNCER, name="syncer"), days=1, hosts=[self._host])
        for name in self.learners:
            authority.make(Identity(role=Role.LEARNER, name=name), days=1)

    def _start_syncer(self) -> None:
        place = self.place
        who = ("--certs", str(place / "certs")) if self._tls else ("--allow-plaintext",)
        listen = f"[{self._listen}]:{PORT}" if ":" in self._listen else f"{self._listen}:{PORT}"
        self._run(
            "syncer",
            *("-m", "gruppetto", "syncer", str(place / "RUN.toml"), "--listen", listen),
            *("--state", str(place / "state"), "--trace", str(self.trace), *who),
        )
        self.until((place / "state" / "endpoint.json").exists, "syncer")

    def _start_learners(self) -> None:
        host = f"[{self._host}]" if ":" in self._host else self._host
        url = f"{'https' if self._tls else 'http'}://{host}:{PORT}"
        certs = self.place / "certs"
        setting = {
            "steps": str(self._steps),
            "width": self._width,
            "learners": [
                {
                    "name": name,
                    "namespace": self.hosts.namespace(name),
                    "syncer": url,
                    "step_s": self._step_s,
                    "papers": {
                        "ca_file": str(certs / "ca.pem"),
                        "cert_file": str(certs / f"learner-{name}.pem"),
                        "key_file": str(certs / f"learner-{name}.key"),
                    }
                    if self._tls
                    else {"allow_plaintext": True},
                }
                for name in self.learners
            ],
        }
        (self.place / "light.json").write_text(json.dumps(setting), encoding="utf-8")
        self._run(self.learners[0], "-m", "gruppetto.chaos.hosts.light", str(self.place / "light.json"))
        self.until(lambda: all(self._took_s(0.0).values()), "step of each learner")

    def _run(self, host: str, *arguments: str) -> None:
        with (self.place / f"{host}.log").open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                self.hosts.at(host, sys.executable, *arguments),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        self._processes.append(process)

    def _kill(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()


def _lower_quartile(values: Sequence[float]) -> float:
    """NaN of fewer than two."""
    return quantiles(values, n=4, method="inclusive")[0] if len(values) > 1 else float("nan")
