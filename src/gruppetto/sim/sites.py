"""Several sites with unlike links: where the syncer is to be, what each link carries, and what it would have to.

A learner sends a fragment up and takes one down, once in H steps for each part of the model; whoever is at the
syncer's own site uses no link for it. With U and D bytes a second for one learner up and down, m learners at a site,
M in all, and a share a of the model served there (1 at the one syncer's site, 1/S at each of S shards')::

    leaves the site    m·U·(1 − a) + (M − m)·D·a
    comes to it        m·D·(1 − a) + (M − m)·U·a

So a syncer's site sends what all the others take down: that is what a narrow way out cannot bear.

A fragment's turn comes once in H steps, or as late as the syncer's hosts need for the whole model: S shards' a share of
1/S each.

A round closes when the fleet has made its next step, so an answer has one step to be asked for and to arrive: a learner
whose fragment takes longer up is not in fewer rounds but in none. Smaller fragments help it, or several rounds in
flight, if its link can carry what they bring.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gruppetto.errors import SettingError
from gruppetto.numerics.codec import CODECS
from gruppetto.numerics.downlink import DOWNLINKS
from gruppetto.sim.choice import FULL, GBIT, Choice
from gruppetto.sim.planner import MOST_FRAGMENTS

__all__ = [
    "DAY_S",
    "FULL",
    "WAYS",
    "WAYS_OF_RANKS",
    "Load",
    "Placement",
    "Site",
    "check_sites",
    "least_period",
    "periods",
    "place",
    "placements",
]

SAMPLE = 1 << 20
LONGEST_PERIOD = 1000
"""Beyond, nobody has looked at what H does to the loss."""
DAY_S = 86_400.0
WAYS = (("bf16", "fp32"), ("bf16", "bf16"), ("int8", "delta"), ("int4", "delta-int4"))
"""Up and down, from exact to coarse. Steps down (``delta``) come from one syncer only."""
WAYS_OF_RANKS = (("bf16", "fp32"), ("bf16", "bf16"), ("int8", "bf16"), ("int4", "bf16"))
"""... of learners of many ranks, who take every value whole."""
GRAIN = 0.05
"""Links that are as full as each other to this share are equally good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A place with one link. Every impossible value is refused with the fix.

    >>> Site(name="", learners=1, up_gbit_s=1, down_gbit_s=1)
    Traceback (most recent call last):
    ...
    gruppetto.errors.SettingError: site: it has no name; name it
    """

    name: str
    learners: int
    """0: nobody trains there, but a syncer could be there."""
    up_gbit_s: float
    down_gbit_s: float
    rtt_s: float = 0.04
    """There and back, to the other sites; between two of them the longer one counts."""
    may_serve: bool = True
    """A syncer could be there."""

    def __post_init__(self) -> None:
        where = f"site {self.name}".rstrip()
        if not self.name:
            raise SettingError("it has no name", where=where, fix="name it")
        if self.learners < 0:
            raise SettingError(f"{self.learners} learners", where=where, fix="use 0 or more")
        for name in ("up_gbit_s", "down_gbit_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise SettingError(f"{name} is {getattr(self, name)}", where=where, fix="use more than 0")
        if not 0 <= self.rtt_s < math.inf:
            raise SettingError(f"rtt_s is {self.rtt_s}", where=where, fix="use 0 seconds or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the link of one site carries in the mean, at a round for every step, or as the syncer's hosts can."""

    site: Site
    up_bytes_s: float
    down_bytes_s: float
    answer_s: float
    """From the step that makes a quorum to its answer at the syncer: two messages, and its fragment up."""
    in_time: bool
    """Which is less than a step: else rounds close without its learners, unless they wait for K of them, or several are
    in flight."""
    answer_steps: int
    """In so many steps it is in time: D, if the link is not too full."""
    trip_s: float
    """From a snapshot to the merged value, for a learner there: three round trips, its fragment up and one down, at the
    share that the narrowest link on the way has for it."""

    @property
    def up_use(self) -> float:
        """Share of the link."""
        return self.up_bytes_s / (self.site.up_gbit_s * GBIT)

    @property
    def down_use(self) -> float:
        return self.down_bytes_s / (self.site.down_gbit_s * GBIT)

    @property
    def use(self) -> float:
        """Of the busier way."""
        return max(self.up_use, self.down_use)

    @property
    def up_bytes_a_day(self) -> float:
        return self.up_bytes_s * DAY_S

    @property
    def down_bytes_a_day(self) -> float:
        return self.down_bytes_s * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A syncer at one site, or one shard of it at each of several."""

    serving: tuple[str, ...]
    loads: tuple[Load, ...]
    """By site, in the order in which they were named."""
    round_s: float
    """From one round to the next, as far as steps and the syncer's hosts go; links are looked at apart."""

    @property
    def busiest(self) -> Load:
        return max(self.loads, key=lambda load: load.use)

    @property
    def fits(self) -> bool:
        """No link is fuller than :data:`FULL`, and every answer is in time."""
        return self.busiest.use <= FULL and all(load.in_time for load in self.loads)

    @property
    def slowdown(self) -> float:
        """Steps to a round: where a site that serves is too narrow rounds come later, and training goes on meanwhile. A
        narrow link elsewhere keeps its own learners out of rounds, and nobody waits for them."""
        return max(1.0, *(load.use for load in self.loads if load.site.name in self.serving))

    @property
    def bytes_a_day(self) -> float:
        """What crosses between sites."""
        return sum(load.up_bytes_a_day for load in self.loads)


