"""From a run directory to its report: report.json, report.html and figures/."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gruppetto.errors import DataError
from gruppetto.files import content_of, json_in
from gruppetto.report.curves import Curve, curve_of_rival, curve_of_run, read_train_log
from gruppetto.report.page import page
from gruppetto.report.story import story
from gruppetto.report.summary import summary_of_rival, summary_of_run
from gruppetto.report.traces import about_missing_traces, read_traces
from gruppetto.runtime.store_opening import holds_commits
from gruppetto.trace.measures import Measures

__all__ = [
    "DEATHS",
    "EVALUATION",
    "PLAN",
    "PROCESSES",
    "RIVALS",
    "RUN",
    "TRACE",
    "TRAIN_LOG",
    "VERDICT",
    "VIRTUAL",
    "Report",
    "write_report",
]

RUN = "run.toml"
"""The settings, resolved."""
TRACE = "trace.jsonl"
PROCESSES = "processes.json"
"""How the processes of the run are, as its launcher wrote it last."""
EVALUATION = "evaluation.jsonl"
"""Evaluations while the run goes on; another process writes them."""
DEATHS = "deaths.jsonl"
"""Processes that were seen dying, while the run goes on; the launcher writes them."""
PLAN, TRAIN_LOG = "plan.json", "train.jsonl"
"""Of a rival: what it was to do, and how it went."""
VIRTUAL = "virtual.json"
"""Beside the training log of a rival in virtual time: its goodput, and its curve by virtual seconds."""
RIVALS = "rivals"
"""Runs to compare with, inside a run directory."""
VERDICT = "verdict.json"
"""Of a run that was disturbed on purpose."""
NO_FIGURES = "There are no figures: matplotlib is missing. pip install 'gruppetto[dashboard]', then gruppetto report."


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """``figures``: report.json as a dictionary. ``text``: what happened, for a terminal."""

    figures: dict[str, Any]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What a run directory holds: a trace, or the training log of a rival."""

    summary: dict[str, Any]
    curve: Curve
    found: Measures | None
    records: list[dict[str, Any]]


def write_report(directory: Path, compare: Sequence[Path] = ()) -> Report:
    """Read the run in ``directory`` and write its report there, over an older one.

    It is compared with the runs in ``compare`` and those in its own directory ``rivals``: their loss is drawn beside
    its own. Raises :class:`DataError` when there is no run.
    """
    run = _read(directory)
    others = [_read(other) for other in (*sorted((directory / RIVALS).glob("*/")), *compare)]
    run.summary["rivals"] = [_as_rival(other.summary) for other in others]
    curves = [run.curve, *(other.curve for other in others)]
    if (directory / VERDICT).exists():
        run.summary["verdict"] = _verdict(directory / VERDICT)
    pictures, notices = _draw(directory, run, curves)
    missing = about_missing_traces(directory / TRACE, directory / RUN) if run.found is not None else ()
    text = story(run.summary, directory, (*missing, *notices))
    _write(directory / "report.json", json.dumps(run.summary, indent=2, allow_nan=False) + "\n")
    whole = page(
        run.summary,
        title=_name_of(directory),
        story=text,
        pictures=pictures,
        run_toml=_text_of(directory / RUN),
        sample=_text_of(directory / "sample.txt"),
    )
    _write(directory / "report.html", whole)
    return Report(figures=run.summary, text=text)


def _name_of(directory: Path) -> str:
    """Its last part, fit for a page and a picture even if it is no UTF-8."""
    return directory.resolve().name.encode("utf-8", "replace").decode()


def _label(mode: str, directory: Path) -> str:
    name = _name_of(directory)
    return mode if name == mode else f"{mode} ({name})"


def _as_rival(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "mode": summary["mode"],
        "learners": len(summary["learners"]),
        "rounds": summary["rounds"],
        "tokens": summary["tokens"]["consumed"],
        "loss": summary["eval"]["loss"],
    }


def _read(directory: Path) -> _Run:
    if (directory / TRACE).exists():
        notes = [directory / name for name in (EVALUATION, DEATHS) if (directory / name).exists()]
        found = read_traces(directory / TRACE, directory / RUN, notes)
        return _Run(
            summary=summary_of_run(found),
            curve=curve_of_run(found, _label("decoupled", directory)),
            found=found,
            records=[],
        )
    if (directory / TRAIN_LOG).exists():
        records, plan = read_train_log(directory / TRAIN_LOG), _plan(directory)
        setting = plan["setting"]
        return _Run(
            summary=summary_of_rival(
                records,
                mode=plan["mode"],
                tokens_per_step=setting["batch_size"] * setting["model"]["context"],
                world="virtual" if (directory / VIRTUAL).exists() else "real",
            ),
            curve=curve_of_rival(records, _label(plan["mode"], directory), plan["num_learners"]),
            found=None,
            records=records,
        )
    if holds_commits(directory) or holds_commits(directory / "syncer"):
        raise DataError(
            f"has the state of a syncer and no {TRACE}",
            where=str(directory),
            fix=f"name the directory that has it; a syncer writes one with --trace DIR/{TRACE}",
        )
    raise DataError(
        f"has neither {TRACE} nor {TRAIN_LOG}", where=str(directory), fix="name the directory of a run that has begun"
    )


def _plan(directory: Path) -> Mapping[str, Any]:
    path = directory / PLAN
    try:
        plan: Mapping[str, Any] = json_in(path)
        for key in ("mode", "setting", "num_learners"):
            plan[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"cannot be read ({error!r})", where=str(path), fix="name the directory of a run") from error
    return plan


def _draw(directory: Path, run: _Run, curves: Sequence[Curve]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Write the figures; their SVG by name, and what has to be said about them."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return {}, (NO_FIGURES,)
    from gruppetto.report.figures import as_svg, draw_rival, draw_run, save_png

    drawn = draw_run(run.found, run.summary, curves) if run.found is not None else draw_rival(run.records, curves)
    place = directory / "figures"
    place.mkdir(exist_ok=True)
    for name, figure in drawn.items():
        save_png(figure, place / f"{name}.png")
    # What others have drawn about the run comes first: it is what the run was made for.
    others = {path.stem: _text_of(path) for path in sorted(place.glob("*.svg"))}
    return {**others, **{name: as_svg(figure, name) for name, figure in drawn.items()}}, ()


def _verdict(path: Path) -> dict[str, Any]:
    try:
        verdict: dict[str, Any] = json_in(path)
        for check in verdict["checks"]:
            check["name"], check["state"], check["text"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"is no verdict ({error!r})", where=str(path), fix="delete it") from error
    return verdict


def _text_of(path: Path) -> str:
    return content_of(path).decode(errors="replace") if path.exists() else ""


def _write(path: Path, text: str) -> None:
    """Whole or not at all: somebody may be reading the old one."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8", errors="replace")
    new.replace(path)
