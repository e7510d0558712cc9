"""``gruppetto status URL|RUNDIR``"""

from __future__ import annotations

import ssl
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tyro

from gruppetto.cli.flags import exactly_one, positional, print_json, read_flags, refuse_missing
from gruppetto.cli.status_of_the_dead import deaths_in, status_of_report, status_of_state
from gruppetto.errors import AddressError, ConnectionLost, DataError, GruppettoError, SettingError
from gruppetto.files import json_in
from gruppetto.launch.ask import AlarmSeen, find_endpoint, find_endpoints_beside
from gruppetto.launch.ask_shards import fetch_status_of_all, shard_lines
from gruppetto.launch.papers import looker_papers, looker_papers_in
from gruppetto.launch.place import is_held
from gruppetto.launch.unanswered import PapersWanted
from gruppetto.protocol.admission import ADVICE
from gruppetto.report.alarms import alarm_lines
from gruppetto.report.rundir import PROCESSES, TRACE
from gruppetto.report.simulated import of_what_world, step_of
from gruppetto.report.story import as_duration
from gruppetto.runtime.authority import is_lived_in
from gruppetto.runtime.health import UNKNOWN_LEARNER
from gruppetto.runtime.security.places import Papers
from gruppetto.runtime.store import holds_commits
from gruppetto.trace.log import Header, Record, is_trace, read_trace

__all__ = ["gate_lines", "main", "standby_lines", "status_of_directory"]

WATCH_S = 2.0
CLEAR = "\x1b[H\x1b[2J"
OVER = frozenset({"finished", "ended"})
"""Phases in which nothing more will happen."""
SHOWN = 6
"""How many of those who died, and of those who came back, are named: the last ones."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Say how a run stands: round, learners, what it waits for."""

    target: Annotated[tuple[str, ...], tyro.conf.Positional, positional("URL[,URL]|RUNDIR")] = ()
    """The address of a syncer, with those of its standbys; or a run directory on this machine."""
    token_file: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """A file whose first line is the syncer's token."""
    certs: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """A directory of gruppetto certs: the authority that made the syncer's, and an operator's or viewer's own."""
    json: bool = False
    """One JSON object."""
    watch: bool = False
    """Say it anew every two seconds, until the run has ended."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "status")
    target = exactly_one(flags.target, "URL or RUNDIR", "status")
    if flags.watch and flags.json:
        raise SettingError("they exclude each other", where="--watch and --json", fix="ask for JSON again and again")
    if flags.watch:
        _watch(target, flags)
    elif flags.json:
        print_json(_ask(target, flags))
    else:
        print(_text(_ask(target, flags)))
    return 0


def _ask(target: str, flags: Flags) -> dict[str, Any]:
    if Path(target).is_dir():
        papers = _papers_for(Path(target), flags)
        return status_of_directory(Path(target), token=papers.token, tls=papers.tls)
    refuse_missing(target)
    try:
        papers = looker_papers(flags.certs, flags.token_file)
        return fetch_status_of_all(target, token=papers.token, tls=papers.tls)
    except ConnectionLost as error:
        what, fix = "nobody answers", "start the syncer, wait if it is starting, or give its address"
        reason = getattr(error.__cause__, "reason", error.__cause__)
        if isinstance(reason, TimeoutError):
            what, fix = "answers nothing in time", "look at its log and its machine, or give its address"
        raise AddressError(what, where=target, fix=fix) from error


def _papers_for(directory: Path, flags: Flags) -> Papers:
    """What was given; else what the run's settings name, if it is here and may be read: how a run stands that has ended
    is nobody's secret, and a syncer that runs says itself that it asks for more."""
    try:
        return looker_papers_in(directory, flags.certs, flags.token_file)
    except SettingError:
        if flags.certs is not None or flags.token_file is not None:
            raise
        return Papers()


def _watch(target: str, flags: Flags) -> None:
    """On a terminal in its place, elsewhere one below the other. Once it has been seen, a run that does not answer is
    looked for again."""
    before = CLEAR if sys.stdout.isatty() else ""
    status: dict[str, Any] | None = _ask(target, flags)
    while status is None or status["phase"] not in OVER:
        if status is not None:
            print(f"{before}{_text(status)}", flush=True)
        time.sleep(WATCH_S)
        try:
            status = _ask(target, flags)
        except GruppettoError as error:
            status = None
            print(f"gruppetto: {error}", file=sys.stderr, flush=True)
    print(f"{before}{_text(status)}", flush=True)


