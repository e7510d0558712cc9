"""Is it training? Who is not, why, and what to do about it: in words, from the picture of a run."""

from __future__ import annotations

from dataclasses import dataclass

from gruppetto.dashboard.lane import Lane
from gruppetto.dashboard.picture import Picture
from gruppetto.protocol.admission import ADVICE, ROUTINE
from gruppetto.protocol.messages import FAILED, RejectionReason
from gruppetto.report.story import as_duration

__all__ = ["Headline", "Trouble", "headline_of", "is_expected", "state_of"]

QUIET_STEPS, QUIET_S = 4.0, 3.0
"""A learner is waiting when no step of it has come for so many of its steps, and at least for so long."""
STALL_ROUNDS, STALL_S = 10.0, 5.0
"""A run stands still when no round has come for so many of its mean rounds, and at least for so long."""
IN_A_ROW = 3
"""So many contributions refused without a merged one between them are no accident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Somebody who is not training with the others, or whose work is not merged."""

    who: str
    state: str
    why: str
    do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """``state``: empty, beginning, training, stalled, finished or stopped."""

    state: str
    title: str
    text: str
    troubles: tuple[Trouble, ...] = ()


def state_of(lane: Lane, now: float) -> str:
    """training, waiting, recovering, offline or left."""
    match lane.state:
        case "live":
            quiet_s = max(QUIET_S, QUIET_STEPS * (lane.step_s or 0.0))
            since = max(lane.stepped_at or 0.0, lane.states.since)
            return "waiting" if now - since > quiet_s else "training"
        case "joining":
            return "recovering"
        case "left":
            return "left"
        case _:
            return "offline"


def headline_of(picture: Picture, now: float, *, live: bool) -> Headline:
    """``now``: seconds since the run began; ``live``: somebody is still writing the trace."""
    states = {name: state_of(lane, now) for name, lane in sorted(picture.lanes.items())}
    training = sum(1 for state in states.values() if state == "training")
    of = f"round {picture.published}" + (f" of {picture.rounds}" if picture.rounds else "")
    if picture.finished:
        text = f"The run reached its last round, {picture.published}, after {as_duration(picture.published_at)}."
        return Headline(state="finished", title="Finished", text=text)
    if not picture.lanes:
        return Headline(
            state="empty", title="Nobody is here yet", text="Start learners; the first gives the initial weights."
        )
    troubles = tuple(
        trouble for name, lane in sorted(picture.lanes.items()) if (trouble := _trouble(lane, states[name], now))
    )
    if not live:
        early = ", before the last round" if picture.rounds else ""
        text = f"The recording ends at {of}, after {as_duration(picture.now)}{early}."
        return Headline(state="stopped", title="Not running", text=text, troubles=troubles)
    here = sum(1 for state in states.values() if state in ("training", "waiting"))
    if picture.published_at is None or not picture.latest:
        return Headline(
            state="beginning",
            title="About to begin",
            text=_ready(here, picture.setting.get("start_learners") or len(states)),
            troubles=troubles,
        )
    pace_s = _pace_s(picture)
    since_s = now - picture.published_at
    everybody = sum(1 for lane in picture.lanes.values() if is_expected(lane))
    if since_s > max(STALL_S, STALL_ROUNDS * pace_s):
        waits = _waits_for(picture, here)
        text = f"No round for {as_duration(since_s)}, at {of}: {waits}"
        return Headline(state="stalled", title="Standing still", text=text, troubles=troubles)
    beyond = f" {len(picture.crowd)} more have no lane here." if picture.crowd else ""
    text = (
        f"{of[0].upper()}{of[1:]}, one every {_seconds(pace_s)}; "
        f"{training} of {everybody} learners are training.{beyond}"
    )
    return Headline(state="training", title="Training", text=text, troubles=troubles)


