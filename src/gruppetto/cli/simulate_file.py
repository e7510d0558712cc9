"""A scenario as a file: what ``gruppetto simulate`` may be told, and learners and maintenance one by one.

::

    hours = 24                          # any flag, by its name with _ for -
    mtbi_years = 1
    fails = ["region:37500:90d:2h"]     # correlated failures

    [[learner]]                         # unequal fleets, and guests
    name = "guest"
    chips = "100k"
    step_s = "1.2s"
    joins = "2h"
    leaves = "6h"

    [[maintenance]]                     # announced: no step is lost
    at = "3h"
    lasts = "30min"
    first_chip = 0
    chips = "4096"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from gruppetto.cli.quantities import as_count, as_seconds
from gruppetto.cli.simulate_flags import MANY
from gruppetto.config.kinds import check_keys, shown
from gruppetto.config.load import read_toml
from gruppetto.errors import SettingError
from gruppetto.sim.failures import Fault
from gruppetto.sim.party import Party
from gruppetto.sim.scenario import Scenario

__all__ = ["ScenarioFile", "read_scenario"]

LEARNER = ("name", "chips", "step_s", "joins", "leaves")
MAINTENANCE = ("at", "lasts", "first_chip", "chips")
IF_EMPTY = "write what is to be simulated, hours = 24 or [[learner]], or leave the file out for the defaults"
NOT_IN_A_FILE = ("scenario", "json", "trace", "figure", "table")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioFile:
    """``arguments`` stand before those of the command line, which win."""

    arguments: tuple[str, ...]
    learners: tuple[Mapping[str, object], ...] = ()
    maintenance: tuple[Fault, ...] = ()

    def applied(self, scenario: Scenario) -> Scenario:
        """The scenario with what only a file can say."""
        parties = tuple(_party(table, scenario) for table in self.learners)
        if parties:
            scenario = replace(
                scenario, parties=parties, learners=len(parties), chips=sum(party.chips for party in parties)
            )
        for fault in self.maintenance:
            if fault.first_chip + fault.num_chips > scenario.chips:
                raise SettingError(
                    f"chips {fault.first_chip} to {fault.first_chip + fault.num_chips - 1} of {scenario.chips}",
                    where="maintenance.chips",
                    fix="name chips that are there",
                )
        return replace(scenario, planned=self.maintenance)


def read_scenario(path: Path, flags: type) -> ScenarioFile:
    """Raises :class:`SettingError` for what is not understood."""
    content = dict(read_toml(path, what="SCENARIO.toml", if_empty=IF_EMPTY))
    learners, maintenance = content.pop("learner", []), content.pop("maintenance", [])
    known = [f.name for f in fields(flags) if f.name not in NOT_IN_A_FILE]
    check_keys(content, [*known, "learner", "maintenance"], where=str(path))
    arguments: list[str] = []
    for name, value in content.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, list) and flag not in MANY:
            raise SettingError(f"is {shown(value)}", where=f"{path}: {name}", fix="use one value")
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, bool) or not isinstance(each, int | float | str):
                raise SettingError(f"is {shown(each)}", where=f"{path}: {name}", fix="use a number or a text")
            arguments += (flag, str(each))
    tables = [_table(table, LEARNER, f"{path}: learner") for table in _list(learners, f"{path}: learner")]
    return ScenarioFile(
        arguments=tuple(arguments),
        learners=tuple(tables),
        maintenance=tuple(
            sorted(
                (
                    _fault(_table(table, MAINTENANCE, f"{path}: maintenance"))
                    for table in _list(maintenance, f"{path}: maintenance")
                ),
                key=lambda fault: fault.at_s,
            )
        ),
    )


def _list(value: object, where: str) -> Sequence[object]:
    if not isinstance(value, list):
        raise SettingError(f"is {shown(value)}", where=where, fix=f"write [[{where.rpartition(' ')[2]}]]")
    return value


def _table(value: object, keys: Sequence[str], where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise SettingError(f"is {shown(value)}", where=where, fix="write a table")
    check_keys(value, keys, where=where)
    return value


def _party(table: Mapping[str, object], scenario: Scenario) -> Party:
    where = f"learner {table.get('name', '')}".rstrip()

    def seconds(key: str, *, zero: bool = False) -> float:
        return as_seconds(str(table[key]), where=f"{where}: {key}", zero=zero, never=False)

    return Party(
        name=str(table.get("name", "")),
        chips=as_count(str(table.get("chips", "")), where=f"{where}: chips"),
        step_s=seconds("step_s") if "step_s" in table else scenario.step_s,
        joins_s=seconds("joins", zero=True) if "joins" in table else 0.0,
        leaves_s=seconds("leaves") if "leaves" in table else None,
    )


def _fault(table: Mapping[str, object]) -> Fault:
    for key in ("at", "lasts", "chips"):
        if key not in table:
            raise SettingError("is missing", where=f"maintenance.{key}", fix="give it")
    first = table.get("first_chip", 0)
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise SettingError(f"is {shown(first)}", where="maintenance.first_chip", fix="use a whole number, 0 or more")
    return Fault(
        at_s=as_seconds(str(table["at"]), where="maintenance.at", zero=True, never=False),
        first_chip=first,
        num_chips=as_count(str(table["chips"]), where="maintenance.chips"),
        down_s=as_seconds(str(table["lasts"]), where="maintenance.lasts", never=False),
        notice=True,
        cause="maintenance",
    )
