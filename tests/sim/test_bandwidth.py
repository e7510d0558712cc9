"""What crosses the links: the paper's row, closed forms, and orders that must hold everywhere."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.errors import SettingError
from gruppetto.numerics.codec import CODECS
from gruppetto.sim.bandwidth import BITS, METHODS, Traffic, demand, needed_gbit_s

PAPER = Traffic(parameters=5_000_000_000, sync_period=48, num_fragments=48)
TRAFFIC = st.builds(
    lambda parameters, sites, step_s, h, codec: Traffic(
        parameters=parameters, sites=sites, step_s=step_s, sync_period=h, num_fragments=h, codec=codec
    ),
    st.integers(10**6, 10**12),
    st.integers(2, 32),
    st.floats(0.05, 60),
    st.integers(3, 200),
    st.sampled_from(sorted(BITS)),
)


def test_bits_are_those_of_the_codecs() -> None:
    assert {name: codec.bits for name, codec in CODECS.items()} == BITS


def test_the_papers_row_at_a_step_of_one_second() -> None:
    assert needed_gbit_s("data-parallel", PAPER, utilisation=0.9) == pytest.approx(104, rel=0.03)
    assert needed_gbit_s("decoupled", PAPER) == pytest.approx(1.7, rel=0.03)


def test_at_full_speed_data_parallel_has_to_fit_into_the_backward_pass() -> None:
    """With very many layers: all gradients within two thirds of a step."""
    traffic = Traffic(parameters=10**9, layers=5000)
    assert needed_gbit_s("data-parallel", traffic, utilisation=0.999) == pytest.approx(16 / (2 / 3), rel=0.01)


def test_decoupled_needs_what_it_sends_on_average_when_the_trip_is_long_enough() -> None:
    assert needed_gbit_s("decoupled", PAPER) == pytest.approx(demand("decoupled", PAPER, 1.0).gbit_a_step, rel=1e-6)


@given(TRAFFIC, st.sampled_from(sorted(METHODS)), st.floats(1e-3, 1e3), st.floats(1, 100))
def test_a_wider_link_never_hurts(traffic: Traffic, method: str, gbit_s: float, wider: float) -> None:
    narrow, wide = demand(method, traffic, gbit_s), demand(method, traffic, gbit_s * wider)
    assert 0 < narrow.utilisation <= wide.utilisation + 1e-9 <= 1 + 1e-6
    assert 0 < narrow.in_time <= wide.in_time + 1e-9 <= 1 + 1e-6


@given(TRAFFIC)
def test_the_order_of_the_methods(traffic: Traffic) -> None:
    """Streaming spreads over the period what DiLoCo sends at once; decoupled learners never wait at all."""
    for gbit_s in (0.1, 1.0, 10.0, 100.0):
        assert demand("decoupled", traffic, gbit_s).utilisation == 1.0
        found = [demand(m, traffic, gbit_s).utilisation for m in ("diloco", "streaming")]
        assert found[0] <= found[1] + 0.02
    assert demand("decoupled", traffic, 1).gbit_a_step == pytest.approx(traffic.model_gbit / traffic.sync_period)


@given(TRAFFIC)
def test_fewer_bits_need_less_in_proportion(traffic: Traffic) -> None:
    from dataclasses import replace

    full, quarter = replace(traffic, codec="bf16"), replace(traffic, codec="int4")
    assert needed_gbit_s("decoupled", full) == pytest.approx(16 / 4.125 * needed_gbit_s("decoupled", quarter), rel=1e-3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"parameters": 0}, "parameters is 0"),
        ({"sites": 1}, "sites is 1; use 2 or more"),
        ({"codec": "zip"}, "use one of fp32, bf16, int8, int4"),
        ({"step_s": 0.0}, "step_s is 0"),
    ],
)
def test_impossible_traffic_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        Traffic(**{"parameters": 1, **change})


def test_unknown_methods_and_links_are_refused() -> None:
    with pytest.raises(SettingError, match="'pigeon' is no method"):
        demand("pigeon", PAPER, 1.0)
    with pytest.raises(SettingError, match="gbit_s is 0"):
        demand("decoupled", PAPER, 0.0)
