"""Sites: what links carry agrees with learners counted one by one, nothing is lost between them, and H is the least."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.errors import SettingError
from gruppetto.numerics.codec import CODECS
from gruppetto.numerics.downlink import DOWNLINKS
from gruppetto.sim.choice import Choice, needs_of
from gruppetto.sim.cluster import Cluster
from gruppetto.sim.machine import MachineProfile
from gruppetto.sim.sites import FULL, WAYS, Site, least_period, periods, place, placements

PARAMETERS, STEP_S = 24 << 20, 0.5
sites_lists = st.lists(
    st.tuples(st.integers(0, 4), st.floats(0.01, 10.0), st.floats(0.01, 10.0), st.floats(0.0, 0.5)),
    min_size=2,
    max_size=5,
).map(
    lambda rows: [
        Site(name=f"s{i}", learners=m, up_gbit_s=up, down_gbit_s=down, rtt_s=rtt_s)
        for i, (m, up, down, rtt_s) in enumerate(rows)
    ]
)
choices = st.builds(
    lambda way, period: Choice(learners=0, uplink=way[0], downlink=way[1], sync_period=period),
    st.sampled_from(WAYS),
    st.integers(1, 400),
)


@given(sites=sites_lists, choice=choices, served=st.data())
def test_loads_are_those_of_learners_counted_one_by_one(
    sites: list[Site], choice: Choice, served: st.DataObject
) -> None:
    serving = served.draw(st.lists(st.sampled_from([s.name for s in sites]), min_size=1, unique=True))
    up = CODECS[choice.uplink].payload_bytes(PARAMETERS) / choice.sync_period / STEP_S
    down = DOWNLINKS[choice.downlink].usual.payload_bytes(PARAMETERS) / choice.sync_period / STEP_S
    leaves, comes = dict.fromkeys((s.name for s in sites), 0.0), dict.fromkeys((s.name for s in sites), 0.0)
    for site in sites:
        for _ in range(site.learners):
            for there in serving:
                if there != site.name:
                    leaves[site.name] += up / len(serving)
                    comes[there] += up / len(serving)
                    leaves[there] += down / len(serving)
                    comes[site.name] += down / len(serving)
    found = place(sites, serving, choice, parameters=PARAMETERS, step_s=STEP_S)
    for load in found.loads:
        assert load.up_bytes_s == pytest.approx(leaves[load.site.name], rel=1e-4, abs=1e-3)
        assert load.down_bytes_s == pytest.approx(comes[load.site.name], rel=1e-4, abs=1e-3)
    # What leaves one site comes to another.
    assert sum(load.up_bytes_s for load in found.loads) == pytest.approx(sum(load.down_bytes_s for load in found.loads))


@given(sites=sites_lists, way=st.sampled_from(WAYS))
def test_the_least_period_fits_and_one_less_does_not(sites: list[Site], way: tuple[str, str]) -> None:
    def fits(period: int) -> bool:
        at = Choice(learners=0, uplink=way[0], downlink=way[1], sync_period=period, num_fragments=min(period, 96))
        found = place(sites, ["s0"], at, parameters=PARAMETERS, step_s=STEP_S)
        in_time = all(load.answer_s <= STEP_S for load in found.loads if load.site.learners)
        return found.busiest.use <= FULL and in_time

    least = least_period(sites, ["s0"], *way, parameters=PARAMETERS, step_s=STEP_S)
    if least is None:
        assert not any(map(fits, (1, 24, 96, 400, 1000)))
    else:
        assert fits(least) and (least == 1 or not fits(least - 1))


CHOICE = Choice(learners=7, uplink="bf16", downlink="fp32", sync_period=48)


def site(name: str, learners: int, up: float = 1.0, down: float = 1.0, **more: object) -> Site:
    return Site(name=name, learners=learners, up_gbit_s=up, down_gbit_s=down, **more)  # type: ignore[arg-type]


def best(*sites: Site, choice: Choice = CHOICE) -> tuple[str, ...]:
    return placements(sites, choice, parameters=PARAMETERS, step_s=STEP_S)[0].serving


def test_the_syncer_goes_where_most_learners_are() -> None:
    assert best(site("few", 2, 10, 10), site("many", 4, 10, 10), site("one", 1, 10, 10)) == ("many",)


def test_a_narrow_way_out_bears_no_syncer() -> None:
    narrow = site("many", 4, up=0.2, down=10)
    assert best(narrow, site("few", 2, 10, 10), site("one", 1, 10, 10)) == ("few",)
    # Nor does a place where nobody trains have to be left out.
    assert best(narrow, site("few", 4, 0.2, 10), site("rented", 0, 50, 50)) == ("rented",)
    assert best(narrow, site("few", 4, 10, 10, may_serve=False), site("rented", 0, 50, 50)) == ("rented",)


def test_shards_share_out_what_one_site_cannot_send() -> None:
    even = [site(name, 2, up=0.2, down=0.2) for name in "abc"]
    assert best(*even) == ("a", "b", "c")
    # Steps down come from one syncer only.
    assert len(best(*even, choice=replace(CHOICE, downlink="delta"))) == 1
    ways = {(up, down) for up, down, _ in periods(even, ("a", "b"), parameters=PARAMETERS, step_s=STEP_S)}
    assert ways == {("bf16", "fp32"), ("bf16", "bf16")}
    # Learners of many ranks know one syncer, and no steps.
    found = placements(even, CHOICE, parameters=PARAMETERS, step_s=STEP_S, of_ranks=True)
    assert {len(each.serving) for each in found} == {1}
    asked = periods(even, ("a",), parameters=PARAMETERS, step_s=STEP_S, of_ranks=True)
    assert {down for _, down, _ in asked} == {"fp32", "bf16"}


def test_a_slow_host_spares_the_links_and_shards_share_its_work() -> None:
    """What the links carry goes by the rounds that there are, not by those that there would be."""
    sites = [site(name, 2, up=1.0, down=1.0) for name in "abc"]
    model_s = 3 * CHOICE.sync_period * STEP_S
    at = {
        (serving, slow): place(sites, serving, CHOICE, parameters=PARAMETERS, step_s=STEP_S, model_s=slow * model_s)
        for serving in ("a", "abc")
        for slow in (0, 1)
    }
    assert [at["a", slow].round_s for slow in (0, 1)] == pytest.approx([STEP_S, 3 * STEP_S])
    assert at["a", 1].busiest.use == pytest.approx(at["a", 0].busiest.use / 3)
    assert at["abc", 1].round_s == pytest.approx(STEP_S)
    assert at["abc", 1].busiest.use == pytest.approx(at["abc", 0].busiest.use)


def test_a_trip_is_the_distance_and_the_bytes() -> None:
    far, near = site("far", 1, 1.0, 2.0, rtt_s=0.2), site("near", 1, 4.0, 4.0, rtt_s=0.01)
    loads = place([far, near], ["near"], CHOICE, parameters=24_000_000, step_s=1.0).loads
    assert loads[0].trip_s == pytest.approx(3 * 0.2 + 2e6 * 8 / 1e9 + 4e6 * 8 / 2e9)
    assert loads[0].answer_s == pytest.approx(1.5 * 0.2 + 2e6 * 8 / 1e9)
    assert loads[1].trip_s == loads[1].answer_s == 0.0


def test_an_answer_has_one_step() -> None:
    """A fragment of 96 takes as long at any H; coarser words make it smaller."""
    sites = [site("home", 1, up=0.02), site("campus", 2)]

    def least(uplink: str, downlink: str) -> int | None:
        return least_period(sites, ["campus"], uplink, downlink, parameters=96 * 10**6, step_s=0.5)

    at = Choice(learners=3, uplink="bf16", sync_period=1000, num_fragments=96)
    found = place(sites, ["campus"], at, parameters=96 * 10**6, step_s=0.5)
    assert found.busiest.use < 0.2 and not found.loads[0].in_time and not found.fits
    assert least("bf16", "fp32") is None
    assert least("int4", "delta-int4") in range(40, 97)


@pytest.mark.parametrize("wrong", [{"learners": -1}, {"up": 0.0}, {"down": math.inf}, {"rtt_s": -1.0}, {"name": ""}])
def test_what_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingError, match=r"use |name it"):
        site(**{"name": "a", "learners": 1, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sites", "fix"),
    [
        ([site("a", 1), site("a", 1)], "name each site once"),
        ([site("a", 1), site("b", 0)], "plan one site without a file"),
        ([site("a", 1, may_serve=False), site("b", 1, may_serve=False)], "leave may_serve out"),
    ],
)
def test_sites_of_which_no_run_can_be_made(sites: list[Site], fix: str) -> None:
    with pytest.raises(SettingError, match=fix):
        placements(sites, CHOICE, parameters=PARAMETERS, step_s=STEP_S)


def test_distance_asks_for_several_rounds_in_flight_and_a_full_link_does_not() -> None:
    far = [site("near", 2, 10, 10, rtt_s=0.001), site("far", 1, 10, 10, rtt_s=0.45)]
    load = place(far, ["near"], CHOICE, parameters=PARAMETERS, step_s=STEP_S).loads[1]
    assert not load.in_time and load.answer_steps == 2
    for latency_s, gbit_s, in_flight in ((0.02, 10.0, 1), (0.2, 10.0, 2), (0.2, 0.002, 1)):
        machine = MachineProfile(latency_s=latency_s)
        cluster = Cluster(chips=8, parameters=PARAMETERS, step_s=STEP_S, gbit_s=gbit_s, machine=machine)
        assert needs_of(cluster, CHOICE).rounds_in_flight == in_flight
