"""How a run stands whose syncer does not answer: the same shape as of one that does, with what is left to know."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gruppetto.config.load import load_run
from gruppetto.errors import GruppettoError, StateError
from gruppetto.protocol import ProtocolSetting, SyncerCore
from gruppetto.protocol.units import Epoch
from gruppetto.report.rundir import DEATHS, RUN, TRACE
from gruppetto.runtime.authority import EPOCHS, is_lived_in
from gruppetto.runtime.clock import wall_time_s
from gruppetto.runtime.health import UNKNOWN_LEARNER, Observer, status_before_the_first_learner, status_of
from gruppetto.runtime.store import Store, StoreInUse, holds_commits
from gruppetto.trace.log import Record, read_trace

__all__ = ["deaths_in", "status_of_report", "status_of_state"]

SYNCER = "syncer"
"""The state directory, in a run directory."""
OF_THE_LIVING = ("running", "starting", "waiting", "restarting")
"""States of a process that nobody has seen end."""


def status_of_state(directory: Path) -> dict[str, Any]:
    """Of the state directory of a syncer that is gone: as it would go on; of one that has taken it and does not listen
    yet, that it is starting. Raises :class:`StateError`."""
    setting = _setting_in(directory)
    if is_lived_in(directory):
        unknown = status_before_the_first_learner(setting, Observer(), run_id="", epoch=0, now=0.0)
        return {**unknown, "phase": "starting", "waiting_for": _its_syncer(directory)}
    try:
        with Store(directory, identity=None) as store:
            state, run_id, epoch = store.state, store.run_id, store.newest_epoch
            stopped_at = max((path.stat().st_mtime for path in (directory / EPOCHS).glob("*")), default=0.0)
    except StoreInUse as busy:
        raise StateError(
            "a syncer uses it and does not answer", where=str(directory), fix="wait a moment, or look at its log"
        ) from busy
    if state is None:
        status = status_before_the_first_learner(setting, Observer(), run_id=run_id, epoch=epoch, now=0.0)
    else:
        setting = replace(setting, num_fragments=max(1, len(state.versions)))
        core = SyncerCore(
            setting, run_id=run_id, layout_hash=state.layout_hash, epoch=Epoch(max(epoch, state.epoch) + 1), state=state
        )
        status = {**status_of(core, Observer(), 0.0), "epoch": epoch}
        for each in status["learners"].values():
            each["clock"] = None  # the state knows of no clocks, steps or merges
    ended = setting.rounds is not None and status["round"] >= setting.rounds
    when = datetime.fromtimestamp(stopped_at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return {
        **status,
        "phase": "ended" if ended else "stopped",
        "waiting_for": "nothing: the run is finished" if ended else _start_again(directory),
        "stopped_at": when,
        "security": {},  # nobody is asked for papers
    }


def status_of_report(
    directory: Path, report: Mapping[str, Any], processes: Mapping[str, Any], *, ended: bool, held: bool = False
) -> dict[str, Any]:
    """Of a run directory: from its report, if there is one, else from what its trace says without a replay.

    ``processes`` is what the launcher wrote down last, and ``held`` whether it is still there: then it is the syncer
    alone that is away, and somebody cares for that.
    """
    learners: Mapping[str, Any] = processes.get("learners", {})
    phase, waiting_for = _expected(directory, processes, ended=ended, held=held, world=report.get("world", "real"))
    seen: Mapping[str, Any] = report.get("learners", {})
    shape = status_before_the_first_learner(_setting_in(directory), Observer(), run_id="", epoch=0, now=0.0)
    by_hand = not (processes or ended or held)
    if by_hand and is_lived_in(directory / SYNCER):
        phase, waiting_for = "starting", _its_syncer(directory / SYNCER)
    elif by_hand and holds_commits(directory / SYNCER):
        rounds = _setting_in(directory / SYNCER).rounds
        ended = rounds is not None and report.get("rounds", 0) >= rounds
        phase = "ended" if ended else "stopped"
        waiting_for = "nothing: the run is finished" if ended else _start_again(directory / SYNCER, directory / TRACE)
    return {
        **shape,
        "round": report.get("rounds", 0),
        "world": report.get("world", "real"),
        "simulated": report.get("simulated"),
        "phase": phase,
        "waiting_for": waiting_for,
        "uptime_s": report.get("wall_s") or 0.0,
        "learners": {
            name: _learner(seen.get(name, {}), learners.get(name, {}), held=held) for name in sorted({*learners, *seen})
        },
        "tokens": {**shape["tokens"], **report.get("tokens", {})},
        "fragment_tokens": {
            **dict.fromkeys(shape["fragment_tokens"]),
            "discarded_by": report.get("discarded_fragment_tokens", {}),
        },
        "rejected": report.get("rejected", {}),
        "clipped": report.get("clipped", {}),
        "bytes": {way: report.get("bytes", {}).get(way) for way in shape["bytes"]},
        "recoveries": [_recovery(recovery) for recovery in report.get("recoveries", ())],
        "alarms": [{"over_t": None, **alarm} for alarm in report.get("alarms", ())],
        "deaths": report["deaths"] if report.get("deaths") else deaths_in(directory),
        **({"standby": processes["standby"]} if held and "standby" in processes else {}),
    }


def deaths_in(directory: Path) -> list[dict[str, Any]]:
    """Who has died in a local run that goes on, or broke off: process, cause, how many seconds ago; oldest first."""
    found: list[dict[str, Any]] = []
    with suppress(GruppettoError):  # none, or not to be read: the log of the launcher has them too
        for line in read_trace(directory / DEATHS):
            if isinstance(line, Record) and line.name == "died":
                ago_s = max(0.0, wall_time_s() - float(line.data["wall_s"]))
                found.append({"process": line.data["learner"], "cause": line.data["cause"], "ago_s": ago_s})
    return found


def _expected(
    directory: Path, processes: Mapping[str, Any], *, ended: bool, held: bool, world: str = "real"
) -> tuple[str, str]:
    """The phase of a run whose syncer does not answer, and what it waits for."""
    if world != "real":
        if held:
            return "training", "its one process, in virtual time"
        return "ended" if ended else "stopped", "nothing: no process makes it"
    if held:
        syncer: Mapping[str, Any] = processes.get("syncer", {})
        if processes.get("stage") == "done":
            return "ended", "its report"
        if not syncer:
            return "starting", "its processes to be started"
        doing = "not answering yet" if syncer["state"] == "running" else syncer["state"]
        train_on = "" if processes.get("stage") == "starting" else "; learners train on"
        return "no syncer", f"the syncer: {doing}{train_on}"
    if not ended and processes and holds_commits(directory / SYNCER):
        return "stopped", f"somebody to go on with it: gruppetto resume {directory}"
    return "ended" if ended else "stopped", "nothing: the processes have ended"


def _its_syncer(state: Path) -> str:
    return f"the syncer: it holds {state} and does not answer yet; its log says more"


def _start_again(state: Path, trace: Path | None = None) -> str:
    recorded = f" --trace {trace}" if trace is not None else ""
    return f"somebody to start it again: gruppetto syncer --state {state}{recorded}"


def _learner(seen: Mapping[str, Any], process: Mapping[str, Any], *, held: bool) -> dict[str, Any]:
    known = {key: seen[key] for key in UNKNOWN_LEARNER if key in seen}
    state = process.get("state") or seen.get("state")
    if process and not held and str(state).startswith(OF_THE_LIVING):
        state = "gone"  # with the launcher, which nobody outlives
    restarts = process.get("restarts", 0)
    return {**UNKNOWN_LEARNER, **known, "state": state, "pid": process.get("pid"), "restarts": restarts}


def _recovery(told: Mapping[str, Any]) -> dict[str, Any]:
    """As a report tells it, under the names of a status."""
    source, _, donor = str(told["source"]).partition(" ") if str(told["source"]) != "own memory" else ("memory", "", "")
    searched = told.get("search_s")
    seconds = told["seconds"] if searched is None else searched
    return {**told, "t": told.get("t"), "source": source, "donor": donor, "seconds": seconds}


def _setting_in(directory: Path) -> ProtocolSetting:
    """That of the run, where its settings lie; the defaults where they do not, or cannot be read."""
    with suppress(GruppettoError, OSError):
        if (directory / RUN).is_file():
            return load_run(directory / RUN, endless=True).protocol
    return ProtocolSetting()
