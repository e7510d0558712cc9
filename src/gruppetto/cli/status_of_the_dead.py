"""How a run stands of which nothing runs any more: the same shape as of one that does, with what is left to know."""

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
from gruppetto.runtime.authority import EPOCHS
from gruppetto.runtime.health import UNKNOWN_LEARNER, Observer, status_before_the_first_learner, status_of
from gruppetto.runtime.store import Store, StoreInUse

__all__ = ["status_of_report", "status_of_state"]


def status_of_state(directory: Path) -> dict[str, Any]:
    """Of the state directory of a syncer that is gone: as it would go on. Raises :class:`StateError`."""
    setting = _setting_in(directory)
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
    when = datetime.fromtimestamp(stopped_at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return {
        **status,
        "phase": "ended" if setting.rounds is not None and status["round"] >= setting.rounds else "stopped",
        "waiting_for": f"somebody to start it again: gruppetto syncer --state {directory}",
        "stopped_at": when,
    }


def status_of_report(
    directory: Path, report: Mapping[str, Any], processes: Mapping[str, Any], *, ended: bool
) -> dict[str, Any]:
    """Of a run directory: from its report, if there is one, else from what its trace says without a replay."""
    seen: Mapping[str, Any] = report.get("learners", {})
    shape = status_before_the_first_learner(_setting_in(directory), Observer(), run_id="", epoch=0, now=0.0)
    return {
        **shape,
        "round": report.get("rounds", 0),
        "phase": "ended" if ended else "stopped",
        "waiting_for": "nothing: the processes have ended",
        "uptime_s": report.get("wall_s") or 0.0,
        "learners": {
            name: _learner(seen.get(name, {}), processes.get(name, {})) for name in sorted({*processes, *seen})
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
    }


def _learner(seen: Mapping[str, Any], process: Mapping[str, Any]) -> dict[str, Any]:
    known = {key: seen[key] for key in UNKNOWN_LEARNER if key in seen}
    state = process.get("state") or seen.get("state")
    return {**UNKNOWN_LEARNER, **known, "state": state, "pid": process.get("pid")}


def _recovery(told: Mapping[str, Any]) -> dict[str, Any]:
    """As a report tells it, under the names of a status."""
    source, _, donor = str(told["source"]).partition(" ") if str(told["source"]) != "own memory" else ("memory", "", "")
    searched = told.get("search_s")
    seconds = told["seconds"] if searched is None else searched
    return {**told, "t": told.get("t"), "source": source, "donor": donor, "seconds": seconds}


def _setting_in(directory: Path) -> ProtocolSetting:
    """That of the run, where its settings lie; the defaults where they do not, or cannot be read."""
    with suppress(GruppettoError, OSError):
        if (directory / "run.toml").is_file():
            return load_run(directory / "run.toml", endless=True).protocol
    return ProtocolSetting()
