"""What happened, in a few sentences for the end of a terminal session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gruppetto.report.deaths import about_deaths, is_of_a_death
from gruppetto.report.in_short import as_bytes, as_duration
from gruppetto.report.recoveries import MOST_TOLD, about_many
from gruppetto.report.shards import about_shards
from gruppetto.report.simulated import about_simulated, amount_of

__all__ = ["LOOK_AT", "as_bytes", "as_duration", "story"]

LOOK_AT = "Look at"
"""How the line begins that says where the page is, which the page itself leaves out."""
CALLED = {
    "single": "One learner alone",
    "data-parallel": "Data parallel",
    "elastic": "Elastic data parallel",
    "diloco": "Synchronous DiLoCo",
}


def story(report: Mapping[str, Any], directory: Path, notices: tuple[str, ...] = ()) -> str:
    """A paragraph or two about a run, from its report."""
    learners: Mapping[str, Any] = report["learners"]
    rounds, duration = report["rounds"], as_duration(report["training_s"])
    virtual = " of virtual time" if report.get("world") == "virtual" else ""
    lines = [f"{len(learners)} learner{'s' if len(learners) != 1 else ''} rode {rounds} rounds in {duration}{virtual}."]
    if report.get("simulated"):
        lines = about_simulated(report)
    elif not report["finished"]:
        lines[0] = f"The run did not reach its end: it stands at round {rounds} after {duration}{virtual}."
    if not report.get("simulated"):
        lines += _about_loss(report["eval"])
    lines += _about_rivals(report.get("rivals", ()))
    if report["mode"] == "decoupled":
        lines += _about_pace(learners)
        lines += _about_merging(report)
        lines += _about_bytes(report["bytes"])
        lines += about_shards(report.get("shards", ()))
        lines += _about_trouble(report)
    lines += notices
    model = f"; the trained model is in {directory / 'model'}" if (directory / "model").exists() else ""
    lines.append(f"{LOOK_AT} {directory / 'report.html'}{model}.")
    return "\n".join(lines)


def _about_loss(evaluated: Mapping[str, Any]) -> list[str]:
    first, last = evaluated["initial_loss"], evaluated["loss"]
    if last is None:
        return ["The global model was not evaluated."]
    if first is None:
        return [f"The held-out loss of the global model is {last:.3f} nats per token."]
    fell = 1 - last / first
    change = f"fell by {fell:.0%}" if fell >= 0 else f"ROSE by {-fell:.0%}"
    return [f"The held-out loss of the global model {change}, from {first:.3f} to {last:.3f} nats per token."]


def _about_rivals(rivals: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"{CALLED.get(rival['mode'], 'Another decoupled run')} reached {rival['loss']:.3f} in {rival['rounds']} rounds "
        f"and {rival['tokens']:,} tokens."
        for rival in rivals
        if rival["loss"] is not None
    ]


def _about_pace(learners: Mapping[str, Any]) -> list[str]:
    timed = {name: each["step_s"] for name, each in learners.items() if each["step_s"]}
    if len(timed) < 2:
        return []
    slow, fast = max(timed, key=lambda name: timed[name]), min(timed, key=lambda name: timed[name])
    ratio = timed[slow] / timed[fast]
    merged = learners[slow]["merged_rounds"]
    if ratio < 1.2:
        return []
    return [
        f"A step of {slow} took {ratio:.1f} times as long as one of {fast}. Nobody waited for it; its work was merged "
        f"in {merged} rounds."
    ]


def _about_merging(report: Mapping[str, Any]) -> list[str]:
    tokens, lines = report["tokens"], []
    if report["participation"] is not None:
        lines.append(
            f"On average {report['participation']:.0%} of the live learners were merged in a round; rounds waited "
            f"{report['grace']['mean_s'] or 0.0:.3f} s in their grace window."
        )
    if tokens["consumed"]:
        shares = {fate: tokens[fate] / tokens["consumed"] for fate in ("merged", "discarded", "lost")}
        lines.append(
            f"Of {tokens['consumed']:,} {amount_of(report)} {shares['merged']:.0%} were merged, "
            f"{shares['discarded']:.0%} discarded and {shares['lost']:.0%} lost{_still_open(tokens)}."
        )
    never = [name for name, each in report["learners"].items() if not each["merged_rounds"]]
    if never:
        lines.append(f"Nothing of {', '.join(never)} was ever merged: look at its log and at the rejections.")
    return lines


def _still_open(tokens: Mapping[str, Any]) -> str:
    """Tokens of which nobody knew, when the record ended, what became of them."""
    share = sum(tokens.get(fate, 0) for fate in ("open", "promised")) / tokens["consumed"]
    return f"; {share:.0%} were still under way at the end" if share >= 0.005 else ""


def _about_bytes(moved: Mapping[str, Any]) -> list[str]:
    if moved["up"] is None or not moved["data_parallel_equivalent"]:
        return []
    total = moved["up"] + moved["down"]
    factor = moved["data_parallel_equivalent"] / total if total else 0.0
    return [
        f"{as_bytes(total)} travelled; data parallel would have needed {as_bytes(moved['data_parallel_equivalent'])} "
        f"for the same steps ({factor:.0f} times as much)."
    ]


def _about_trouble(report: Mapping[str, Any]) -> list[str]:
    lines = about_deaths(report)
    gone = [name for name, each in report["learners"].items() if each["state"] == "away"]
    if gone:
        lines.append(f"{', '.join(gone)} went away and did not come back; the others rode on.")
    told = [recovery for recovery in report["recoveries"] if not is_of_a_death(recovery, report)]
    if len(told) > MOST_TOLD:
        lines, told = [*lines, about_many(told)], []
    for recovery in told:
        came = "joined" if recovery["cause"] == "joined" else f"was gone ({recovery['cause']})"
        lines.append(
            f"{recovery['learner']} {came} and was merged after {recovery['seconds']:.1f} s, "
            f"with its state from: {recovery['source']}."
        )
    if report["rejected"]:
        counts = ", ".join(f"{count} {reason}" for reason, count in report["rejected"].items())
        lines.append(f"Contributions that were not merged: {counts}.")
    if report.get("clipped"):
        counts = ", ".join(f"{count} for {cause}" for cause, count in report["clipped"].items())
        lines.append(f"Contributions that were merged for less than they hold: {counts}.")
    for name, found in report["checks"].items():
        if found not in ("ok", "not recorded"):
            lines.append(f"CHECK FAILED, {name}: {found}")
    return lines
