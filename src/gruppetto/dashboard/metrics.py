"""``/metrics``: what a syncer says of itself, as text for Prometheus. Every metric is one row of :data:`METRICS`.

>>> sample("gruppetto_rejected_total", {"reason": "late"}, 2.0)
'gruppetto_rejected_total{reason="late"} 2'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gruppetto.dashboard.seen import MAX_LANES

__all__ = ["METRICS", "Metric", "exposition", "sample"]

Labels = Mapping[str, str]
Status = Mapping[str, Any]
Values = Iterable[tuple[Labels, float | None]]
LEARNER_STATES = ("joining", "live", "away", "left")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """``read`` takes the syncer's status (:func:`gruppetto.runtime.health.status_of`); None is not said at all."""

    name: str
    kind: Literal["gauge", "counter"]
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    read: Callable[[Status], Values]


def _plain(*path: str) -> Callable[[Status], Values]:
    def read(status: Status) -> Values:
        value: Any = status
        for key in path:
            value = value[key]
        yield {}, None if value is None else float(value)

    return read


def _each(label: str, *path: str) -> Callable[[Status], Values]:
    def read(status: Status) -> Values:
        counts: Any = status
        for key in path:
            counts = counts[key]
        for name, value in counts.items():
            yield {label: name}, float(value)

    return read


def _of_learner(key: str) -> Callable[[Status], Values]:
    def read(status: Status) -> Values:
        for name, said in _learners(status):
            value = said.get(key)
            yield {"learner": name}, None if value is None else float(value)

    return read


def _states(status: Status) -> Values:
    for name, said in _learners(status):
        for state in LEARNER_STATES:
            yield {"learner": name, "state": state}, float(said["state"] == state)


def _behind(status: Status) -> Values:
    for name, said in _learners(status):
        yield {"learner": name}, float(max(0, status["round"] + 1 - said["clock"])) if said["clock"] else None


def _losses(status: Status) -> Values:
    for name, said in _learners(status):
        reported = said.get("metrics", {})
        if "loss" in reported:
            yield {"learner": name}, math.nan if reported["loss"] is None else reported["loss"]


def _learners(status: Status) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Those with a line of their own; a scraper's memory is bounded too."""
    return sorted(status["learners"].items())[:MAX_LANES]


def _alarms(status: Status) -> Values:
    counts: dict[str, int] = {}
    for alarm in status["alarms"]:
        counts[alarm["kind"]] = counts.get(alarm["kind"], 0) + 1
    for kind, count in counts.items():
        yield {"kind": kind}, float(count)


def _info(status: Status) -> Values:
    yield {"run_id": status["run_id"], "phase": status["phase"], "layout_hash": status["layout_hash"]}, 1.0