def status_of_directory(
    directory: Path, *, token: str | None = None, tls: ssl.SSLContext | None = None
) -> dict[str, Any]:
    """The syncer's account with pid and restarts of each local learner, and who has died; from the report when the run
    has ended, and from the durable state where that is all there is.

    Raises :class:`DataError` for a directory without a run, :class:`AddressError` where a syncer that runs does not
    tell without other papers.
    """
    processes = _read(directory / PROCESSES, _Processes)
    learners: dict[str, Any] = processes.get("learners", {})
    endpoint = find_endpoint(directory, living=True)
    try:
        beside = [each.url for each in find_endpoints_beside(directory)]
        if endpoint is None and beside and (left := find_endpoint(directory)) is not None:
            endpoint = left  # the first shard was killed, others serve on
        if endpoint is None:
            raise ConnectionLost("the syncer does not run")
        status = fetch_status_of_all(endpoint.url, token=token, tls=tls, beside=beside)
    except PapersWanted as refused:
        where = f"{directory} ({refused.where})"
        raise AddressError(f"the syncer asks for papers: {refused.what}", where=where, fix=refused.fix) from refused
    except GruppettoError:
        report, held = _read(directory / "report.json", _Report), is_held(directory)
        if not processes and not report and not held and not is_trace(directory / "trace.jsonl"):
            for place in (directory, directory / "syncer"):
                if holds_commits(place) or is_lived_in(place):
                    return status_of_state(place)
            raise DataError(
                "holds no run", where=str(directory), fix="name a run directory or the address of a syncer"
            ) from None
        seen = _with_last_seen(report, directory / TRACE)
        whole = bool(report) and report.get("rounds", 0) >= seen.get("rounds", 0)  # else written while the run went on
        if told := seen.get("simulated"):
            whole = told.get("hours") is not None  # its one process made the end, or did not
        return status_of_report(directory, seen, processes, ended=whole, held=held)
    if "standby" in processes:
        status["standby"] = processes["standby"]
    for name, process in learners.items():
        known = status["learners"].setdefault(name, dict(UNKNOWN_LEARNER))
        known["pid"], known["restarts"] = process["pid"], process.get("restarts", 0)
        if process["state"] != "running" and known["state"] != "left":
            known["state"] = process["state"]
        elif known["state"] is None:
            known["state"] = "starting"
    return {**status, "deaths": deaths_in(directory)}


def _last_seen(trace: Path) -> dict[str, Any]:
    """How far a run got that nobody reported on: as a report says it, of what its trace says without a replay."""
    seen: dict[str, Any] = {"rounds": 0, "learners": {}}
    # A trace that is damaged further on still tells how far the run got at least.
    with suppress(DataError):
        for line in read_trace(trace):
            if not isinstance(line, Record):
                seen.update(_of_its_world(line))
                continue
            data = line.data
            if "world" in seen:
                seen["wall_s"] = line.t  # whose clock goes on through all lives
            if (line.kind, line.name) == ("note", "simulated"):
                seen["simulated"] = {**seen.get("simulated", {}), **data}
            match line.name, data.get("round"), data.get("learner"), data.get("participants"):
                case "Published", int(round), _, _:
                    seen["rounds"] = max(seen["rounds"], round)
                case "RoundClosed", int(round), _, list(names):
                    for name in names:
                        seen["learners"].setdefault(str(name), {})["last_merged_round"] = round
                case "Drop", int(round), str(name), _:
                    known = seen["learners"].setdefault(name, {})
                    known["last_rejection"] = {"round": round, "reason": str(data.get("reason"))}
                case "MemberChanged", _, str(name), _:
                    seen["learners"].setdefault(name, {}).update(why=str(data.get("why")), state=data.get("state"))
                case "Progress", _, str(name), _:
                    known = seen["learners"].setdefault(name, {})
                    known.update({key: data[key] for key in ("clock", "steps", "step_s") if key in data})
    return seen


def _of_its_world(header: Header) -> dict[str, Any]:
    """What a header says of a run that was not made of processes."""
    if "simulated" in header.data:
        told = {"what": str(header.data["simulated"]), "stride": header.data.get("stride", 1)}
        return {"world": "simulated", "simulated": told}
    return {"world": "virtual"} if header.data.get("virtual") else {}


