"""Plans: what is chosen fits, follows the evidence, and changes where it is said to change."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppetto.errors import SettingError
from gruppetto.sim.choice import Choice, needs_of
from gruppetto.sim.cluster import Cluster
from gruppetto.sim.machine import MachineProfile
from gruppetto.sim.paper import FITTED, GOODPUT
from gruppetto.sim.planner import Priced, _first, changes, plan, ranked, simulate
from gruppetto.sim.quality import codec_loss, compute_share, learners_loss, period_loss
from gruppetto.sim.ways_out import times, ways_out

PAPER = Cluster(chips=1_200_000, parameters=5_000_000_000)
FAST = MachineProfile(fold_elements_per_s=1e12, merge_elements_per_s=1e12, persist_bytes_per_s=1e13, latency_s=0.0001)

clusters = st.builds(
    Cluster,
    chips=st.integers(2, 100_000),
    parameters=st.integers(1_000_000, 10**11),
    step_s=st.floats(0.05, 20.0),
    mtbi_s=st.just(math.inf),
    gbit_s=st.floats(0.05, 500.0),
    sites=st.sampled_from([None, 1, 2]),
)


def test_goodput_is_that_of_the_papers_grid() -> None:
    for (system, m), cells in GOODPUT.items():
        if system != "data-parallel":
            for chips, share in cells.items():
                assert replace(PAPER, chips=chips).goodput(m) == pytest.approx(share, abs=0.035)


def test_more_failures_ask_for_more_learners() -> None:
    chosen = [ranked(replace(PAPER, chips=n))[0].choice.learners for n in (10_000, 150_000, 1_200_000, 4_800_000)]
    assert chosen == sorted(chosen) and chosen[0] < chosen[-1]


@given(st.integers(1, 64), st.integers(1, 16), st.sampled_from([1, 2, 4]))
@settings(max_examples=15, deadline=None)
def test_learners_that_share_a_slice_gain_nothing_over_one_that_has_it(hosts: int, parts: int, sites: int) -> None:
    hardware = replace(FITTED, elastic=replace(FITTED.elastic, slice_chips=16))
    cluster = Cluster(chips=16 * hosts, parameters=10**9, mtbi_s=86_400.0, hardware=hardware)
    assert cluster.goodput(parts * hosts) == cluster.goodput(hosts)
    apart = replace(cluster, sites=sites).scenario(1).hardware.elastic.slice_chips
    assert apart == min(16, cluster.chips // sites), "a slice lies within one site"


def test_one_host_that_fails_as_a_whole_asks_for_no_more_learners() -> None:
    hardware = replace(FITTED, elastic=replace(FITTED.elastic, slice_chips=8))
    cluster = Cluster(chips=16, parameters=10**9, mtbi_s=6 * 3600.0, hardware=hardware)
    assert ranked(cluster)[0].choice.learners == 1


def test_larger_models_bear_more_learners() -> None:
    chosen = [
        ranked(replace(PAPER, parameters=p, machine=FAST, gbit_s=1e5))[0].choice.learners
        for p in (10**8, 10**10, 10**12)
    ]
    assert chosen == sorted(chosen) and chosen[0] < chosen[-1]


@given(clusters, st.floats(1.0, 100.0))
@settings(max_examples=15, deadline=None)
def test_wider_links_never_make_a_plan_worse(cluster: Cluster, times: float) -> None:
    def best(c: Cluster) -> float:
        return max((p.needs.value for p in ranked(c) if not p.needs.problems), default=0.0)

    assert best(replace(cluster, gbit_s=cluster.gbit_s * times)) >= best(cluster) - 1e-12


@given(clusters)
@settings(max_examples=15, deadline=None)
def test_what_is_chosen_fits_and_nothing_that_fits_is_much_better(cluster: Cluster) -> None:
    order = ranked(cluster)
    fit = [p for p in order if not p.needs.problems]
    assert order[: len(fit)] == fit
    for p in order:
        assert p.needs.interval_s >= cluster.step_s * (1 - 1e-12)
        per_round = max(p.needs.upload_bytes, p.needs.download_bytes) / p.choice.every
        assert per_round / p.needs.interval_s <= p.needs.width_bytes_s * (1 + 1e-9), "no link carries more than it can"
        if cluster.sites is not None:
            assert p.choice.learners >= cluster.sites or p.needs.problems
    if fit:
        assert fit[0].needs.value >= max(p.needs.value for p in fit) - 0.005


@given(st.integers(10**6, 10**12), st.sampled_from([2, 4, 8, 16, 32]))
def test_the_price_of_learners(parameters: int, learners: int) -> None:
    """The published figures at the two sizes, less with the size, more with the learners."""
    loss = learners_loss(learners, parameters)
    assert 0 < learners_loss(learners // 2, parameters) < loss or learners == 2
    assert learners_loss(learners, 2 * parameters) < loss
    assert 0 < compute_share(loss) < 1
    assert learners_loss(8, 35_000_000) / 0.5 == pytest.approx(0.039)
    assert learners_loss(8, 2_400_000_000) / 0.5 == pytest.approx(0.011)


def test_the_price_of_the_rest() -> None:
    assert period_loss(50 * 20) - period_loss(50) == pytest.approx(0.0106, abs=0.001)
    assert codec_loss("bf16", "fp32") == 0.0 and codec_loss("bf16", "bf16") > 0.0
    assert math.isinf(codec_loss("int1", "fp32"))


def test_prices_are_those_of_a_round_written_out() -> None:
    machine = MachineProfile(
        fold_elements_per_s=1e9, merge_elements_per_s=5e8, persist_bytes_per_s=1e9, persist_s=0.01, latency_s=0.1
    )
    cluster = Cluster(chips=64, parameters=24_000_000_000, step_s=40.0, gbit_s=8.0, sites=2, machine=machine)
    found = needs_of(cluster, Choice(learners=4))
    assert (found.upload_bytes, found.download_bytes) == (2_000_000_000, 4_000_000_000)
    assert found.width_bytes_s == 5e8  # two learners at each site
    assert found.syncer_s == pytest.approx(4 * 1.0 + 2.0)
    assert found.persist_s == pytest.approx(0.01 + 8.0)
    round_s = 2 * 0.1 + 2e9 / 5e8 + 6.0 + 8.01
    assert found.interval_s == 40.0 and found.slowdown == 1.0
    assert found.flight_steps == pytest.approx((round_s + 3 * 0.1 + 4e9 / 5e8 + 20.0) / 40.0)
    assert found.mean_gbit_s == pytest.approx(2 * 32 / 40)
    assert found.gbit_s == pytest.approx(2 * max(16 / (40 - 0.2 - 14.01), 32 / 40))
    assert needs_of(replace(cluster, step_s=10.0), Choice(learners=4)).interval_s == pytest.approx(round_s)
    rare = needs_of(cluster, Choice(learners=4, durability="interval"))
    assert rare.persist_s == pytest.approx(8.0 + 0.01 / 24)
    # Steps down are taken in one pass more, whose rest is persisted too.
    stepping = replace(cluster, machine=replace(machine, step_down_elements_per_s=2.5e8))
    down = needs_of(stepping, Choice(learners=4, downlink="delta"))
    assert down.syncer_s == pytest.approx(4 * 1.0 + 2.0 + 4.0)
    assert down.persist_s == pytest.approx(0.01 + 8.0 + 8.125 / 8)
    assert needs_of(stepping, Choice(learners=4)) == found


def test_the_cores_confirm_the_price_of_a_round() -> None:
    """Rounds of a simulated plan come as often as they were priced, with fast links and with slow ones."""
    for gbit_s in (0.3, 3.0):
        cluster = Cluster(chips=64, parameters=1_000_000_000, step_s=1.0, gbit_s=gbit_s, mtbi_s=math.inf, jitter=0.0)
        first = ranked(cluster, [4])[0]
        outcome = simulate(cluster, first, 600.0)
        assert outcome.rounds is not None
        assert 600.0 / outcome.rounds == pytest.approx(first.needs.interval_s, rel=0.12)


def test_a_change_of_mind_is_where_it_is_said_to_be() -> None:
    cluster = replace(PAPER, mtbi_s=math.inf, sites=2, gbit_s=4.0)
    best = ranked(cluster)[0]
    found = list(changes(cluster, best.choice))
    assert {c.field for c in found} >= {"gbit_s"}
    for change in found:
        there = ranked(replace(cluster, **{change.field: change.at}))[0]
        assert there.choice == change.to != best.choice
        closer = math.sqrt(change.at * math.sqrt(change.at * change.has))
        assert (change.at - change.has) * (change.at - closer) > 0


def test_a_plan_has_everything_and_is_the_same_again() -> None:
    cluster = Cluster(chips=300_000, parameters=20_000_000_000, step_s=2.0, gbit_s=20.0)
    said: list[str] = []
    found = plan(cluster, boundaries=1200, learners=[2, 4], progress=said.append)
    assert found == plan(cluster, boundaries=1200, learners=[2, 4])
    assert found.second is not None and found.second.choice.learners != found.best.choice.learners
    assert found.best.choice.min_quorum in dict(found.seen)
    assert 2 <= found.overlap_steps < found.best.choice.sync_period
    assert found.best.needs.goodput > found.one_job
    assert said[0] == "pricing" and len(said) >= 3


def test_slow_rounds_ask_for_a_quorum() -> None:
    """Where an upload takes the better part of a step, one learner alone would close the rounds."""
    cluster = Cluster(chips=64, parameters=1_000_000_000, step_s=0.4, gbit_s=1.0, sites=4, mtbi_s=math.inf)
    shares = {}
    for k in (1, 2):
        choice = Choice(learners=4, sync_period=96, num_fragments=96, min_quorum=k)
        needs = needs_of(cluster, choice)
        shares[k] = simulate(cluster, Priced(choice=choice, needs=needs), 600 * cluster.step_s).participation or 0.0
    assert shares[2] > 2 * shares[1]
    # With half the link, and coarser words, it is so again.
    found = plan(replace(cluster, gbit_s=0.5), boundaries=2400, learners=[4])
    assert found.best.choice.min_quorum == 2


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"syncer_gib": 8.0}, "the syncer takes"),
        ({"gbit_s": 0.001}, "synchronised every"),
        ({"sites": 4}, "a learner lies within one site"),
    ],
)
def test_what_cannot_be_done_is_said(changed: dict[str, float], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        plan(replace(PAPER, **changed), learners=[2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "learners", "field"),
    [
        ({"syncer_gib": 8.0}, [2], "syncer_gib"),
        ({"gbit_s": 0.001, "step_s": 0.5}, [2], "gbit_s"),
        ({"sites": 4}, [2], None),
        ({"syncer_gib": 8.0, "gbit_s": 1e-4}, [2], "gbit_s"),
        ({"machine": replace(FAST, persist_bytes_per_s=1e6)}, [2], "disk"),
        ({"machine": replace(FAST, fold_elements_per_s=1e5, merge_elements_per_s=2e5)}, [2], "host"),
        ({"machine": replace(FAST, fold_elements_per_s=1e5, persist_bytes_per_s=1e6)}, [2], "step_s"),
    ],
)
def test_what_would_make_it_possible_does_and_a_little_less_does_not(
    changed: dict[str, float], learners: list[int], field: str | None
) -> None:
    cluster = replace(PAPER, mtbi_s=math.inf, **{"machine": FAST, **changed})  # type: ignore[arg-type]
    found = list(ways_out(cluster, learners, _first))
    assert found
    for way in found:
        if way.learners is not None:
            assert not _first(cluster, [way.learners])[1]
            continue
        factors = {name: least / getattr(cluster, name, 1.0) for name, least in way.least}
        assert not _first(times(cluster, factors), learners)[1]
        for name in factors:
            assert _first(times(cluster, {**factors, name: factors[name] / 1.2}), learners)[1], name
    assert field is None or any(field in dict(way.least) for way in found)


def test_one_job_has_no_loss_and_needs_no_links() -> None:
    alone = needs_of(replace(PAPER, gbit_s=1e-5, syncer_gib=0.1), Choice(learners=1))
    assert not alone.problems and alone.loss == 0.0 and alone.value == alone.goodput == PAPER.goodput(1)
    assert (alone.gbit_s, alone.syncer_gib, alone.slowdown) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("changed", [{"chips": 0}, {"gbit_s": 0.0}, {"step_s": math.inf}, {"sites": 2_000_000}])
def test_an_impossible_cluster_is_refused(changed: dict[str, float]) -> None:
    with pytest.raises(SettingError):
        replace(PAPER, **changed)  # type: ignore[arg-type]


def test_a_slow_disk_is_named_when_it_is_why() -> None:
    slow = replace(FAST, persist_bytes_per_s=1e6)
    with pytest.raises(SettingError, match=r"s to be written; use .*a disk for the syncer that is \d+ times as fast"):
        plan(replace(PAPER, machine=slow), learners=[2])


def test_steps_down_are_priced_as_what_they_send_and_keep() -> None:
    alone = Cluster(chips=4, parameters=24_000_000, step_s=1.0, gbit_s=1.0, mtbi_s=math.inf)
    of_ranks = replace(alone, chips=64)
    whole, steps = (Choice(learners=4, num_fragments=24, downlink=name) for name in ("fp32", "delta"))
    assert needs_of(alone, steps).download_bytes == pytest.approx(1_000_000 * 8.125 / 8, rel=0.001)
    assert needs_of(of_ranks, steps).download_bytes == needs_of(of_ranks, whole).download_bytes == 4_000_000
    kept = needs_of(alone, steps).syncer_gib - needs_of(alone, whole).syncer_gib
    assert kept * 2**30 == pytest.approx(24_000_000 * 2 * 8.125 / 8, rel=0.001)
    times_as_long = needs_of(alone, steps).persist_s / needs_of(alone, whole).persist_s
    assert times_as_long == pytest.approx(1 + 8.125 / 64, rel=0.001)


def test_all_learners_answer_in_blocks_and_those_of_one_rank_follow_steps() -> None:
    """What many ranks say in blocks, the syncer puts together as float32 (docs/sharded.md)."""
    found = {}
    for chips in (4, 64):
        cluster = Cluster(chips=chips, parameters=1_000_000_000, step_s=0.4, gbit_s=1.0, sites=4, mtbi_s=math.inf)
        order = [priced.choice for priced in ranked(cluster, learners=[4])]
        found[chips] = ({choice.uplink for choice in order}, {choice.downlink for choice in order})
    assert found[4] == ({"fp32", "bf16", "int8", "int4"}, {"fp32", "bf16", "delta", "delta-int4"})
    assert found[64] == ({"fp32", "bf16", "int8", "int4"}, {"fp32", "bf16"})
    alone = Cluster(chips=4, parameters=24_000_000, mtbi_s=math.inf)
    coarse = Choice(learners=4, uplink="int4")
    more = needs_of(replace(alone, chips=64), coarse).syncer_gib - needs_of(alone, coarse).syncer_gib
    assert more * 2**30 == pytest.approx(4 * 1_000_000 * (4 - 4.125 / 8), rel=0.001)