METRICS: tuple[Metric, ...] = (
    Metric(name="gruppetto_info", kind="gauge", unit="", labels=("run_id", "phase", "layout_hash"), read=_info,
           help="Always 1; which run this syncer serves, and the phase of its round."),
    Metric(name="gruppetto_epoch", kind="gauge", unit="", read=_plain("epoch"),
           help="Lives of the syncer on this state: rises at every start."),
    Metric(name="gruppetto_uptime_seconds", kind="gauge", unit="seconds", read=_plain("uptime_s"),
           help="Since this syncer began."),
    Metric(name="gruppetto_round", kind="gauge", unit="rounds", read=_plain("round"),
           help="The newest published round. Goes on across restarts."),
    Metric(name="gruppetto_rounds", kind="gauge", unit="rounds", read=_plain("rounds"),
           help="The last round of the run, if it has one."),
    Metric(name="gruppetto_learners_live", kind="gauge", unit="learners", read=_plain("live"),
           help="Learners that are alive and synchronised."),
    Metric(name="gruppetto_learners_taking_part", kind="gauge", unit="learners", read=_plain("taking_part"),
           help="Live learners that were merged in one of the last rounds."),
    Metric(name="gruppetto_quorum_required", kind="gauge", unit="learners", read=_plain("min_quorum"),
           help="The fewest learners that may close a round."),
    Metric(name="gruppetto_quorum_wait_seconds", kind="gauge", unit="seconds", read=_plain("quorum", "mean_s"),
           help="How long rounds wait for their quorum, smoothed."),
    Metric(name="gruppetto_grace_window_seconds", kind="gauge", unit="seconds", read=_plain("grace", "window_s"),
           help="The grace window that the newest round was given."),
    Metric(name="gruppetto_grace_spent_seconds", kind="gauge", unit="seconds", read=_plain("grace", "spent_s"),
           help="What the newest round used of its grace window."),
    Metric(name="gruppetto_sync_seconds", kind="gauge", unit="seconds", read=_plain("grace", "sync_s"),
           help="Merging, persisting and publishing a round, smoothed."),
    Metric(name="gruppetto_tokens", kind="gauge", unit="tokens", labels=("fate",), read=_each("fate", "tokens"),
           help="The ledger: consumed = merged + discarded + lost + promised + open. Shares move on, so gauges."),
    Metric(name="gruppetto_received_bytes_total", kind="counter", unit="bytes", read=_plain("bytes", "up"),
           help="Tensors and frames from the learners, since this syncer began."),
    Metric(name="gruppetto_sent_bytes_total", kind="counter", unit="bytes", read=_plain("bytes", "down"),
           help="Tensors and frames to the learners, since this syncer began."),
    Metric(name="gruppetto_rejected_total", kind="counter", unit="contributions", labels=("reason",),
           read=_each("reason", "rejected"), help="Contributions that were not merged; the page says what to do."),
    Metric(name="gruppetto_clipped_total", kind="counter", unit="contributions", labels=("cause",),
           read=_each("cause", "clipped"), help="Contributions that were merged for less than they hold."),
    Metric(name="gruppetto_alarms_recent", kind="gauge", unit="alarms", labels=("kind",), read=_alarms,
           help="Alarms among the newest twenty, by kind."),
    Metric(name="gruppetto_learner_state", kind="gauge", unit="", labels=("learner", "state"), read=_states,
           help="1 for the state that the learner is in, 0 for the others."),
    Metric(name="gruppetto_learner_steps", kind="gauge", unit="steps", labels=("learner",), read=_of_learner("steps"),
           help="Inner steps of its present process."),
    Metric(name="gruppetto_learner_step_seconds", kind="gauge", unit="seconds", labels=("learner",),
           read=_of_learner("step_s"), help="How long a step takes, smoothed."),
    Metric(name="gruppetto_learner_behind_rounds", kind="gauge", unit="rounds", labels=("learner",), read=_behind,
           help="How far its clock is behind the round under way."),
    Metric(name="gruppetto_learner_tokens", kind="gauge", unit="tokens", labels=("learner",),
           read=_of_learner("tokens"), help="Tokens that it has trained on, over all its lives."),
    Metric(name="gruppetto_learner_merged_rounds_total", kind="counter", unit="rounds", labels=("learner",),
           read=_of_learner("merged_rounds"), help="Rounds with work of it, since this syncer began."),
    Metric(name="gruppetto_learner_norm", kind="gauge", unit="", labels=("learner",), read=_of_learner("norm"),
           help="Norm of its newest outer gradient, against what is usual."),
    Metric(name="gruppetto_learner_cosine", kind="gauge", unit="", labels=("learner",), read=_of_learner("cosine"),
           help="Cosine between its newest outer gradient and the momentum of what was merged."),
    Metric(name="gruppetto_learner_loss", kind="gauge", unit="nats per token", labels=("learner",), read=_losses,
           help="Loss on its own batch, if it reports one; NaN if it is not finite."),
)  # fmt: skip
"""In the order in which they are said."""


def exposition(status: Status) -> str:
    """All metrics of a syncer in the text format 0.0.4."""
    lines: list[str] = []
    for metric in METRICS:
        samples = [sample(metric.name, labels, value) for labels, value in metric.read(status) if value is not None]
        if samples:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}", *samples]
    return "\n".join(lines) + "\n"


def sample(name: str, labels: Labels, value: float) -> str:
    """One line."""
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {_number(value)}" if inside else f"{name} {_number(value)}"


def _escaped(text: str) -> str:
    return str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
