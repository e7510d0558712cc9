"""What a report says of processes that died."""

from __future__ import annotations

import pytest

from gruppetto.report.deaths import about_deaths, deaths_of, is_of_a_death
from gruppetto.trace.measures import Death, LearnerMeasures, Measures, RoundMeasures


def measures(*deaths: Death, lost_by: dict[str, int] | None = None, began: float | None = 1000.0) -> Measures:
    """Rounds 1 to 9 close at second 1 to 9; ben is away from 4 to 6.5."""
    rounds = {
        n: RoundMeasures(
            round=n,
            asked_at=n - 0.5,
            quorum_s=0.0,
            grace_s=0.0,
            due=1,
            at_clock=2,
            live=2,
            closed_at=float(n),
            participants=("anna", "ben") if n < 6 or n > 7 else ("anna",),
        )
        for n in range(1, 10)
    }
    ben = LearnerMeasures(states=[(0.0, "live"), (4.2, "away"), (6.0, "joining"), (6.5, "live")])
    return Measures(
        rounds=rounds, learners={"ben": ben}, deaths=list(deaths), lost_by=lost_by or {}, began_wall_s=began
    )


BEN = Death(process="ben", cause="SIGKILL", wall_s=1004.0)


def test_a_learner_is_back_when_its_new_life_is_merged() -> None:
    """What its last life had given is merged in round 5, after its death: that is no return."""
    (death,) = deaths_of(measures(BEN))
    assert death == {"process": "ben", "cause": "SIGKILL", "t": 4.0, "round": 4, "merged_again_s": 4.0}


def test_a_syncer_is_back_when_it_closes_a_round() -> None:
    (death,) = deaths_of(measures(Death(process="syncer", cause="exit 1", wall_s=1005.5)))
    assert (death["t"], death["round"], death["merged_again_s"]) == (5.5, 5, 0.5)


@pytest.mark.parametrize("began", [1000.0, None])
def test_who_does_not_come_back_and_a_time_that_is_not_known(began: float | None) -> None:
    (death,) = deaths_of(measures(Death(process="carl", cause="SIGKILL", wall_s=1002.0), began=began))
    assert death["merged_again_s"] is None
    assert death["t"] == (2.0 if began else None)


@pytest.mark.parametrize(
    ("lost_by", "ending"),
    [({"ben": 70}, "; the others lost nothing."), ({"anna": 1, "ben": 70}, "; anna lost work too.")],
)
def test_the_story_of_a_death(lost_by: dict[str, int], ending: str) -> None:
    found = measures(BEN, lost_by=lost_by)
    (line,) = about_deaths({"deaths": deaths_of(found), "lost_fragment_tokens": found.lost_by})
    assert line == f"ben died (SIGKILL) 4.0 s into the run, at round 4; 4.0 s later its work was merged again{ending}"


def test_a_death_and_its_recovery_are_one_sentence() -> None:
    recovery = {"learner": "ben", "cause": "killed", "source": "peer anna", "seconds": 3.9}
    report = {"deaths": deaths_of(measures(BEN)), "lost_fragment_tokens": {}, "recoveries": [recovery]}
    (line,) = about_deaths(report)
    assert line.endswith("merged again, with its state from: peer anna; the others lost nothing.")
    assert is_of_a_death(recovery, report)
    assert not is_of_a_death({**recovery, "learner": "anna"}, report)


def test_without_a_death_there_is_nothing_to_say() -> None:
    assert about_deaths({"deaths": [], "lost_fragment_tokens": {}}) == []


def test_a_shard_costs_only_its_own_fragments() -> None:
    deaths = [{"process": "syncer-2", "cause": "SIGKILL", "t": 3.0, "round": 7, "merged_again_s": None}]
    report = {"deaths": deaths, "lost_fragment_tokens": {}, "learners": {}}
    (line,) = about_deaths(report)
    assert line.startswith(
        "syncer-2 died (SIGKILL) 3.0 s into the run, at round 7; only its own fragments waited for it"
    )
    report["learners"] = {"syncer-2": {}}
    assert "it was not merged again" in about_deaths(report)[0], "a learner may be called so"