def place(
    sites: Sequence[Site],
    serving: Sequence[str],
    choice: Choice,
    *,
    parameters: int,
    step_s: float,
    model_s: float = 0.0,
) -> Placement:
    """What every link carries with the syncer, or a shard each, at ``serving``.

    ``model_s``: what merging and writing each fragment once takes one host.

    >>> sites = [Site(name=name, learners=m, up_gbit_s=1, down_gbit_s=1) for name, m in (("a", 3), ("b", 1))]
    >>> at_a = place(sites, ["a"], Choice(learners=4), parameters=24_000_000, step_s=1.0)
    >>> [(load.up_bytes_s, load.down_bytes_s) for load in at_a.loads]
    [(4000000.0, 2000000.0), (2000000.0, 4000000.0)]
    """
    everybody = sum(site.learners for site in sites)
    a_learner_s = max(choice.sync_period * step_s, model_s / len(serving))
    up, down = (_bytes_of(codec, parameters) / a_learner_s for codec in _codecs(choice))
    shares = {site.name: 1 / len(serving) if site.name in serving else 0.0 for site in sites}
    loads = []
    for site in sites:
        share, others = shares[site.name], everybody - site.learners
        answer_s, trip_s = _times_s(site, sites, shares, choice, parameters)
        loads.append(
            Load(
                site=site,
                up_bytes_s=site.learners * up * (1 - share) + others * down * share,
                down_bytes_s=site.learners * down * (1 - share) + others * up * share,
                answer_s=answer_s,
                in_time=not site.learners or answer_s <= step_s,
                answer_steps=max(1, math.ceil(answer_s / step_s)),
                trip_s=trip_s,
            )
        )
    return Placement(serving=tuple(serving), loads=tuple(loads), round_s=a_learner_s / choice.sync_period)


