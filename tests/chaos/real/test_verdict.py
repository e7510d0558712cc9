"""Every check of the verdict can fail, and fails for its own reason alone."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.chaos.real.check import Verdict
from gruppetto.chaos.real.evidence import Beat, Evidence, Happened, Step, SyncerLife
from gruppetto.chaos.real.figure import draw_chaos
from gruppetto.chaos.real.levers import Life
from gruppetto.chaos.real.plan import Expectations
from gruppetto.chaos.real.stretches import length, overlap, without
from gruppetto.chaos.real.verdict import judge
from gruppetto.report.figures import as_svg
from gruppetto.trace.measures import Evaluated, Measures, RoundMeasures, joined
from gruppetto.trace.replay import Difference, ReplayResult

BEGAN, ENDED, STEP_S = 1000.0, 1060.0, 0.25
ROUNDS = int((ENDED - BEGAN) / STEP_S)


def steps_from(at: float, until: float, *, life: int) -> list[Step]:
    """A step every quarter of a second."""
    count = int((until - at) / STEP_S)
    times = [at + STEP_S * (n + 1) for n in range(count)]
    return [Step(at=t, life=life, clock=n, seen=int((t - BEGAN) / STEP_S) - 1) for n, t in enumerate(times, start=1)]


def rounds_from(first: int, last: int, who: tuple[str, ...]) -> SyncerLife:
    """A life that published these rounds, one a step."""
    life = SyncerLife(began=BEGAN + STEP_S * (first - 1) - 0.1, restored=first - 1 if first > 1 else None)
    for round in range(first, last + 1):
        at = BEGAN + STEP_S * round
        life.closed.append((at - 0.05, round, who))
        life.published.append((at, round))
    return life


@pytest.fixture
def calm() -> Evidence:
    """Two learners, one syncer, a minute, nothing went wrong."""
    fates = {"consumed": 960, "merged": 900, "discarded": 60, "lost": 0, "open": 0}
    measured = Measures(
        ended_at=60.0,
        tokens=fates,
        recorded_tokens=dict(fates),
        replay=ReplayResult(events=9, decisions=9, lives=1, first_difference=None),
        evaluations=[
            Evaluated(round=0, loss=5.0, perplexity=148.0),
            Evaluated(round=ROUNDS, loss=2.0, perplexity=7.4),
        ],
    )
    measured.rounds[1] = RoundMeasures(
        round=1, asked_at=0.0, quorum_s=0.1, grace_s=0.1, due=1, at_clock=1, live=2, participants=("anna", "ben")
    )
    return Evidence(
        began=BEGAN,
        ended=ENDED,
        liveness_s=5.0,
        learners=("anna", "ben"),
        faults=[],
        lives=[Life(who=who, pid=pid, at=BEGAN - 5) for who, pid in (("anna", 1), ("ben", 2), ("syncer", 3))],
        hellos={1: BEGAN - 2, 2: BEGAN - 2},
        steps={"anna": steps_from(BEGAN, ENDED, life=1), "ben": steps_from(BEGAN, ENDED, life=2)},
        beats={
            name: [Beat(at=BEGAN + s, life=life, answered=True) for s in range(60)]
            for name, life in (("anna", 1), ("ben", 2))
        },
        syncer=[rounds_from(1, ROUNDS, ("anna", "ben"))],
        malformed=0,
        measures=measured,
    )


def failing(seen: Evidence, **expect: float) -> set[str]:
    return {c.name for c in judge(seen, Expectations(**expect)).checks if c.state == "fail"}


def came(kind: str, who: str, at_s: float, lasts_s: float = 0.0) -> Happened:
    return Happened(number=0, kind=kind, who=who, began=BEGAN + at_s, ended=BEGAN + at_s + lasts_s)


def test_all_holds_when_nothing_is_wrong(calm: Evidence) -> None:
    verdict = judge(calm, Expectations(min_throughput=0.99, max_loss_rise=0.0), compare=[2.0])
    assert verdict.passed
    assert verdict.as_json()["passed"]
    json.dumps(verdict.as_json(), allow_nan=False)
    states = {c.name: c.state for c in verdict.checks}
    assert [name for name, state in states.items() if state == "not applicable"] == [
        "standby-takes-over",
        "bad-learners-do-no-harm",
        "learner-recovery",
        "syncer-recovery",
    ]
    assert "all holds" in str(verdict)


def test_a_run_that_did_not_reach_its_end_is_seen(calm: Evidence) -> None:
    calm.measures.ended_at = None
    assert failing(calm) == {"reaches-its-end"}


# ── nothing merged is lost ───────────────────────────────────────────────────────────────────────────────────────


def forget_a_round(seen: Evidence) -> None:
    del seen.syncer[0].published[7]


def publish_twice(seen: Evidence) -> None:
    seen.syncer[0].published.insert(7, seen.syncer[0].published[7])


def take_up_too_little(seen: Evidence) -> None:
    seen.syncer = [rounds_from(1, 50, ("anna",)), rounds_from(51, ROUNDS, ("anna",))]
    seen.syncer[1].restored = 48


def take_up_less_than_was_seen(seen: Evidence) -> None:
    # The trace of the first life lost its end with the process, but a learner remembers.
    seen.syncer = [rounds_from(1, 40, ("anna",)), rounds_from(46, ROUNDS, ("anna",))]
    seen.syncer[1] = replace(seen.syncer[1], began=BEGAN + 30)


def begin_from_nothing(seen: Evidence) -> None:
    seen.syncer = [rounds_from(1, 50, ("anna",)), rounds_from(1, ROUNDS, ("anna",))]


def an_older_version(seen: Evidence) -> None:
    seen.syncer = [rounds_from(1, 50, ()), rounds_from(51, 90, ()), rounds_from(91, ROUNDS, ())]
    seen.syncer[1].restored_versions, seen.syncer[2].restored_versions = (49, 50), (48, 90)


def tell_an_older_round(seen: Evidence) -> None:
    seen.steps["anna"][30] = replace(seen.steps["anna"][30], seen=3)


@pytest.mark.parametrize(
    "spoil",
    [
        forget_a_round,
        publish_twice,
        take_up_too_little,
        take_up_less_than_was_seen,
        begin_from_nothing,
        an_older_version,
        tell_an_older_round,
    ],
)
def test_what_is_merged_may_not_be_lost(calm: Evidence, spoil: Callable[[Evidence], None]) -> None:
    spoil(calm)
    assert failing(calm) == {"nothing-merged-is-lost"}


def test_lives_that_go_on_where_the_last_one_was_are_well(calm: Evidence) -> None:
    calm.syncer = [rounds_from(1, 50, ("anna", "ben")), rounds_from(51, ROUNDS, ("anna", "ben"))]
    assert failing(calm) == set()


def test_numbers_that_a_hanging_syncer_may_use_are_skipped_and_no_others(calm: Evidence) -> None:
    for unseen, fails in ((2, set()), (1, {"nothing-merged-is-lost"}), (0, {"nothing-merged-is-lost"})):
        calm.syncer = [rounds_from(1, 50, ("anna", "ben")), rounds_from(53, ROUNDS, ("anna", "ben"))]
        calm.syncer[1].restored, calm.syncer[1].unseen = 50, unseen
        assert failing(calm) == fails
    # What a learner has seen was published, and may not be skipped.
    calm.syncer[1] = replace(calm.syncer[1], unseen=2, began=BEGAN + 53 * STEP_S)
    assert failing(calm) == {"nothing-merged-is-lost"}


# ── the others ───────────────────────────────────────────────────────────────────────────────────────────────────


def unbalanced(seen: Evidence) -> None:
    seen.measures.balanced = False


def other_books(seen: Evidence) -> None:
    seen.measures.recorded_tokens = {**seen.measures.tokens, "lost": 1}


def other_decisions(seen: Evidence) -> None:
    differs = Difference(line=1, t=0.0, recorded="a", replayed="b")
    seen.measures.replay = ReplayResult(events=9, decisions=9, lives=1, first_difference=differs)


@pytest.mark.parametrize("spoil", [unbalanced, other_books, other_decisions])
def test_books_have_to_agree(calm: Evidence, spoil: Callable[[Evidence], None]) -> None:
    spoil(calm)
    assert failing(calm) == {"ledger-balances"}


def test_a_fleet_that_stands_still_is_seen_and_one_learner_alone_is_not(calm: Evidence) -> None:
    def without_steps(name: str) -> list[Step]:
        return [s for s in calm.steps[name] if not BEGAN + 20 < s.at < BEGAN + 25]

    calm.steps["anna"] = without_steps("anna")
    assert failing(calm) == set()
    calm.steps["ben"] = without_steps("ben")
    assert failing(calm) == {"never-stands-still"}
    # Both were stopped: nobody who could make a step was left.
    calm.faults = [came("stop", "anna", 20, 4), came("stop", "ben", 20, 4)]
    assert failing(calm) == set()


def test_a_death_needs_a_reason(calm: Evidence) -> None:
    calm.syncer[0].away.append((BEGAN + 30, "ben", "no heartbeat for 5 s"))
    assert failing(calm) == {"no-false-deaths"}
    for fault, explains in (
        (came("partition", "ben", 24, 4), True),
        (came("partition", "ben", 10, 4), False),
        (came("partition", "anna", 24, 4), False),
        (came("bandwidth", "ben", 0, math.inf), False),
        (came("latency", "ben", 0, math.inf), False),
        (came("nan", "ben", 0, math.inf), False),
        (came("clock", "ben", 29, 10), False),
        (came("kill", "syncer", 29), True),
        (came("stop", "syncer", 20, 9), True),
        (replace(came("kill", "ben", 29), missed=True), False),
    ):
        calm.faults = [fault]
        assert ("no-false-deaths" not in failing(calm)) == explains, fault


@pytest.mark.parametrize(
    ("reason", "kind"), [("not-finite", "nan"), ("malformed", "corrupt"), ("duplicate", "cut"), ("stale-epoch", "kill")]
)
def test_a_rejection_needs_a_reason(calm: Evidence, reason: str, kind: str) -> None:
    calm.measures.rejected = {"late": 5, **({} if reason == "malformed" else {reason: 1})}
    calm.malformed = int(reason == "malformed")
    assert failing(calm) == {"rejections-are-explained"}
    calm.faults = [came(kind, "anna", 0)]
    assert "rejections-are-explained" not in failing(calm)


def test_no_fault_explains_another_layout(calm: Evidence) -> None:
    calm.measures.rejected = {"layout": 1}
    calm.faults = [came("kill", "anna", 0), came("corrupt", "ben", 0)]
    assert "rejections-are-explained" in failing(calm)


@pytest.mark.parametrize("last", [math.nan, 6.0])
def test_a_bad_learner_may_not_spoil_the_model(calm: Evidence, last: float) -> None:
    calm.faults = [came("nan", "anna", 0, math.inf)]
    assert failing(calm) == set()
    calm.measures.evaluations[-1] = Evaluated(round=ROUNDS, loss=last, perplexity=last)
    assert failing(calm) == {"bad-learners-do-no-harm"}


# ── what it costs ────────────────────────────────────────────────────────────────────────────────────────────────


def killed(calm: Evidence) -> Evidence:
    """anna dies after 20 s, her next process starts 0.5 s later, dials after 3 s and is merged 1.5 s after that."""
    calm.faults = [came("kill", "anna", 20)]
    calm.lives.append(Life(who="anna", pid=9, at=BEGAN + 20.5))
    calm.hellos[9] = BEGAN + 23.5
    calm.steps["anna"] = [
        *(s for s in calm.steps["anna"] if s.at < BEGAN + 20),
        *steps_from(BEGAN + 24.5, ENDED, life=9),
    ]
    for n, (at, round, _) in enumerate(calm.syncer[0].closed):
        if BEGAN + 20 < at < BEGAN + 25:
            calm.syncer[0].closed[n] = (at, round, ("ben",))
    return calm


def figures(verdict: Verdict, name: str) -> dict[str, float]:
    return dict(next(c for c in verdict.checks if c.name == name).figures)


def test_recovery_is_measured_from_the_kill_and_from_the_first_hello(calm: Evidence) -> None:
    verdict = judge(killed(calm), Expectations(max_recovery_s=6.0))
    assert verdict.passed
    found = figures(verdict, "learner-recovery")
    assert found["start_median_s"] == pytest.approx(3.0)
    assert found["beyond_start_median_s"] == pytest.approx(1.7)
    assert found["max_s"] == pytest.approx(5.2)
    assert figures(verdict, "never-stands-still")["uptime"] == 1.0
    assert figures(verdict, "throughput-kept")["share"] == pytest.approx(1.0, abs=0.02)
    assert failing(calm, max_recovery_s=5.0) == {"learner-recovery"}


def test_one_that_is_not_back_before_the_end_is_counted(calm: Evidence) -> None:
    calm.faults = [came("kill", "anna", 59)]
    calm.steps["anna"] = [s for s in calm.steps["anna"] if s.at < BEGAN + 59]
    assert failing(calm, max_recovery_s=1.0) == set()


def test_a_recovery_ends_with_the_next_kill(calm: Evidence) -> None:
    """anna is killed once more while she starts: what follows is the recovery from the second kill."""
    killed(calm).faults.insert(0, came("kill", "anna", 19))
    calm.lives.insert(0, Life(who="anna", pid=8, at=BEGAN + 19.5))
    found = figures(judge(calm, Expectations()), "learner-recovery")
    assert (found["recoveries"], found["killed_again_first"], found["not_back_before_the_end"]) == (1, 1, 0)
    assert found["max_s"] == pytest.approx(5.2)


def test_throughput_is_of_those_who_live(calm: Evidence) -> None:
    calm.steps["anna"] = [s for s in calm.steps["anna"] if not BEGAN + 20 < s.at < BEGAN + 50]
    share = figures(judge(calm, Expectations()), "throughput-kept")["share"]
    assert share == pytest.approx(0.75, abs=0.02)
    assert failing(calm, min_throughput=0.8) == {"throughput-kept"}
    calm.faults = [came("stop", "anna", 20, 29)]
    assert failing(calm, min_throughput=0.95) == set()


def test_how_long_the_syncer_was_gone(calm: Evidence) -> None:
    calm.faults = [came("kill", "syncer", 20.1)]
    first, second = rounds_from(1, 80, ("anna", "ben")), rounds_from(81, ROUNDS, ("anna", "ben"))
    second.began = BEGAN + 24
    second.published = [(at, round) for at, round in second.published if at > BEGAN + 26]
    second.restored = second.published[0][1] - 1
    calm.syncer = [first, second]
    found = figures(judge(calm, Expectations()), "syncer-recovery")
    assert (found["kills"], found["max_s"], found["takeovers"]) == (1, pytest.approx(6.15), 0)
    assert "syncer-recovery" in failing(calm, max_syncer_gap_s=5.0)
    # Beside a standby it has to be the one that was waiting, and that was in time.
    calm.faults = [came("takeover", "syncer", 20.1)]
    assert "standby-takes-over" in failing(calm)
    second.took_over = True
    assert figures(judge(calm, Expectations()), "syncer-recovery")["takeovers"] == 1
    assert "standby-takes-over" not in failing(calm)
    calm.syncer = [first]
    assert "standby-takes-over" in failing(calm)


@pytest.mark.parametrize("kind", ["bandwidth", "latency", "nan", "clock"])
def test_a_heartbeat_is_missed_where_no_fault_keeps_the_answer_away(calm: Evidence, kind: str) -> None:
    for at in (10, 30):
        calm.beats["ben"][at] = replace(calm.beats["ben"][at], answered=False)
    calm.faults = [came("partition", "ben", 7, 4), came(kind, "ben", 0, math.inf)]
    found = figures(judge(calm, Expectations()), "heartbeats")
    assert (found["sent"], found["unanswered"], found["missed"]) == (120, 2, 1)
    assert failing(calm, max_missed_heartbeats=1) == set()
    assert failing(calm, max_missed_heartbeats=0) == {"heartbeats"}


def test_quality_against_runs_without_faults(calm: Evidence) -> None:
    for allowed, passes in ((0.05, False), (0.15, True)):
        verdict = judge(calm, Expectations(max_loss_rise=allowed), compare=[1.7, 1.9])
        assert verdict.passed == passes
    assert judge(calm, Expectations(max_loss_rise=0.0), compare=[]).passed


def test_participation_against_what_was_expected(calm: Evidence) -> None:
    calm.measures.rounds[1].participants = ("anna",)
    assert failing(calm, min_participation=0.6) == {"participation"}


# ── stretches of time ────────────────────────────────────────────────────────────────────────────────────────────

some_stretches = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=8).map(
    lambda pairs: joined(sorted((float(a), float(a + b)) for a, b in pairs))
)


@given(some_stretches, some_stretches)
def test_stretches_are_sets_of_moments(some: list[tuple[float, float]], others: list[tuple[float, float]]) -> None:
    def moments(stretches: list[tuple[float, float]]) -> set[int]:
        return {second for a, b in stretches for second in range(int(a), int(b))}

    left = without(some, others)
    assert moments(left) == moments(some) - moments(others)
    assert length(left) == len(moments(left))
    assert overlap(some, others) == len(moments(some) & moments(others))


# ── the picture ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_picture_shows_every_fault_on_its_lane(calm: Evidence) -> None:
    pytest.importorskip("matplotlib")
    killed(calm).faults.append(came("partition", "syncer", 40, 6))
    calm.faults.append(replace(came("stop", "ben", 50), missed=True))
    drawn = as_svg(draw_chaos(calm), "chaos")
    assert {text for text in ("kill", "partition", "anna", "ben", "syncer") if f">{text}<" in drawn} == {
        *("kill", "partition", "anna", "ben", "syncer")
    }
    assert ">stop<" not in drawn  # it found nobody to hit
