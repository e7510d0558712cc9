"""Draw the figures of docs/concepts.md. What can be computed by the code that ships is computed by it.

python tools/figures.py            writes them to docs/figures
python tools/figures.py --check    exits with 1 if one of them is not what would be written
"""

from __future__ import annotations

import sys
from typing import Any

import written
from svg import INK, PALE, Sheet

from gruppetto.protocol.events import StepDone, StepStarted
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.schedule import Schedule
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.units import Round
from gruppetto.sim import LearnerSpec, Link, Pace, SyncerCosts, World
from gruppetto.sim.mishaps import Mishap, MishapKind

# Okabe and Ito's, told apart by every eye.
BLUE, ORANGE, GREEN, RED, SKY, SAND = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#f0e4b0"
WAITS = "#e3e5e8"

# ── pace: the same twenty seconds, in step and decoupled ────────────────────────────────────────────────────────────

STEPS_S = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.6}
DIES_S, BACK_S, UNTIL_S = 9.3, 14.5, 20.0
LEFT, WIDE, ROW = 50.0, 33.0, 26.0


class Timed(LearnerCore):
    """The shipping core, and when its steps began and ended."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.made: list[tuple[float, float]] = []
        self._step_began: float | None = None

    def step(self, now: float, event: Any) -> Any:
        match event:
            case StepStarted():
                self._step_began = now
            case StepDone() if self._step_began is not None:
                self.made.append((self._step_began, now))
                self._step_began = None
            case _:
                pass
        return super().step(now, event)


def decoupled() -> tuple[dict[str, list[tuple[float, float]]], list[tuple[float, tuple[str, ...]]]]:
    """Steps of each learner, and who is in each round: the shipping cores in virtual time."""
    cores: list[Timed] = []

    def make(*args: Any, **kwargs: Any) -> Timed:
        cores.append(Timed(*args, **kwargs))
        return cores[-1]

    world = World(
        ProtocolSetting(num_learners=4, start_learners=4, num_fragments=4, sync_period=4),
        [LearnerSpec(name=name, pace=Pace(step_s=s), link=Link(latency_s=0.02)) for name, s in STEPS_S.items()],
        seed=1,
        costs=SyncerCosts(merge_s=0.05),
        make_learner=make,
        mishaps=[Mishap(at_s=DIES_S, kind=MishapKind.KILL, who="b", lasts_s=BACK_S - DIES_S)],
    )
    world.run(until=UNTIL_S + 2 * max(STEPS_S.values()))
    steps: dict[str, list[tuple[float, float]]] = {name: [] for name in STEPS_S}
    for core in cores:
        steps[core.learner] += core.made
    return steps, [(t, closed.participants) for t, closed in world.closed if t <= UNTIL_S]


def in_step() -> dict[str, list[tuple[float, float]]]:
    """The same hardware as one job: a step lasts as long as its slowest part, and stops with any of them."""
    slowest = max(STEPS_S.values())
    steps: dict[str, list[tuple[float, float]]] = {name: [] for name in STEPS_S}
    t = 0.0
    while t + slowest <= UNTIL_S:
        if t < BACK_S and t + slowest > DIES_S:
            t = BACK_S
            continue
        for name, step_s in STEPS_S.items():
            steps[name].append((t, t + step_s))
        t += slowest
    return steps


def pace() -> str:
    sheet = Sheet(
        LEFT + UNTIL_S * WIDE + 20, 344, "One job in step, and four learners that never wait",
        "Above, four parts of one job: three wait for the slowest in every step, and all of them while one is dead. "
        "Below, four decoupled learners: each trains all the time; the dead one costs its own time only.",
    )  # fmt: skip
    sheet.text(16, 26, "One job: everybody waits for the slowest, and for the dead", "head")
    _lanes(sheet, 40.0, in_step())
    sheet.text(16, 186, "Four learners: nobody waits for anybody", "head")
    steps, rounds = decoupled()
    _lanes(sheet, 200.0, steps)
    for t, participants in rounds:
        for name in participants:
            sheet.circle(LEFT + t * WIDE, 200.0 + ROW * list(STEPS_S).index(name) + 23, 2.4, INK)
    y = 322.0
    sheet.rect(LEFT, y - 6, 12, 12, BLUE, round=2).text(LEFT + 18, y + 4, "a step", "small")
    sheet.rect(LEFT + 80, y - 6, 12, 12, WAITS, round=2).text(LEFT + 98, y + 4, "waits", "small")
    sheet.circle(LEFT + 166, y, 2.4, INK).text(LEFT + 176, y + 4, "merged in a round", "small")
    sheet.cross(LEFT + 306, y, 5, RED).text(LEFT + 318, y + 4, "killed, comes back", "small")
    return sheet.text_of_svg()


def _lanes(sheet: Sheet, top: float, steps: dict[str, list[tuple[float, float]]]) -> None:
    for row, (name, made) in enumerate(steps.items()):
        y = top + ROW * row
        sheet.text(16, y + 15, name)
        sheet.rect(LEFT, y, UNTIL_S * WIDE, 20, WAITS, round=3)
        for began, end in ((began, min(ended, UNTIL_S)) for began, ended in made if began < UNTIL_S):
            sheet.rect(LEFT + began * WIDE, y, (end - began) * WIDE - 1.5, 20, BLUE if name != "d" else SKY, round=2)
        if name == "b":
            sheet.rect(LEFT + DIES_S * WIDE, y, (BACK_S - DIES_S) * WIDE, 20, "#fbfbfa")
            sheet.cross(LEFT + DIES_S * WIDE + 7, y + 10, 5, RED)


# ── a round ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def a_round() -> str:
    sheet = Sheet(
        760, 372, "A round, from quorum to publication",
        "The syncer waits for K learners at clock t, asks all of them, folds in what arrives, waits out a grace "
        "window, takes one outer step, makes it durable, and publishes. Learners go on training all the while.",
    )  # fmt: skip
    lanes = {"learner a": 62.0, "learner b": 112.0, "learner c, slower": 162.0, "syncer": 262.0}
    for name, y in lanes.items():
        sheet.text(16, y + 5, name, "head" if name == "syncer" else "")
    for name, step in (("learner a", 92.0), ("learner b", 98.0), ("learner c, slower", 138.0)):
        x, y = 140.0 + {"learner a": 0.0, "learner b": 12.0, "learner c, slower": -70.0}[name], lanes[name]
        while x < 740:
            first, last = max(x, 140.0), min(x + step - 2, 744.0)
            sheet.rect(first, y - 10, last - first, 20, SKY if "slower" in name else BLUE, round=3)
            x += step
    asked, closed = 250.0, 430.0
    phases = (
        (140.0, asked, SAND, "quorum"), (asked, closed, ORANGE, "grace"), (closed, 500.0, GREEN, "outer step"),
        (500.0, 560.0, PALE, "durable"), (560.0, 604.0, SKY, "publish"), (604.0, 744.0, SAND, "the next one"),
    )  # fmt: skip
    for x, end, fill, words in phases:
        sheet.rect(x, 248, end - x - 2, 28, fill, round=3).text((x + end) / 2, 266, words, "on mid")
    for name in list(lanes)[:3]:
        sheet.line(asked, 246, asked + 3, lanes[name] + 12, color=PALE, dashed=True, arrow=True)
    for name, x in (("learner a", 286.0), ("learner b", 300.0), ("learner c, slower", 408.0)):
        sheet.line(x, lanes[name] + 12, x + 12, 246, arrow=True)
    for name, x in (("learner a", 602.0), ("learner b", 612.0), ("learner c, slower", 622.0)):
        sheet.line(600, 246, x, lanes[name] + 12, color=GREEN, width=1.6, arrow=True)
    sheet.text(16, 28, "Learners train; the syncer asks, merges, and hands the result back", "head")
    for row, words in enumerate(
        (
            "dashed: ask for the fragments due; black: contributions, folded in as they arrive; "
            "green: the new value, applied at a step boundary",
            "The round closes when everybody has answered, or the fleet has moved on, or the grace window is spent.",
            "A contribution that comes later is refused as late. That costs its learner work, and no time.",
        )
    ):
        sheet.text(16, 308 + 20 * row, words, "small")
    return sheet.text_of_svg()


# ── fragments ───────────────────────────────────────────────────────────────────────────────────────────────────────


def fragments() -> str:
    schedule, rounds, cell = Schedule(num_fragments=4, sync_period=8), 24, 25.0
    sheet = Sheet(
        130 + rounds * cell, 218, "Which fragment is merged in which round",
        "P is 4 and H is 8: each of four fragments is due once in eight rounds, two rounds after the one before it.",
    )  # fmt: skip
    sheet.text(16, 28, "P = 4 fragments, H = 8: one of them every other round, each once in eight", "head")
    for p, color in enumerate((BLUE, ORANGE, GREEN, SKY)):
        y = 50 + 28.0 * p
        sheet.text(16, y + 15, f"fragment {p}")
        for t in range(rounds):
            due = p in schedule.due(Round(t))
            sheet.rect(110 + t * cell, y, cell - 3, 20, color if due else WAITS, round=3)
    for t in range(0, rounds, 2):
        sheet.text(110 + t * cell + 11, 180, str(t), "small mid")
    sheet.text(16, 180, "round", "small")
    sheet.text(16, 204, "Links never carry the whole model at once: a P-th of it in each of these rounds.", "small")
    return sheet.text_of_svg()


# ── fates of a token ────────────────────────────────────────────────────────────────────────────────────────────────


def fates() -> str:
    sheet = Sheet(
        760, 262, "What becomes of a token",
        "A token that a learner trained on is open until it is merged, promised ahead of a round, discarded, or lost.",
    )  # fmt: skip
    sheet.text(16, 28, "consumed = merged + promised + discarded + lost + open, at every moment", "head")
    boxes = {
        "consumed": (24, 104, WAITS, "trained on"),
        "open": (204, 104, SAND, "in a learner, not sent yet"),
        "merged": (460, 46, GREEN, "in Θ, and durable"),
        "promised": (460, 100, SKY, "given ahead by who leaves"),
        "discarded": (460, 154, ORANGE, "refused, or overwritten"),
        "lost": (460, 208, RED, "with a process that died"),
    }
    for name, (x, y, fill, words) in boxes.items():
        sheet.rect(x, y, 112, 36, fill, round=6).text(x + 56, y + 23, name, "mid")
        if x == 460:
            sheet.text(x + 124, y + 23, words, "small")
        else:
            sheet.text(x + 56, y + 54, words, "small mid")
    sheet.line(138, 122, 200, 122, arrow=True)
    for name in ("merged", "promised", "discarded", "lost"):
        x, y, _, _ = boxes[name]
        sheet.line(318, 122, x - 4, y + 18, arrow=True)
    sheet.line(516, 98, 516, 86, arrow=True)
    return sheet.text_of_svg()


if __name__ == "__main__":
    drawings = {"pace": pace, "round": a_round, "fragments": fragments, "fates": fates}
    sys.exit(written.main({f"figures/{name}.svg": draw for name, draw in drawings.items()}))