def _with_last_seen(report: dict[str, Any], trace: Path) -> dict[str, Any]:
    """A report, and what only the trace tells of each learner: its clock, and the last round it was merged in."""
    reported: dict[str, Any] = report.get("learners", {})
    if report.get("mode", "decoupled") != "decoupled":
        # The learners of a rival move together, and every step of theirs is in.
        rounds = report.get("rounds", 0)
        told = {"state": "done", "clock": rounds, "last_merged_round": rounds}
        return {**report, "learners": {name: {**told, **each} for name, each in reported.items()}}
    seen: dict[str, Any] = _last_seen(trace) if trace.exists() else {"rounds": 0, "learners": {}}
    known: dict[str, Any] = seen["learners"]
    both = {name: {**known.get(name, {}), **reported.get(name, {})} for name in {*known, *reported}}
    if "simulated" in seen:
        report = {**report, "simulated": {**seen["simulated"], **(report.get("simulated") or {})}}
    rounds = max(seen["rounds"], report.get("rounds", 0))
    if report.get("shards") and report["shards"][0]["rounds"] >= seen["rounds"]:
        rounds = report["rounds"]  # the trace is the first shard's, and others were behind it
    return {**seen, **report, "rounds": rounds, "learners": both}


class _Process(msgspec.Struct):
    pid: int | None
    state: str


class _Processes(msgspec.Struct):
    """What is read of processes.json."""

    learners: dict[str, _Process] = {}
    standby: dict[str, Any] | None = None


class _Learner(msgspec.Struct):
    clock: int = 0
    step_s: float | None = None
    last_merged_round: int | None = None
    norm: float | None = None
    cosine: float | None = None


class _Recovery(msgspec.Struct):
    learner: str
    source: str
    seconds: float
    search_s: float | None = None


class _Shard(msgspec.Struct):
    rounds: int


class _Report(msgspec.Struct):
    """What is read of report.json."""

    mode: str = ""
    world: str = "real"
    simulated: dict[str, Any] | None = None
    rounds: int = 0
    wall_s: float | None = None
    learners: dict[str, _Learner] = {}
    tokens: dict[str, Any] = {}
    discarded_fragment_tokens: dict[str, Any] = {}
    rejected: dict[str, Any] = {}
    clipped: dict[str, Any] = {}
    bytes: dict[str, Any] = {}
    recoveries: list[_Recovery] = []
    alarms: list[AlarmSeen] = []
    shards: list[_Shard] = []


def _read(path: Path, shape: type[_Processes | _Report]) -> dict[str, Any]:
    """A file of a run. What is damaged counts as not there: the trace, or the state, still tells."""
    try:
        content: dict[str, Any] = json_in(path)
        msgspec.convert(content, shape)
    except (OSError, ValueError):
        return {}
    return content


def _text(status: dict[str, Any]) -> str:
    rounds = status.get("rounds")
    run = f"run {status['run_id']}, " if status.get("run_id") else ""
    since = f" since {status['stopped_at']}" if "stopped_at" in status else ""
    # How far a run had come that is starting again nobody knows yet.
    round = f"round {status['round']}{f' of {rounds}' if rounds else ''}, " if status["phase"] != "starting" else ""
    round = f"shard {status['shard']} {round}" if round and status.get("by_shard") else round
    world = f"{made}, " if (made := of_what_world(status)) else ""
    told = status.get("simulated") or {}
    of = f"{told['what']}: " if told else ""
    lines = [f"{run}{world}{of}{round}{status['phase']}{since}; waiting for {status['waiting_for']}"]
    for name, each in status["learners"].items():
        step = f"{each['step_s']:.3f} s per {step_of(status)}" if each.get("step_s") else "no step yet"
        merged = each.get("last_merged_round")
        offered = f", {_restarts(n)}" if (n := each.get("restarts", 0)) else ""
        offered += f", norm {each['norm']:.3g}" if each.get("norm") is not None else ""
        offered += f", cosine {each['cosine']:+.2f}" if each.get("cosine") is not None else ""
        offered += ", loss not finite" if each.get("metrics", {}).get("loss", 0.0) is None else ""
        clock = f"clock {each['clock']:<7} {step}, " if each["clock"] is not None else ""
        last = f"last merged in round {merged}" if merged is not None else "not merged yet" if clock else ""
        lines.append(f"  {name:<16} {each['state']!s:<10} {clock}{last}{offered}".rstrip())
        lines += [f"    {line}" for line in _reasons(each)]
    lines += [f"  {line}" for line in shard_lines(status)]
    lines += [f"  {line}" for line in (*standby_lines(status.get("standby")), *gate_lines(status))]
    lines += [f"  > {line}" for line in _last_of([_began(back) for back in status["recoveries"]])]
    lines += [f"  x {line}" for line in _last_of(_death_lines(status))]
    ended = status["phase"] in (*OVER, "stopped")
    lines += [f"  {line}" for line in alarm_lines(status.get("alarms", ()), status.get("uptime_s", 0.0), ended=ended)]
    return "\n".join(lines)


