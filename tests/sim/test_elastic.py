"""The elastic job against a twin that goes through time tick by tick, and against the formula."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from gruppetto.errors import SettingError
from gruppetto.sim.elastic import ElasticCosts, ElasticJob
from gruppetto.sim.failures import YEAR_S, Cause, Fault, draw_faults
from gruppetto.sim.paper import FITTED
from gruppetto.sim.rivals import elastic

STEP, CHIPS, SLICE, UNTIL = 12, 8, 2, 600
Made = tuple[float, float, int]


def twin(faults: list[Fault], down: int, up: int) -> list[Made]:
    """Steps (began, done, chips) under losses without notice, by looking at every tick.

    Ties are decided as the job decides them: a step or a pause that ends now has ended before anything happens.
    """
    present, back, returned = set(range(CHIPS // SLICE)), {}, set()
    made: list[Made] = []
    began, pause_end = 0, 0
    for now in range(UNTIL):
        if now >= pause_end and now == began + STEP:
            made.append((began, now, len(present) * SLICE))
            began = now
            if returned:
                present, returned = present | returned, set()
                began = pause_end = now + up
        for fault in (f for f in faults if f.at_s == now):
            index = fault.first_chip // SLICE
            if index in back:
                continue
            back[index] = now + fault.down_s
            returned.discard(index)
            if index not in present:
                continue
            if now < pause_end:
                present.discard(index)
            else:
                present = (present | returned) - {index}
                returned = set()
                pause_end = began = now + down
        for index in [i for i, at in back.items() if at == now]:
            del back[index]
            if now < pause_end:
                present.add(index)
            elif now == began:
                present.add(index)
                pause_end = began = now + up
            else:
                returned.add(index)
        assume(present)
    return made


def job_of(faults: list[Fault], down: float, up: float) -> ElasticJob:
    costs = ElasticCosts(slice_chips=SLICE, scale_down_s=down, scale_up_s=up)
    return ElasticJob(first_chip=0, chips=CHIPS, faults=faults, costs=costs)


def through(job: ElasticJob, steps: int = 1) -> list[Made]:
    """Every step by itself, however many were made in one go."""
    now, made = 0.0, []
    while now < UNTIL:
        s = job.train(now, STEP, steps)
        if not s.steps:
            reject()
        assert s.began_s >= now
        made += [(s.began_s + i * STEP, s.began_s + (i + 1) * STEP, s.chips) for i in range(s.steps)]
        now = s.done_s
    return made


# Losses fall on ticks ≡ 1 and returns on ticks ≡ 2 (mod 3), so that the two never meet.
FAULTS = st.lists(
    st.builds(
        lambda at, chip, down: Fault(at_s=3 * at + 1, first_chip=chip, num_chips=1, down_s=3 * down + 1),
        st.integers(0, UNTIL // 3 - 1),
        st.integers(0, CHIPS - 1),
        st.integers(1, 40),
    ),
    max_size=12,
    unique_by=lambda f: f.at_s,
).map(lambda faults: sorted(faults, key=lambda f: f.at_s))
PAUSES = st.integers(0, 8).map(lambda n: 3 * n)


@settings(max_examples=300)
@given(FAULTS, PAUSES, PAUSES)
def test_the_same_steps_as_the_twin(faults: list[Fault], down: int, up: int) -> None:
    assert [m for m in through(job_of(faults, down, up)) if m[1] < UNTIL - STEP] == [
        m for m in twin(faults, down, up) if m[1] < UNTIL - STEP
    ]


@settings(max_examples=200)
@given(FAULTS, PAUSES, PAUSES, st.integers(2, 9), st.booleans())
def test_what_is_made_of_a_day_does_not_depend_on_how_many_steps_are_made_in_one_go(
    faults: list[Fault], down: int, up: int, steps: int, notice: bool
) -> None:
    if notice:
        faults = [
            Fault(at_s=f.at_s, first_chip=f.first_chip, num_chips=1, down_s=f.down_s, notice=i % 2 == 0)
            for i, f in enumerate(faults)
        ]
    one, many = through(job_of(faults, down, up)), through(job_of(faults, down, up), steps)
    assert many[: len(one)] == one


def test_a_notice_within_a_pause_is_taken_in_with_it_and_nothing_beyond_one_is_looked_at() -> None:
    """Histories that cost an assertion, and a step in one go."""

    def fault(at_s: float, chip: int, down_s: float, *, notice: bool) -> Fault:
        return Fault(at_s=at_s, first_chip=chip, num_chips=1, down_s=down_s, notice=notice)

    for away_s, last_s, up in ((94.0, 274.0, 3), (88.0, 271.0, 0)):
        faults = [
            fault(1.0, 0, 4.0, notice=True),
            fault(181.0, 2, away_s, notice=False),
            fault(235.0, 0, 25.0, notice=True),
            fault(238.0, 2, 4.0, notice=False),
            fault(last_s, 0, 4.0, notice=True),
        ]
        one, many = through(job_of(faults, 3, up)), through(job_of(faults, 3, up), 4)
        assert many[: len(one)] == one


def test_a_loss_cuts_the_step_and_a_notice_does_not() -> None:
    abrupt = Fault(at_s=30.0, first_chip=0, num_chips=1, down_s=1000.0)
    told = Fault(at_s=30.0, first_chip=0, num_chips=1, down_s=1000.0, notice=True)
    assert through(job_of([abrupt], 6, 3))[:4] == [(0, 12, 8), (12, 24, 8), (36, 48, 6), (48, 60, 6)]
    assert through(job_of([told], 6, 3))[:4] == [(0, 12, 8), (12, 24, 8), (24, 36, 8), (42, 54, 6)]


def test_who_loses_everything_is_dark_until_something_returns() -> None:
    region = Fault(at_s=20.0, first_chip=0, num_chips=8, down_s=100.0)
    job = job_of([region], 6, 3)
    first, dark, after = job.train(0.0, STEP), job.train(12.0, STEP), job.train(123.0, STEP)
    assert (first.steps, first.done_s) == (1, 12.0)
    assert (dark.steps, dark.dark_s, dark.began_s) == (0, 20.0, 123.0)
    assert (after.began_s, after.chips) == (123.0, 8)


def test_a_fault_of_somebody_elses_chips_is_none() -> None:
    costs = ElasticCosts(slice_chips=2, scale_down_s=6, scale_up_s=3)
    fault = Fault(at_s=5.0, first_chip=8, num_chips=1, down_s=100.0)
    assert ElasticJob(first_chip=0, chips=8, faults=[fault], costs=costs).train(0.0, STEP).chips == 8
    assert ElasticJob(first_chip=8, chips=8, faults=[fault], costs=costs).train(0.0, STEP).chips == 6


@pytest.mark.parametrize("chips", [75_000, 300_000, 1_200_000])
def test_goodput_follows_the_formula(chips: int) -> None:
    """(1 − c) / (1 + λ·D): c the share of chips that are away, D the two pauses and half a lost step a failure."""
    recovery, costs = FITTED.recovery, FITTED.elastic
    chip = Cause(name="chip", mtbi_s=YEAR_S, recovery=recovery)
    job = ElasticJob(first_chip=0, chips=chips, faults=draw_faults([chip], chips=chips, seed=0), costs=costs)
    found = elastic(job, step_s=1.0, horizon_s=4 * 86_400).goodput
    away = costs.slice_chips * recovery.mean_s / YEAR_S
    expected = (1 - away) / (1 + chip.rate(chips) * (costs.scale_down_s + costs.scale_up_s + 0.5))
    assert found == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize(("field", "value"), [("slice_chips", 0), ("scale_down_s", -1.0), ("scale_up_s", float("inf"))])
def test_impossible_costs_are_refused(field: str, value: float) -> None:
    with pytest.raises(SettingError, match=field):
        ElasticCosts(**{"slice_chips": 1, "scale_down_s": 1.0, "scale_up_s": 1.0, field: value})  # type: ignore[arg-type]
