"""A stretch of a run, small enough to be sent to a page: everything is joined to as many slots as the page asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from gruppetto.dashboard.alarms import alarms_of
from gruppetto.dashboard.headline import headline_of, is_expected, seen_state
from gruppetto.dashboard.lane import MEASURED, Lane
from gruppetto.dashboard.picture import Picture
from gruppetto.dashboard.plausible import MOST_WHOLE
from gruppetto.dashboard.series import Series, Window
from gruppetto.protocol.admission import ADVICE, CLIP_ADVICE, ROUTINE
from gruppetto.report.summary import FP32_BYTES, data_parallel_bytes

__all__ = ["MAX_SLOTS", "head", "lane_in_window", "window"]

MAX_SLOTS = 1000
LANE_SLOTS, FEW_LANES = 300, 16
HAPPENINGS = 400
"""Newest ones of a window that are sent; the page says how many more there are."""
SUMMED = frozenset({"spoilt", "consumed", "merged", "steps", "up", "down"})
"""Of these the sum of a slot has a meaning, and its extremes have none."""
TRAINS = frozenset({"training", "waiting"})
STATES = {"live": "here", "joining": "recovering", "away": "offline", "left": "left"}
ADVICE_BY_NAME = {reason.value: text for reason, text in ADVICE.items()}
CLIP_BY_NAME = {cause.value: text for cause, text in CLIP_ADVICE.items()}


def head(picture: Picture, now: float, *, live: bool) -> dict[str, Any]:
    """What is true now, whatever part of the run somebody looks at."""
    headline = headline_of(picture, now, live=live)
    states = [seen_state(picture, lane, now) for lane in picture.lanes.values()]
    last = picture.latest[-1] if picture.latest else None
    merged = round(min(MOST_WHOLE, float(picture.series["merged"].window(0.0, now + 1, most=1).total.sum())))
    consumed = sum(lane.tokens for lane in picture.lanes.values()) + picture.crowd_tokens
    moved = picture.up_bytes + picture.down_bytes
    equivalent = data_parallel_bytes(picture.header.get("numel"), picture.steps())
    return {
        "now": now,
        "live": live,
        "began_wall_s": picture.timeline.began_wall_s if picture.world == "real" else None,
        "headline": asdict(headline),
        "run_id": str(picture.header.get("simulated") or picture.header.get("run_id") or ""),
        "world": picture.world,
        "simulated": {"stride": picture.header.get("stride", 1), **picture.simulated}
        if picture.world == "simulated"
        else None,
        "round": picture.published,
        "rounds": picture.rounds,
        "lives": picture.lives,
        "settings": {
            key: picture.setting.get(key) for key in ("num_fragments", "sync_period", "min_quorum", "overlap_steps")
        },
        "parameters": picture.header.get("numel"),
        "learners": sum(1 for lane in picture.lanes.values() if is_expected(lane)),
        "live_learners": sum(1 for state in states if state in ("training", "waiting")),
        "training": states.count("training"),
        "taking_part": len(last.participants) if last is not None else 0,
        "known": len(picture.lanes) + len(picture.crowd),
        "crowd": len(picture.crowd),
        "tokens": picture.ledger or {"consumed": consumed, "merged": merged},
        "bytes": {"up": picture.up_bytes, "down": picture.down_bytes, "data_parallel": equivalent, "moved": moved},
        "loss": picture.series["loss"].last,
        "spoilt": [
            lane.name for lane in _in_order(picture) if lane.spoilt and seen_state(picture, lane, now) in TRAINS
        ],
        "evaluated": picture.evaluations[-1] if picture.evaluations else None,
        "lines": picture.lines,
        "damaged_lines": picture.damaged_lines,
    }


def window(picture: Picture, start: float, end: float, *, slots: int) -> dict[str, Any]:
    """What happened in [start, end], in seconds since the run began."""
    slots = max(8, min(MAX_SLOTS, slots))
    end = max(end, start + 1e-3)
    drawn = {
        name: _columns(each.window(start, end, most=slots), name in SUMMED) for name, each in picture.series.items()
    }
    said = picture.happenings.within(start, end)
    lane_slots = min(slots, LANE_SLOTS if len(picture.lanes) <= FEW_LANES else LANE_SLOTS // 2)
    return {
        "from": start,
        "to": end,
        "lanes": [_lane(picture, lane, start, end, lane_slots) for lane in _in_order(picture)],
        "series": drawn,
        "data_parallel_bytes_a_step": _bytes_a_step(picture),
        "evaluations": [each for each in picture.evaluations if start <= each[0] <= end],
        "rejections": _counts(picture.rejected, ADVICE_BY_NAME),
        "clippings": _counts(picture.clipped, CLIP_BY_NAME),
        "alarms": alarms_of(picture),
        "happenings": [asdict(each) for each in said[-HAPPENINGS:]],
        "happenings_left_out": max(0, len(said) - HAPPENINGS) + picture.happenings.forgotten,
    }


def lane_in_window(picture: Picture, name: str, start: float, end: float, *, slots: int) -> dict[str, Any] | None:
    """All that was measured of one learner in [start, end]; None if there is no such learner."""
    lane = picture.lanes.get(name)
    if lane is None:
        return None
    slots = max(8, min(MAX_SLOTS, slots))
    measured = {key: _columns(lane.measured[key].window(start, end, most=slots)) for key in MEASURED}
    return {"name": name, "from": start, "to": end, "meaning": MEASURED, "series": measured}


def _in_order(picture: Picture) -> list[Lane]:
    return [picture.lanes[name] for name in sorted(picture.lanes)]


def _lane(picture: Picture, lane: Lane, start: float, end: float, slots: int) -> dict[str, Any]:
    busy = lane.busy.window(start, end, most=slots)
    beats = lane.measured["share"].window(start, end, most=slots)
    return {
        "name": lane.name,
        "state": seen_state(picture, lane, picture.now),
        "why": lane.why,
        "source": lane.source,
        "clock": lane.clock,
        "steps": lane.steps,
        "tokens": lane.tokens,
        "merged_rounds": lane.merged_rounds,
        "last_merged_round": lane.last_merged_round,
        "rejected": dict(lane.rejected),
        "step_s": _tidy(lane.step_s),
        **{name: _tidy(lane.measured[name].last) for name in MEASURED if name != "step_s"},
        **_now(picture, lane),
        "stretches": _coalesced(lane, start, end, (end - start) / slots),
        # By the number of the slot, and the share in hundredths: of many lanes this is most of what is sent.
        "busy": {
            **_places(busy),
            "share": np.minimum(100, 100 * busy.total / busy.width_s).round().astype(int).tolist(),
        },
        "beats": {**_places(beats), "n": beats.count.astype(int).tolist()},
    }


def _now(picture: Picture, lane: Lane) -> dict[str, Any]:
    """What was last measured and is so no more: a share is one of the newest round that was merged, so that they add up
    to one; and the last loss is not what it was before it was no number."""
    holds_it = lane.last_merged_round is not None and lane.last_merged_round == picture.merged_round
    return {
        "share": _tidy(lane.measured["share"].last) if holds_it else None,
        "loss": None if lane.spoilt else _tidy(lane.measured["loss"].last),
        "spoilt": lane.spoilt,
    }


def _coalesced(lane: Lane, start: float, end: float, shortest_s: float) -> list[tuple[float, float, str]]:
    """States of the window; what is too short to be drawn is shown as long as it can be seen, the gravest first."""
    drawn: list[tuple[float, float, str]] = []
    gravity = {"offline": 3, "recovering": 2, "here": 1, "left": 0}
    for a, b, state in lane.states.within(start, end):
        shown = STATES.get(state, "offline")
        if drawn and b - a < shortest_s and drawn[-1][1] - drawn[-1][0] < shortest_s:
            first, _, before = drawn[-1]
            drawn[-1] = (first, b, max(before, shown, key=gravity.__getitem__))
        else:
            drawn.append((a, b, shown))
    return [(_sig(a), _sig(b), state) for a, b, state in drawn]


def _counts(counts: Mapping[str, int], advice: Mapping[str, str]) -> list[dict[str, Any]]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [
        {"reason": reason, "count": count, "advice": advice.get(reason, ""), "routine": reason in ROUTINE}
        for reason, count in ordered
    ]


def _bytes_a_step(picture: Picture) -> float | None:
    """What data parallel would send for one step of one of these learners, as :func:`data_parallel_bytes` counts."""
    numel, learners = picture.header.get("numel"), len(picture.steps())
    return 2 * (learners - 1) / learners * FP32_BYTES * numel if numel and learners else None


def _columns(found: Window, summed: bool = False) -> dict[str, Any]:
    common = {"width": found.width_s, "t": _list(found.start), "n": found.count.astype(int).tolist()}
    if summed:
        return {**common, "sum": _list(found.total)}
    mean = found.total / np.maximum(found.count, 1)
    return {**common, "low": _list(found.low), "high": _list(found.high), "mean": _list(mean)}


def _places(found: Window) -> dict[str, Any]:
    return {"width": found.width_s, "i": (found.start / found.width_s).round().astype(int).tolist()}


def _list(values: Any) -> list[float]:
    return [_sig(value) for value in values.tolist()]


def _sig(value: float) -> float:
    """Enough digits for a picture."""
    return float(f"{value:.7g}")


def _tidy(value: float | None) -> float | None:
    return None if value is None else _sig(value)


def series_of(picture: Picture) -> dict[str, Series]:
    """Everything that can be downloaded, by name."""
    lanes = {f"{lane.name}/{key}": lane.measured[key] for lane in _in_order(picture) for key in MEASURED}
    return {**picture.series, **lanes}