def _began(back: Mapping[str, Any]) -> str:
    """
    >>> back = {"learner": "ben", "source": "peer", "donor": "anna", "seconds": 2.5}
    >>> _began(back), _began(back | {"source": "memory", "donor": "", "search_s": None})
    ('ben began from peer anna (found in 2.5 s)', 'ben went on from memory (merged again after 2.5 s)')
    """
    donor = f" {back['donor']}" if back["donor"] else ""
    if back["source"] == "memory":
        return f"{back['learner']} went on from memory (merged again after {as_duration(back['seconds'])})"
    return f"{back['learner']} began from {back['source']}{donor} (found in {back['seconds']:.1f} s)"


def _reasons(each: Mapping[str, Any]) -> list[str]:
    """Why a learner is not here, and why its newest contribution was not merged if none has been since.

    >>> refused = {"round": 9, "reason": "late"}
    >>> for line in _reasons({"state": "left", "why": "goodbye", "last_merged_round": 7, "last_rejection": refused}):
    ...     print(line)
    left: goodbye
    not merged in round 9: late, the round had closed; a slower link or step than the grace window allows
    >>> _reasons({"state": "live", "why": "synchronised", "last_merged_round": 9, "last_rejection": refused})
    []
    """
    lines = [f"{each['state']}: {each['why']}"] if each.get("state") in ("away", "left") and each.get("why") else []
    refused, merged = each.get("last_rejection"), each.get("last_merged_round")
    if refused is not None and (merged is None or merged < refused["round"]):
        advice = {str(key): text for key, text in ADVICE.items()}.get(refused["reason"], "")
        lines.append(f"not merged in round {refused['round']}: {refused['reason']}{f', {advice}' if advice else ''}")
    return lines


def _last_of(lines: list[str]) -> list[str]:
    """The last ones, and how many there were before."""
    before = len(lines) - SHOWN
    return [f"({before} more before)", *lines[-SHOWN:]] if before > 0 else lines


def _death_lines(status: Mapping[str, Any]) -> list[str]:
    """A line each.

    >>> _death_lines({"deaths": [{"process": "ben", "cause": "SIGKILL", "ago_s": 12.0}]})
    ['ben died (SIGKILL) 12.0 s ago']
    """
    return [
        f"{death['process']} died ({death['cause']})"
        + (f" {as_duration(death['ago_s'])} ago" if "ago_s" in death else _told_by_a_report(death))
        for death in status.get("deaths", ())
    ]


def _told_by_a_report(death: Mapping[str, Any]) -> str:
    when = f" {as_duration(death['t'])} into the run" if death["t"] is not None else ""
    if death["merged_again_s"] is None:
        return when
    back = "a round again" if death["process"] == "syncer" else "merged again"
    return f"{when}; {back} {as_duration(death['merged_again_s'])} later"


def _restarts(count: int) -> str:
    return f"{count} restart{'s' * (count > 1)}"


def gate_lines(status: Mapping[str, Any]) -> list[str]:
    """What the gate did not take as it was, by reason, in one line each; none where there is nothing to say."""
    said = (("not merged", status.get("rejected")), ("merged for less", status.get("clipped")))
    return [f"{what}: {', '.join(f'{n} {why}' for why, n in counts.items())}" for what, counts in said if counts]


def standby_lines(standby: Mapping[str, Any] | None) -> list[str]:
    """How the syncer in waiting is, in one line; none in a run without one.

    >>> standby_lines({"pid": 7, "state": "waiting", "restarts": 2})
    ['standby waiting, 2 restarts']
    """
    if standby is None:
        return []
    count = standby["restarts"]
    return [f"standby {standby['state']}{f', {_restarts(count)}' if count else ''}"]
