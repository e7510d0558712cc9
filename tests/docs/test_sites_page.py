"""The page on sites: its figures are those of the example, and of its own arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from gruppetto.cli.plan_sites import read_sites
from gruppetto.numerics.codec import CODECS
from gruppetto.sim.choice import Choice
from gruppetto.sim.sites import DAY_S, periods, place, placements

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "sites.md").read_text()


def test_the_example_is_as_the_page_shows_it() -> None:
    sites = read_sites(ROOT / "examples" / "sites.toml", gbit_s=10.0)
    asked = {"parameters": 10**9, "step_s": 10.0, "of_ranks": True}
    choice = Choice(learners=7, uplink="int8", downlink="bf16")
    best = placements(sites, choice, **asked)[0]  # type: ignore[arg-type]
    assert f"syncer at {best.serving[0]}" in PAGE
    for load in best.loads:
        row = next(line for line in PAGE.splitlines() if line.startswith(f"         {load.site.name} "))
        assert f" {load.up_use:.0%} of" in row and f" {load.down_use:.0%} of" in row
    for up, down, period in periods(sites, best.serving, **asked):  # type: ignore[arg-type]
        assert f"{up} up {down} down from H = {period}" in PAGE


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4"])
def test_bytes_of_a_day(codec: str) -> None:
    a_day = CODECS[codec].payload_bytes(1 << 20) / (1 << 20) * 1e9 * DAY_S / 24 / 1e12
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{codec}`"))
    assert f"{float(row.split('|')[3].split()[0]):.2g}" == f"{a_day:.2g}"


def test_a_shard_at_every_site_leaves_what_the_page_says() -> None:
    sites = read_sites(ROOT / "examples" / "sites.toml", gbit_s=10.0)
    found = place(sites, [site.name for site in sites], Choice(learners=7), parameters=24 * 10**6, step_s=1.0)
    up, down = 2e6, 4e6
    for load in found.loads:
        m = load.site.learners
        assert load.up_bytes_s == pytest.approx(m * up * (1 - 1 / 3) + (7 - m) * down / 3)