def _ready(here: int, awaited: int) -> str:
    """How many of those who are awaited have come.

    >>> _ready(1, 4), _ready(3, 1)
    ('1 of 4 learners are ready.', '3 learners are ready; the first round is on its way.')
    """
    if here < awaited:
        return f"{here} of {awaited} learners are ready."
    return f"{here} learner{'s are' if here > 1 else ' is'} ready; the first round is on its way."


def _pace_s(picture: Picture) -> float:
    newest = picture.latest
    return (newest[-1].at - newest[0].at) / (len(newest) - 1) if len(newest) > 1 else 0.0


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else as_duration(seconds)


def _waits_for(picture: Picture, here: int) -> str:
    opened, quorum = picture.open, picture.setting.get("min_quorum") or 1
    if picture.persist_failed:
        return f"it cannot be made durable ({picture.persist_failed}). Free disk space or repair the state directory."
    if here < quorum:
        return f"{here} of the {quorum} learners it needs are live. Start learners, or lower run.min_quorum."
    if opened is None:
        return f"no {quorum} of {here} live learners have reached it. Look at what they wait for."
    match opened.stage:
        case "grace":
            return "it has asked, and too few contributions were admitted. Look at the rejections below."
        case "merge":
            return "it is being merged."
        case _:
            return "it is being made durable. Look after the disk of the syncer."


def is_expected(lane: Lane) -> bool:
    """It is here, or should be: it has not left on purpose."""
    return lane.state != "left" or _has_failed(lane)


def _has_failed(lane: Lane) -> bool:
    """It is no longer here, and said that its training has failed."""
    return lane.state == "left" and lane.why.startswith(FAILED)


def _trouble(lane: Lane, state: str, now: float) -> Trouble | None:
    since = as_duration(max(0.0, now - lane.states.since))
    match state:
        case "offline" if "SIG" in lane.why or "exit" in lane.why:
            do = "Its launcher starts it again; if it does not, start it under the same name. Its log says more."
            return Trouble(who=lane.name, state=state, why=f"{lane.why}, {since} ago", do=do)
        case "offline" if lane.why == "the syncer restarted":
            do = "Nothing: it trains on and dials by itself. If it does not come back, look at its log."
            return Trouble(who=lane.name, state=state, why=f"has not dialled again since {lane.why}", do=do)
        case "offline":
            do = "If its process is dead, start it again under the same name; else look at the network."
            return Trouble(who=lane.name, state=state, why=f"{lane.why or 'gone'}, {since} ago", do=do)
        case "recovering":
            source = f"begins with its state from: {lane.source}" if lane.source else "fetches the weights of the run"
            return Trouble(who=lane.name, state=state, why=f"{source}, for {since}", do="Nothing: wait a moment.")
        case "waiting":
            quiet = as_duration(now - max(lane.stepped_at or 0.0, lane.states.since))
            do = "Its data, its device or max_run_ahead hold it up; learner.waiting_for and its log say which."
            return Trouble(who=lane.name, state=state, why=f"alive, but no step for {quiet}", do=do)
        case "left" if _has_failed(lane):
            do = "Its log has the traceback; mend it, and start it again under the same name."
            return Trouble(who=lane.name, state=state, why=f"{lane.why}, {since} ago", do=do)
        case "left":
            return None
    if (refused := _refused(lane)) is not None or not lane.spoilt:
        return refused
    do = "Lower its learning rate, or start it again from before: nothing of it is merged that is not finite either."
    return Trouble(who=lane.name, state="diverging", why="the loss that it reports is not finite", do=do)


def _refused(lane: Lane) -> Trouble | None:
    grave = [(reason, count) for reason, count in lane.rejected_since.most_common() if reason not in ROUTINE]
    if not grave or (lane.merged_rounds > 0 and sum(count for _, count in grave) < IN_A_ROW):
        return None
    reason = grave[0][0]
    advice = ADVICE[RejectionReason(reason)] if reason in set(RejectionReason) else "see its log"
    ever = f"since round {lane.last_merged_round}" if lane.last_merged_round is not None else "ever"
    return Trouble(who=lane.name, state="rejected", why=f"nothing of it was merged {ever}: {reason}", do=advice)
