"""What goes wrong in a world is drawn as a chaos plan draws it, and befalls whom it should."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gruppetto.chaos.real.reading import read_live_plan
from gruppetto.errors import SettingError
from gruppetto.protocol import ProtocolSetting
from gruppetto.protocol.invariants import Observer
from gruppetto.sim import LearnerSpec, Link, Pace, World
from gruppetto.sim.failures import Recovery
from gruppetto.sim.mishaps import SYNCER, Mishap, MishapKind, draw_kills, with_recovery

STORM = Path(__file__).parents[2] / "examples" / "chaos" / "storm-8x.toml"
AWAY = Recovery(scale_s=20.0, shape=1.5, power=1.5)


def test_the_kills_are_those_of_a_chaos_plan_with_the_same_seed() -> None:
    plan = read_live_plan(STORM)
    names = [entry.name for entry in plan.run.learners]
    drawn = draw_kills(names, per_hour=250.0, lasts_s=plan.chaos.lasts_s, seed=plan.chaos.seed, recovery=AWAY)
    assert [(kill.at_s, kill.who) for kill in drawn] == [(fault.at_s, fault.who) for fault in plan.faults]
    assert len(drawn) > 20 and all(0 < kill.lasts_s < math.inf for kill in drawn)


def test_only_kills_without_an_end_get_one() -> None:
    plan = (
        Mishap(at_s=1.0, kind=MishapKind.KILL, who="a"),
        Mishap(at_s=2.0, kind=MishapKind.KILL, who="a", lasts_s=3.0),
        Mishap(at_s=3.0, kind=MishapKind.NAN, who="a"),
    )
    first, second, third = with_recovery(plan, AWAY, seed=0)
    assert math.isfinite(first.lasts_s) and (second, third) == plan[1:]


@pytest.mark.parametrize(
    "wrong",
    [
        {"at_s": -1.0, "kind": "kill"},
        {"at_s": 1.0, "kind": "stop"},
        {"at_s": 1.0, "kind": "slow", "share": 0.0},
        {"at_s": 1.0, "kind": "latency", "delay_s": math.inf},
        {"at_s": 1.0, "kind": "scale", "factor": math.nan},
        {"at_s": 1.0, "kind": "cut", "lasts_s": -1.0},
        {"at_s": 1.0, "kind": "cut", "who": SYNCER},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingError, match=r"fault\."):
        Mishap(**{"who": "a", **wrong})  # type: ignore[arg-type]


_MISHAPS = st.builds(
    Mishap,
    at_s=st.floats(0.0, 40.0),
    kind=st.sampled_from([kind for kind in MishapKind if kind not in (MishapKind.NAN, MishapKind.SCALE)]),
    who=st.sampled_from(["a", "b", "c"]),
    lasts_s=st.floats(0.0, 15.0),
    share=st.floats(0.2, 1.0),
    delay_s=st.floats(0.0, 2.0),
) | st.builds(Mishap, at_s=st.floats(0.0, 40.0), kind=st.just("kill"), who=st.just(SYNCER), lasts_s=st.floats(0.0, 5.0))


@settings(max_examples=8)
@given(st.lists(_MISHAPS, max_size=10), st.integers(0, 3))
@example(  # killed within its notice
    [
        Mishap(at_s=1.0, kind=MishapKind.LEAVE, who="a", lasts_s=0.0),
        Mishap(at_s=1.0, kind=MishapKind.KILL, who="a", lasts_s=0.0),
    ],
    0,
)
def test_whatever_goes_wrong_every_invariant_holds_and_it_ends_the_same_way(mishaps: list[Mishap], seed: int) -> None:
    """Under observation of every step of every life of the syncer; and when all is over, who is left goes on."""
    first, again = _lived(mishaps, seed), _lived(mishaps, seed)
    assert first.closed == again.closed and first.syncer.snapshot() == again.syncer.snapshot()
    left = {mishap.who for mishap in mishaps if mishap.kind is MishapKind.LEAVE}
    after = [verdict for at_s, verdict in first.closed if at_s > 100.0]
    if left != {"a", "b", "c"}:
        assert after and set(after[-1].participants) == {"a", "b", "c"} - left


def _lived(mishaps: list[Mishap], seed: int) -> World:
    setting = ProtocolSetting(num_learners=3, num_fragments=4, sync_period=4, liveness_s=4.0)
    specs = [
        LearnerSpec(name=name, pace=Pace(step_s=step_s, jitter=0.1), link=Link(latency_s=0.05), keeps_every=5)
        for name, step_s in (("a", 1.0), ("b", 1.2), ("c", 2.0))
    ]
    world = World(setting, specs, seed=seed, mishaps=mishaps, recovers=True)
    watch, tell = Observer(), world.tell_syncer

    def told(event: object) -> None:
        if not world.is_up:
            return
        core, step = world.syncer, world.syncer.step

        def watched(now: float, event: object) -> list[object]:
            actions = step(now, event)  # type: ignore[arg-type]
            watch.saw(core, event, actions)  # type: ignore[arg-type]
            return actions  # type: ignore[return-value]

        core.step = watched  # type: ignore[method-assign,assignment]
        try:
            tell(event)  # type: ignore[arg-type]
        finally:
            core.step = step  # type: ignore[method-assign]

    world.tell_syncer = told  # type: ignore[method-assign,assignment]
    world.run(until=120.0)
    assert world.syncer.ledger.balances()
    return world
