"""Sites of a plan: read from a file, and what is said about where the syncer is to be.

::

    [[site]]
    name = "zurich"
    learners = 2
    up = "1Gbit/s"         # out of the site; --gbit-s where it is not said
    down = "1Gbit/s"
    rtt = "30ms"           # there and back to the other sites; 40 ms where it is not said
    may_serve = true       # false: no syncer can be there
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from gruppetto.cli.plan_notes import gbit
from gruppetto.cli.quantities import as_gbit_s, as_seconds, timed
from gruppetto.config.kinds import check_keys, shown
from gruppetto.config.load import read_toml
from gruppetto.errors import SettingError
from gruppetto.sim.cluster import Cluster
from gruppetto.sim.planner import Plan
from gruppetto.sim.sites import FULL, Load, Placement, Site, periods, placements

__all__ = ["between", "read_sites", "sites_as_json", "sites_text"]

KEYS = ("name", "learners", "up", "down", "rtt", "may_serve")


def read_sites(path: Path, *, gbit_s: float) -> tuple[Site, ...]:
    """Raises :class:`SettingError` for what is not understood."""
    content = read_toml(path, what="file with [[site]] tables")
    check_keys(content, ("site",), where=str(path))
    tables = content.get("site", [])
    if not isinstance(tables, list) or not tables:
        raise SettingError("names no site", where=str(path), fix="write [[site]]")
    return tuple(_site(table, str(path), gbit_s) for table in tables)


def between(cluster: Cluster, sites: Sequence[Site], *, latency: bool) -> Cluster:
    """The cluster as a plan prices it: every learner as narrow as the narrowest, and the widest way out for the syncer.

    ``latency``: it has been given, and the sites' round trips do not count.
    """
    training = [site for site in sites if site.learners]
    most = -(-sum(site.learners for site in training) // len(training))
    narrowest = min(map(share, training))
    machine = cluster.machine
    if not latency:
        machine = replace(machine, latency_s=max(site.rtt_s for site in sites) / 2)
    return replace(cluster, sites=len(training), gbit_s=narrowest * most, machine=machine)


def share(site: Site) -> float:
    """Gbit/s that one learner there has of the narrower way."""
    return min(site.up_gbit_s, site.down_gbit_s) / site.learners


def sites_text(plan: Plan, sites: Sequence[Site]) -> str:
    """Where the syncer is to be, what every link then carries, and what would fit."""
    found = _placed(plan, sites)
    best = found[0]
    others = ", ".join(f"{_where(each)} {each.busiest.use:.0%}" for each in found[1:4])
    lines = [
        f"sites    {_where(best)}: the busiest link, {best.busiest.site.name}'s, is {best.busiest.use:.0%} full"
        + (f"; {others}" if others else "")
    ]
    rows = [("", "learners", "out", "in", "out and in a day", "trip"), *map(_row, best.loads)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        lines.append("         " + "  ".join(map(str.ljust, row, widths)).rstrip())
    lines += [f"         {said}" for said in (*_paces(plan, found), *_shortages(best))]
    enough = ", ".join(
        f"{up} up {down} down {f'from H = {h}' if h else 'never'}" for up, down, h in _periods(plan, sites, best)
    )
    narrow = min((site for site in sites if site.learners), key=share)
    if share(narrow) < max(share(site) for site in sites if site.learners):
        lines.append(
            f"         above, every learner is priced with the narrowest share of a link, {narrow.name}'s: "
            "who has more is in more rounds"
        )
    chosen = plan.best.choice.sync_period
    lines.append(f"         below {FULL:.0%} of every link, every answer in time: {enough} (chosen: H = {chosen})")
    return "\n".join(lines)


def sites_as_json(plan: Plan, sites: Sequence[Site]) -> dict[str, Any]:
    """The same as one object: shares in 0…1, bytes, seconds."""
    found = _placed(plan, sites)
    return {
        "serving": list(found[0].serving),
        "fits": found[0].fits,
        "slowdown": found[0].slowdown,
        "round_s": found[0].round_s,
        "links": {
            load.site.name: {
                "up_use": load.up_use,
                "down_use": load.down_use,
                "up_bytes_a_day": load.up_bytes_a_day,
                "down_bytes_a_day": load.down_bytes_a_day,
                "answer_s": load.answer_s,
                "in_time": load.in_time,
                "answer_steps": load.answer_steps,
                "trip_s": load.trip_s,
            }
            for load in found[0].loads
        },
        "others": [
            {"serving": list(each.serving), "busiest": each.busiest.use, "round_s": each.round_s} for each in found[1:]
        ],
        "least_periods": [
            {"uplink": up, "downlink": down, "sync_period": h} for up, down, h in _periods(plan, sites, found[0])
        ],
    }


def _placed(plan: Plan, sites: Sequence[Site]) -> list[Placement]:
    return placements(sites, plan.best.choice, **_asked(plan))


def _periods(plan: Plan, sites: Sequence[Site], best: Placement) -> list[tuple[str, str, int | None]]:
    return list(periods(sites, best.serving, **_asked(plan)))


class _Asked(TypedDict):
    parameters: int
    step_s: float
    model_s: float
    of_ranks: bool


def _asked(plan: Plan) -> _Asked:
    cluster, choice, needs = plan.cluster, plan.best.choice, plan.best.needs
    return {
        "parameters": cluster.parameters,
        "step_s": cluster.step_s,
        "model_s": choice.num_fragments * (needs.syncer_s + needs.persist_s),
        "of_ranks": choice.learners < cluster.chips,
    }


def _paces(plan: Plan, found: Sequence[Placement]) -> Iterator[str]:
    """Where the syncer's host, and no link, is what rounds wait for."""
    step_s = plan.cluster.step_s
    alone, several = (
        next((each for each in found if (len(each.serving) > 1) == shards), None) for shards in (False, True)
    )
    if alone is None or alone.round_s <= step_s:
        return
    said = (
        f"one host for the syncer has a round every {timed(alone.round_s)} at the most, {alone.round_s / step_s:.2g} "
    )
    said += "steps, and links carry so much less"
    if several is not None:
        said += f"; {len(several.serving)} shards, of a host each, every {timed(several.round_s)}"
        said += f" (gruppetto syncer RUN.toml --shard 1/{len(several.serving)})"
    yield said