def placements(
    sites: Sequence[Site],
    choice: Choice,
    *,
    parameters: int,
    step_s: float,
    model_s: float = 0.0,
    of_ranks: bool = False,
) -> list[Placement]:
    """The syncer at each site where it may be, and a shard at each site with learners; the best first.

    Best is what fits, then the emptier busiest link where that differs by more than a trifle, then the fewest bytes
    between sites, then one syncer before several. ``of_ranks``: learners have many of them, and so one syncer
    (docs/sharded-syncer.md). Raises :class:`SettingError` for sites that cannot be.
    """
    check_sites(sites)
    ways: list[tuple[str, ...]] = [(site.name,) for site in sites if site.may_serve]
    together = tuple(site.name for site in sites if site.may_serve and site.learners)
    if len(together) > 1 and not of_ranks and DOWNLINKS[choice.downlink].steps is None:
        ways.append(together)
    found = [place(sites, way, choice, parameters=parameters, step_s=step_s, model_s=model_s) for way in ways]
    return sorted(
        found, key=lambda p: (not p.fits, round(p.busiest.use / GRAIN), p.bytes_a_day, len(p.serving), p.serving)
    )


def least_period(
    sites: Sequence[Site],
    serving: Sequence[str],
    uplink: str,
    downlink: str,
    *,
    parameters: int,
    step_s: float,
    model_s: float = 0.0,
) -> int | None:
    """The smallest H that fits, with as many fragments, 96 at most: what is carried goes by 1/H, and what an answer
    takes by 1/P. None: with no H."""

    def fits(period: int) -> bool:
        at = Choice(
            learners=0,
            sync_period=period,
            num_fragments=min(period, MOST_FRAGMENTS),
            uplink=uplink,
            downlink=downlink,
        )
        return place(sites, serving, at, parameters=parameters, step_s=step_s, model_s=model_s).fits

    low, high = 0, LONGEST_PERIOD
    if not fits(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def periods(
    sites: Sequence[Site],
    serving: Sequence[str],
    *,
    parameters: int,
    step_s: float,
    model_s: float = 0.0,
    of_ranks: bool = False,
) -> Iterator[tuple[str, str, int | None]]:
    """Up, down, and the smallest H if there is one, for each way that is possible there."""
    for uplink, downlink in WAYS_OF_RANKS if of_ranks else WAYS:
        if len(serving) == 1 or DOWNLINKS[downlink].steps is None:
            period = least_period(
                sites, serving, uplink, downlink, parameters=parameters, step_s=step_s, model_s=model_s
            )
            yield uplink, downlink, period


def check_sites(sites: Sequence[Site]) -> None:
    """Raises :class:`SettingError` for sites of which no run can be made."""
    names = [site.name for site in sites]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SettingError(f"{', '.join(twice)} is there twice", where="site", fix="name each site once")
    if sum(site.learners > 0 for site in sites) < 2:
        raise SettingError("fewer than two sites have learners", where="site", fix="plan one site without a file")
    if not any(site.may_serve for site in sites):
        raise SettingError("no site may serve", where="site", fix="leave may_serve out at one")


def _times_s(
    site: Site, sites: Sequence[Site], shares: Mapping[str, float], choice: Choice, parameters: int
) -> tuple[float, float]:
    """Of an answer, and of a whole trip, to the farthest site that serves. Bodies of a round are under way together."""
    everybody = sum(each.learners for each in sites)
    up, down = (_bytes_of(codec, parameters) / choice.num_fragments for codec in _codecs(choice))
    answers, trips = [0.0], [0.0]
    for other in sites:
        if not shares[other.name] or other is site:
            continue
        remote = everybody - other.learners
        up_s = max(site.learners * up / site.up_gbit_s, remote * up / other.down_gbit_s) / GBIT
        down_s = max(site.learners * down / site.down_gbit_s, remote * down / other.up_gbit_s) / GBIT
        rtt_s = max(site.rtt_s, other.rtt_s)
        # Progress, ask, answer and announcement are half a round trip each, and the download is a whole one.
        answers.append(1.5 * rtt_s + up_s)
        trips.append(3 * rtt_s + up_s + down_s)
    return max(answers), max(trips)


def _codecs(choice: Choice) -> tuple[str, str]:
    """The encodings of what usually travels."""
    return choice.uplink, DOWNLINKS[choice.downlink].usual.name


def _bytes_of(codec: str, elements: int) -> float:
    return CODECS[codec].payload_bytes(SAMPLE) / SAMPLE * elements
