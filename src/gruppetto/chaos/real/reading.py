"""From a plan in a file to a resolved one, and back. What is drawn follows from the seed alone."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from gruppetto.chaos.real.kinds import KINDS, SYNCER
from gruppetto.chaos.real.plan import ChaosSetting, CompareSetting, Expectations, LiveFault, LivePlan
from gruppetto.config import load_run, to_toml
from gruppetto.config.kinds import check_keys, read_list, read_table, shown
from gruppetto.config.load import LISTS, check_tables, read_toml
from gruppetto.config.load import TABLES as RUN_TABLES
from gruppetto.config.virtual import VIRTUAL_TABLES
from gruppetto.config.write import section
from gruppetto.errors import SettingError

__all__ = ["read_live_plan", "to_plan_toml"]

TABLES = ("chaos", "rates", "fault", "compare", "expect")
MAX_PER_HOUR = 100_000.0
MAX_DRAWN = 10_000
"""Faults of one plan. A machine that is hit more often does nothing else."""


def read_live_plan(
    file: Path,
    *,
    overrides: Mapping[str, object] | None = None,
    preset: str | None = None,
    seed: int | None = None,
    if_empty: str = "",
) -> LivePlan:
    """The plan in a file. ``overrides`` are settings of the run, ``TABLE.KEY``, over those of the file, and these are
    over those of ``preset``. What only virtual training reads is passed over.

    ``seed`` takes the place of all of the file's: of what is drawn, of the first weights and the order of the data,
    and of the runs without faults, if the file wants any; then it is one, of that seed.

    ``if_empty``: what to write into a file that says nothing, as :func:`read_toml` has it.

    Raises :class:`SettingError` with the file, the key and the fix.
    """
    content = read_toml(file, what="PLAN.toml or a RUN.toml", if_empty=if_empty)
    run = {name: value for name, value in content.items() if name not in (*TABLES, *VIRTUAL_TABLES)}
    try:
        check_tables(content, (*TABLES, *VIRTUAL_TABLES, *RUN_TABLES, *LISTS), where=str(file))
        config = load_run(file, content=run, overrides=overrides, preset=preset)
        chaos: ChaosSetting = read_table(ChaosSetting, content, "chaos")
        compare: CompareSetting = read_table(CompareSetting, content, "compare")
        if seed is not None:
            config, chaos = replace(config, train=config.train.seeded(seed)), replace(chaos, seed=seed)
            compare = CompareSetting(seeds=(seed,) if compare.seeds else ())
        faults = [*read_list(LiveFault, content, "fault"), *_drawn(content.get("rates", {}), chaos)]
        return LivePlan(
            run=config,
            chaos=chaos,
            faults=_resolved(faults, [entry.name for entry in config.learners], chaos.seed),
            compare=compare,
            expect=read_table(Expectations, content, "expect"),
        )
    except SettingError as error:
        if error.where.startswith((str(file), "command line")):
            raise
        raise SettingError(error.what, where=f"{file}: {error.where}", fix=error.fix) from error


def to_plan_toml(plan: LivePlan) -> str:
    """The resolved plan, every fault spelled out, as a file that reads back to the same plan."""
    tables: list[tuple[str, object]] = [("[chaos]", plan.chaos), ("[compare]", plan.compare), ("[expect]", plan.expect)]
    parts = [section(head, _said(table)) for head, table in tables]
    parts += [section("[[fault]]", _said(fault)) for fault in plan.faults]
    return "\n".join([*parts, to_toml(plan.run)])


def _said(table: Any) -> dict[str, object]:
    return {f.name: getattr(table, f.name) for f in fields(table)}


def _drawn(rates: object, chaos: ChaosSetting) -> list[LiveFault]:
    """Each rate is a Poisson process of its own, with a generator of its own: another rate changes nothing in it."""
    if not isinstance(rates, dict):
        raise SettingError(f"is {shown(rates)}", where="rates", fix="write a table [rates]")
    known = {
        f"{kind.replace('-', '_')}_{who}_per_hour": (kind, who)
        for kind, row in KINDS.items()
        for who in sorted(row.hits)
    }
    check_keys(rates, known, where="rates")
    faults: list[LiveFault] = []
    for name, per_hour in sorted(rates.items()):
        number = isinstance(per_hour, int | float) and not isinstance(per_hour, bool)
        if not number or not 0 <= per_hour <= MAX_PER_HOUR:
            raise SettingError(
                f"is {shown(per_hour)}", where=f"rates.{name}", fix=f"use a number from 0 to {MAX_PER_HOUR:g}"
            )
        kind, who = known[name]
        rng = random.Random(f"{chaos.seed}:{name}")
        at_s = rng.expovariate(per_hour / 3600) if per_hour else math.inf
        while at_s < chaos.lasts_s:
            if len(faults) == MAX_DRAWN:
                raise SettingError(
                    f"{name} = {per_hour:g} and the rates before it draw more than {MAX_DRAWN:,} faults in "
                    f"{chaos.lasts_s:g} s",
                    where="rates",
                    fix="lower the rates, or lasts_s in [chaos]",
                )
            faults.append(LiveFault(at_s=round(at_s, 3), kind=kind, who=SYNCER if who == SYNCER else ""))
            at_s += rng.expovariate(per_hour / 3600)
    return faults


def _resolved(faults: Sequence[LiveFault], learners: Sequence[str], seed: int) -> tuple[LiveFault, ...]:
    """In order of time, with a victim for each."""
    ordered = sorted(faults, key=lambda fault: (fault.at_s, fault.kind, fault.who))
    rng = random.Random(f"{seed}:who")
    named: list[LiveFault] = []
    for fault in ordered:
        who = fault.who or (SYNCER if KINDS[fault.kind].hits == {SYNCER} else rng.choice(list(learners)))
        named.append(replace(fault, who=who))
    return tuple(named)