def _where(placement: Placement) -> str:
    if len(placement.serving) == 1:
        return f"syncer at {placement.serving[0]}"
    return f"a shard at each of {', '.join(placement.serving)}"


def _row(load: Load) -> tuple[str, ...]:
    site = load.site
    return (
        site.name,
        str(site.learners),
        f"{load.up_use:.0%} of {gbit(site.up_gbit_s)}",
        f"{load.down_use:.0%} of {gbit(site.down_gbit_s)}",
        f"{_gigabytes(load.up_bytes_a_day)}, {_gigabytes(load.down_bytes_a_day)}",
        timed(load.trip_s) if load.trip_s else "",
    )


def _shortages(placement: Placement) -> Iterator[str]:
    """What comes of each link that is too narrow."""
    for load in placement.loads:
        name = load.site.name
        if load.use > 1 and name in placement.serving:
            yield f"{name}: its link is too narrow to serve from; rounds take {load.use:.2g} steps"
        elif not load.in_time and load.use <= FULL:
            yield (
                f"{name}: an answer takes {timed(load.answer_s)}, more than a step: its learners are in rounds with "
                f"rounds_in_flight = {load.answer_steps} or more, or where rounds wait for K"
            )
        elif load.use > 1 or not load.in_time:
            yield (
                f"{name}: an answer takes {timed(load.answer_s)}, more than a step: rounds close without its learners, "
                "except where they wait for K"
            )
        elif load.use > FULL:
            yield f"{name}: more than {FULL:.0%} of its link; what is short waits behind bodies"


def _gigabytes(count: float) -> str:
    return f"{count / 1e12:.3g} TB" if count >= 1e12 else f"{count / 1e9:.3g} GB"


def _site(table: object, where: str, gbit_s: float) -> Site:
    if not isinstance(table, Mapping):
        raise SettingError(f"is {shown(table)}", where=f"{where}: site", fix="write [[site]]")
    check_keys(table, KEYS, where=f"{where}: site")
    name, learners, serves = table.get("name", ""), table.get("learners", 0), table.get("may_serve", True)
    said = f"{where}: site {name}".rstrip()
    if not isinstance(name, str):
        raise SettingError(f"is {shown(name)}", where=f"{where}: site name", fix="use a text")
    if isinstance(learners, bool) or not isinstance(learners, int):
        raise SettingError(f"is {shown(learners)}", where=f"{said}: learners", fix="use a whole number, 0 or more")
    if not isinstance(serves, bool):
        raise SettingError(f"is {shown(serves)}", where=f"{said}: may_serve", fix="use true or false")
    up, down = (
        as_gbit_s(str(table[way]), where=f"{said}: {way}") if way in table else gbit_s for way in ("up", "down")
    )
    rtt_s = as_seconds(str(table.get("rtt", "40ms")), where=f"{said}: rtt", zero=True, never=False)
    return Site(name=name, learners=learners, up_gbit_s=up, down_gbit_s=down, rtt_s=rtt_s, may_serve=serves)
