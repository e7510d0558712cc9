"""An experiment's findings as a table in Markdown, a figure, and JSON."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gruppetto.experiments.experiment import HOW, Arm, Scale
from gruppetto.experiments.findings import NOT_MADE, Findings, Judged
from gruppetto.experiments.texts import several
from gruppetto.files import json_in
from gruppetto.sim.tally import spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "kept_for", "table", "write"]


def table(findings: Findings) -> str:
    """What was asked, the table, and the orderings."""
    experiment, columns = findings.experiment, findings.experiment.columns
    lines = [
        f"# {experiment.name}{' (quick)' if findings.scale.quick else ''}",
        "",
        experiment.question,
        "",
        f"*{HOW[experiment.how].capitalize()}.* Mean ± half its 95 % interval (Student's t over seeds).",
        "",
        *_corpus(findings),
        f"| arm | {' | '.join(column.title for column in columns)} | seeds |",
        "|---" * (len(columns) + 2) + "|",
    ]
    made = [arm for arm in findings.arms if findings.seeds(arm)]
    for arm in made:
        cells = [findings.cell(arm, column) for column in columns]
        lines.append(f"| {arm.name} | {' | '.join(cells)} | {len(findings.seeds(arm))} |")
    judged = [each for each in findings.judged() if each.verdict.word != NOT_MADE]
    if judged:
        lines += ["", "| what should come out | verdict | difference |", "|---|---|---|", *map(_row, judged)]
    if missing := [arm.name for arm in findings.arms if arm not in made]:
        lines += ["", f"Not made: {'; '.join(missing)}."]
    if lacking := findings.lacking():
        lines += ["", f"There is nothing to stand beside without: {'; '.join(lacking)} (add it to --only)."]
    if experiment.paper:
        lines += ["", f"The paper: {experiment.paper}"]
    return "\n".join(lines) + "\n"


def _corpus(findings: Findings) -> list[str]:
    if not findings.scale.data:
        mixed = several(findings.texts())
        return [f"Results of several texts under one name: {mixed}.", ""] if mixed else []
    hashes = " and ".join(findings.corpora())
    return [f"Corpus: `{findings.scale.data}`{f', sha256 {hashes}…' if hashes else ''}.", ""]


def _row(judged: Judged) -> str:
    verdict = judged.verdict
    share = "" if verdict.share is None else f"{100 * verdict.share:+.2f} %"
    half = "" if verdict.half is None else f" ± {100 * verdict.half:.2f} %"
    return f"| {judged.ordering.says} | {verdict.word} | {share}{half} |"


def write(findings: Findings, place: Path) -> list[Path]:
    """``NAME.md``, ``NAME.json`` and ``NAME.png``; without matplotlib no figure. A quick look is ``NAME-quick``, and on
    another corpus than the default it is ``NAME-on-CORPUS``.

    Each is replaced whole or left as it is. Raises :class:`OSError`.
    """
    place.mkdir(parents=True, exist_ok=True)
    page, data, picture = (place / f"{_stem(findings)}.{ending}" for ending in ("md", "json", "png"))
    said = json.dumps(findings.as_json(), indent=1, ensure_ascii=False) + "\n"
    for path, text in ((page, table(findings)), (data, said)):
        with _replaced(path) as new:
            new.write_text(text, encoding="utf-8")
    with suppress(ImportError):
        from gruppetto.report.figures import save_png

        with _replaced(picture) as new:
            save_png(draw(findings), new)
        return [page, data, picture]
    return [page, data]


def kept_for(findings: Findings, place: Path) -> str:
    """What the pages that :func:`write` would replace tell and these findings do not, in words; "" for nothing.

    That is arms, where a part of them was asked for, and more seeds.
    """
    try:
        told = json_in(place / f"{_stem(findings)}.json")["arms"]
        there = {str(each["arm"]): int(each["seeds"]) for each in told if each["seeds"]}
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    ours = {arm.name: len(findings.seeds(arm)) for arm in findings.arms}
    arms = [name for name in there if name not in ours] if findings.scale.only else []
    if arms:
        return f"{len(arms)} arm{'s' * (len(arms) > 1)} that --only leaves out"
    if any(there.get(name, 0) > seeds for name, seeds in ours.items()):
        return f"{max(there.values())} seeds, and here are {max(ours.values())}"
    return ""


def _stem(findings: Findings) -> str:
    return findings.experiment.name + _suffix(findings.scale)


def _suffix(scale: Scale) -> str:
    """What is of another corpus does not take the place of what is there."""
    on = "-on-" + re.sub(r"\W+", "-", scale.data).strip("-")[-80:] if scale.data else ""
    return on + ("-quick" if scale.quick else "")


@contextmanager
def _replaced(path: Path) -> Iterator[Path]:
    """A name beside ``path``, for what takes its place at the end of the block."""
    new = path.with_name(f".{path.stem}-{socket.gethostname()}-{os.getpid()}{path.suffix}")
    try:
        yield new
        new.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        new.unlink(missing_ok=True)


def draw(findings: Findings) -> Figure:
    """The first column: lines over x where arms are points of lines, else a row for each arm. Raises ImportError."""
    from matplotlib.figure import Figure

    drawn = [arm for arm in findings.arms if findings.values(arm, findings.experiment.columns[0])]
    lines = [arm for arm in drawn if arm.line]
    height = 3.8 if lines else 1.2 + 0.3 * len(drawn)
    picture = Figure(figsize=(7.2, height), layout="constrained")
    axes = picture.subplots()
    if lines:
        _draw_lines(axes, findings, lines)
    else:
        _draw_rows(axes, findings, drawn)
    axes.grid(alpha=0.25)
    axes.set_title(f"{findings.experiment.name}: {HOW[findings.experiment.how].partition(':')[0]}", fontsize="medium")
    return picture


def _draw_lines(axes: Axes, findings: Findings, arms: list[Arm]) -> None:
    from matplotlib.ticker import PercentFormatter

    from gruppetto.report.figures import COLOURS

    column = findings.experiment.columns[0]
    for place, line in enumerate(dict.fromkeys(arm.line for arm in arms)):
        points = sorted((arm for arm in arms if arm.line == line), key=lambda arm: arm.x)
        found = [spread(findings.values(arm, column)) for arm in points]
        axes.errorbar(
            [arm.x for arm in points],
            [mean for mean, _ in found],
            yerr=[half or 0.0 for _, half in found],
            fmt="o-",
            ms=3,
            lw=1.6,
            capsize=3,
            color=COLOURS[place % len(COLOURS)],
            label=line,
        )
    if findings.experiment.log_x:
        axes.set_xscale("log")
        lengths = sorted({arm.x for arm in arms})
        axes.set_xticks(lengths, [f"{x:g}" for x in lengths], minor=False)
        axes.set_xticks([], minor=True)
    axes.set_xlabel(findings.experiment.x_label)
    axes.set_ylabel(column.title)
    if column.form.endswith("%"):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(fontsize="small")


def _draw_rows(axes: Axes, findings: Findings, arms: list[Arm]) -> None:
    from gruppetto.report.figures import COLOURS

    column = findings.experiment.columns[0]
    found = [spread(findings.values(arm, column)) for arm in arms]
    rows = list(range(len(arms)))
    means, halves = [mean for mean, _ in found], [half or 0.0 for _, half in found]
    axes.errorbar(means, rows, xerr=halves, fmt="o", ms=4, capsize=3, color=COLOURS[0])
    axes.set_yticks(rows, [arm.name for arm in arms])
    axes.invert_yaxis()
    axes.set_xlabel(column.title)
