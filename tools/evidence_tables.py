"""Write the large tables of docs/evidence.md from the results that come with the repository.

python tools/evidence_tables.py            writes them
python tools/evidence_tables.py --check    exits with 1 if one is not what would be written

Between ``<!-- grid: NAME -->`` and ``<!-- end -->`` stands a table of the experiment NAME of decoupled learners beside
data parallel, by number of learners and length; between ``<!-- goals: NAME -->`` and the end, what is within the goals.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import written

from gruppetto.experiments.catalogue import EXPERIMENTS
from gruppetto.experiments.experiment import LOSS, Arm, Scale, beside
from gruppetto.experiments.findings import NOT_MADE, Findings, read
from gruppetto.experiments.quality import GOALS
from gruppetto.experiments.store import Store
from gruppetto.sim.tally import spread

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "evidence.md", ROOT / "experiments" / "results"
SEEDS = 5
KINDS = {"decoupled": "as it ships", "closest": "`closest`", "decoupled in a storm": "as it ships, in a storm"}
WORDS = {"HOLDS": "**holds**", "DOES NOT HOLD": "does not hold"}


class Whole:
    """The whole runs of one experiment."""

    def __init__(self, name: str) -> None:
        self._store = Store(RESULTS / f"{name}.jsonl")
        with tempfile.TemporaryDirectory() as cache:
            # The results of images are of Fashion-MNIST: whether that is on this machine does not matter here.
            (Path(cache) / "fashion-mnist").mkdir()
            (Path(cache) / "fashion-mnist" / "train-images-idx3-ubyte.gz").touch()
            self._findings = Findings(EXPERIMENTS[name], Scale(seeds=SEEDS, cache=Path(cache)), self._store)
            self._judged = {(j.ordering.less, j.ordering.more): j.verdict for j in self._findings.judged()}
        self._arms = {arm.name: arm for arm in self._findings.arms}
        self._beside = beside("loss")
        found = [re.search(r"M = (\d+), T = (\d+)$", name) for name in self._arms]
        self.learners = sorted({int(each[1]) for each in found if each})
        self.lengths = sorted({int(each[2]) for each in found if each})

    def grid(self) -> list[str]:
        lines = [
            f"| beside data parallel; nats | {' | '.join(f'T = {rounds:,}' for rounds in self.lengths)} |",
            "|---" * (len(self.lengths) + 1) + "|",
        ]
        for m in self.learners:
            rows = {f"*data parallel of {'one learner' if m == 1 else m}*": "data parallel"}
            rows |= {f"M = {m}, {what}": kind for kind, what in KINDS.items()}
            for title, kind in rows.items():
                cells = [self._cell(f"{kind}, M = {m}, T = {rounds}") for rounds in self.lengths]
                if any(cells):
                    lines.append(f"| {title} | {' | '.join(cell or '–' for cell in cells)} |")
        return lines

    def goals(self) -> list[str]:
        lines = [
            f"| within the goal | {' | '.join(f'T = {rounds:,}' for rounds in self.lengths)} |",
            "|---" * (len(self.lengths) + 1) + "|",
        ]
        for m in self.learners[1:]:
            for kind in ("decoupled", "closest"):
                cells = []
                for rounds in self.lengths:
                    pair = f"{kind}, M = {m}, T = {rounds}", f"data parallel, M = {m}, T = {rounds}"
                    verdict = self._judged[pair]
                    share = "" if verdict.share is None else f", {_percent(verdict.share, verdict.half, 1)}"
                    word = WORDS.get(verdict.word, verdict.word)
                    cells.append("–" if verdict.word == NOT_MADE else f"{word}{share}")
                if set(cells) != {"–"}:
                    lines.append(f"| M = {m}, {KINDS[kind]}: {100 * GOALS[m]:.0f} % | {' | '.join(cells)} |")
        return lines

    def _cell(self, name: str) -> str:
        arm = self._arms.get(name)
        if arm is None or not (losses := self._findings.values(arm, LOSS)):
            return ""
        if pairs := self._pairs(arm):
            above = _percent(*spread([share for share, _ in pairs]), 2)
            paired, _ = spread([loss for _, loss in pairs])  # of the same seeds as the difference beside it
            return f"**{above}**, {paired:.3f} ({len(pairs)})"
        mean, half = spread(losses)
        return f"{mean:.3f}{'' if half is None else f' ± {half:.3f}'} ({len(losses)})"

    def _pairs(self, arm: Arm) -> list[tuple[float, float]]:
        """(how much above the arm beside it, loss), of every seed that both have."""
        if not arm.beside:
            return []
        rival, found = self._arms[arm.beside], list[tuple[float, float]]()
        for seed in self._findings.seeds(arm):
            if (other := self._store.get(rival.under(seed))) is not None:
                mine = self._store[arm.under(seed)]
                share, loss = read(self._beside, mine, other), read(LOSS.value, mine, other)
                if share is not None and loss is not None:
                    found.append((share, loss))
        return found


def _percent(mean: float, half: float | None, digits: int) -> str:
    sign = "−" if round(mean, digits + 2) < 0 else "+"
    text = f"{sign}{100 * abs(mean):.{digits}f} %"
    return text if half is None else f"{text} ± {100 * half:.{digits}f} %"


def page() -> str:
    def filled(found: re.Match[str]) -> str:
        whole = Whole(found["name"])
        lines = whole.grid() if found["what"] == "grid" else whole.goals()
        return f"{found['begins']}\n\n" + "\n".join(lines) + "\n\n<!-- end -->"

    marked = r"(?P<begins><!-- (?P<what>grid|goals): (?P<name>[\w-]+) -->)\n.*?<!-- end -->"
    return re.sub(marked, filled, PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


if __name__ == "__main__":
    sys.exit(written.main({"evidence.md": page}))
