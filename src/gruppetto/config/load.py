"""One resolution order: defaults < preset < file < command line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gruppetto.config.groups import GroupEntry
from gruppetto.config.kinds import Typed, as_kind, check_keys, hints_of, made, plain, shown
from gruppetto.config.presets import PRESETS
from gruppetto.config.run import (
    CodecChoice,
    FragmentsChoice,
    LaunchChoice,
    LearnerEntry,
    MergeChoice,
    Mode,
    OuterChoice,
    RunConfig,
    SyncerPlace,
)
from gruppetto.config.write import END
from gruppetto.errors import SettingError
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.train.setting import PRESETS as MODEL_PRESETS
from gruppetto.train.setting import DataSetting, InnerSetting, ModelSetting, TrainSetting, preset

__all__ = ["DEFAULT_ROUNDS", "TABLES", "check_tables", "load_run", "read_toml", "read_whole_toml"]

DEFAULT_ROUNDS = 1000
"""A local run has an end."""
MAX_FILE_BYTES = 2**20
COMMAND_LINE = "command line"

TABLES: dict[str, tuple[str, ...]] = {
    "run": ("preset", "mode", *hints_of(ProtocolSetting)),
    "outer": tuple(hints_of(OuterChoice)),
    "merge": tuple(hints_of(MergeChoice)),
    "fragments": tuple(hints_of(FragmentsChoice)),
    "codec": tuple(hints_of(CodecChoice)),
    "syncer": tuple(hints_of(SyncerPlace)),
    "launch": tuple(hints_of(LaunchChoice)),
    "train": tuple(name for name in hints_of(TrainSetting) if name not in ("model", "data", "inner")),
    "model": ("preset", *hints_of(ModelSetting)),
    "data": tuple(hints_of(DataSetting)),
    "inner": tuple(hints_of(InnerSetting)),
}
"""Every table of RUN.toml with its keys, besides the lists ``[[learner]]`` and ``[[group]]``."""
LISTS: dict[str, tuple[str, ...]] = {"learner": tuple(hints_of(LearnerEntry)), "group": tuple(hints_of(GroupEntry))}
"""Those lists, and the keys of an entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One source of settings. ``say`` tells where a setting comes from, for an error."""

    values: Mapping[str, Mapping[str, object]]
    lists: Mapping[str, Sequence[Mapping[str, object]]]
    say: str


def load_run(
    file: Path | None = None,
    *,
    preset: str | None = None,
    overrides: Mapping[str, object] | None = None,
    endless: bool = False,
    content: Mapping[str, object] | None = None,
) -> RunConfig:
    """The run that a file, a preset and the command line describe together.

    ``preset`` is one of :data:`PRESETS`; without it ``run.preset`` of the file or the command line names one.
    ``overrides`` maps paths such as ``run.rounds`` to values; a text is read as in TOML. Only a service may be
    ``endless``, which it is without ``run.rounds``. ``content``: what stands in ``file``, if it has been read already.
    Raises :class:`SettingError` with the source, the field's path, the value and the fix.
    """
    layers: list[_Layer] = []
    if file is not None:
        layers.append(_layer(read_toml(file) if content is None else content, str(file)))
    if overrides:
        layers.append(_layer(_nested(overrides), COMMAND_LINE))
    layers = [*_preset(preset, layers), *layers]
    tables: dict[str, dict[str, object]] = {name: {} for name in TABLES}
    lists: dict[str, Sequence[Mapping[str, object]]] = dict.fromkeys(LISTS, ())
    said: dict[str, str] = {}
    for layer in layers:
        for table, values in layer.values.items():
            tables[table].update(values)
            said.update({table: layer.say, **{f"{table}.{key}": layer.say for key in values}})
        lists.update(layer.lists)
        said.update(dict.fromkeys(layer.lists, layer.say))
    try:
        return _composed(tables, lists, endless=endless)
    except SettingError as error:
        source = said.get(error.where.partition("[")[0]) or said.get(error.where.partition(".")[0])
        if source is None:
            raise
        raise SettingError(error.what, where=f"{source}: {error.where}", fix=error.fix) from error


def _preset(name: str | None, layers: Sequence[_Layer]) -> list[_Layer]:
    """What lies below everything that is said: the preset that is named, by the last who names one."""
    found = None if name is None else (name, "preset")
    for layer in layers:
        said = layer.values.get("run", {}).get("preset")
        if said is None:
            continue
        where = f"{layer.say}: run.preset"
        if name is None:
            found = as_kind(said, str, where=where), where
        elif layer.say == COMMAND_LINE:  # a file's gives way, but of two on one line one would be ignored
            raise SettingError(f"preset {name} holds already", where=where, fix="name one preset, and set single keys")
    if found is None:
        return []
    check_keys(found[:1], PRESETS, where=found[1])
    return [_layer(PRESETS[found[0]], f"preset {found[0]}")]


def _composed(
    tables: Mapping[str, Mapping[str, object]], lists: Mapping[str, Sequence[Mapping[str, object]]], *, endless: bool
) -> RunConfig:
    run = dict(tables["run"])
    learners = tuple(made(LearnerEntry, entry, table="learner") for entry in lists["learner"])
    groups = tuple(made(GroupEntry, entry, table="group") for entry in lists["group"])
    if named := {*(entry.name for entry in learners), *(name for group in groups for name in group.base)}:
        run.setdefault("num_learners", max(len(named), len(learners)))
    run.pop("preset", None)
    mode = as_kind(run.pop("mode", "decoupled"), Mode, where="run.mode")
    run.setdefault("rounds", None if endless else DEFAULT_ROUNDS)
    if run["rounds"] in (None, "none") and not endless:
        raise SettingError("a run with learners needs an end", where="run.rounds", fix="use a whole number")
    if not endless:
        # They start at the same time, and the first ones should not ride alone while the others still import.
        run.setdefault("start_learners", run.get("num_learners", ProtocolSetting().num_learners))
    protocol: ProtocolSetting = made(ProtocolSetting, run, table="run")
    data = {"slots": protocol.slots, **tables["data"]}
    train = TrainSetting(
        model=_model(tables["model"]),
        data=made(DataSetting, data, table="data"),
        inner=made(InnerSetting, tables["inner"], table="inner"),
        **plain(TrainSetting, tables["train"], table="train"),
    )
    return RunConfig(
        protocol=protocol,
        mode=mode,
        outer=made(OuterChoice, tables["outer"], table="outer"),
        merge=made(MergeChoice, tables["merge"], table="merge"),
        fragments=made(FragmentsChoice, tables["fragments"], table="fragments"),
        codec=made(CodecChoice, tables["codec"], table="codec"),
        syncer=made(SyncerPlace, tables["syncer"], table="syncer"),
        launch=made(LaunchChoice, tables["launch"], table="launch"),
        train=train,
        learners=learners,
        groups=groups,
    )


def _model(table: Mapping[str, object]) -> ModelSetting:
    """``[model]``: a preset, of which single values may be changed."""
    values = dict(table)
    name = values.pop("preset", next(iter(MODEL_PRESETS)))
    base = preset(str(name))
    whole = {key: getattr(base, key) for key in hints_of(ModelSetting)}
    model: ModelSetting = made(ModelSetting, {**whole, **values}, table="model")
    return model


def read_toml(file: Path, *, what: str = "RUN.toml", if_empty: str = "") -> Mapping[str, object]:
    """The tables in a file, ``what`` as the fix calls it. Raises :class:`SettingError`.

    ``if_empty``: what to write into one that says nothing, which is refused; none: nothing said is the defaults.
    """
    try:
        if file.exists() and not file.is_file():  # reading a pipe would wait for ever
            raise SettingError("cannot be read (it is not a regular file)", where=str(file), fix=f"name a {what}")
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise SettingError(f"is larger than {MAX_FILE_BYTES} bytes", where=str(file), fix=f"name a {what}")
        tables = tomllib.loads(content.decode("utf-8-sig"))
        if if_empty and not tables:
            raise SettingError("says nothing", where=str(file), fix=if_empty)
        return tables
    except SettingError:
        raise
    except OSError as error:
        raise SettingError(f"cannot be read ({error.strerror})", where=str(file), fix=f"name a {what}") from error
    except RecursionError as error:
        raise SettingError("nests too many brackets", where=str(file), fix="write each setting plainly") from error
    except ValueError as error:  # what is no TOML, no UTF-8, or a number of thousands of digits
        raise SettingError(f"is not TOML ({error})", where=str(file), fix="mend the line") from error


def read_whole_toml(file: Path) -> Mapping[str, object]:
    """The tables in a file that :func:`gruppetto.config.write.write_run` wrote, with its last line.

    What is cut short may still be TOML, and would then be read as the defaults of all that is missing. Raises
    :class:`SettingError`.
    """
    content = read_toml(file)
    lines = file.read_text(encoding="utf-8-sig").rstrip().splitlines()
    if not lines or lines[-1] != END:
        raise SettingError(
            f"is cut short, or was written by an older version: its last line is not {END!r}",
            where=str(file),
            fix="put the run's whole settings there, with that line at their end",
        )
    return content


def check_tables(content: Mapping[str, object], known: Sequence[str], *, where: str) -> None:
    """Refuse a table that nobody reads, and a setting that stands in none. Raises :class:`SettingError`."""
    for key in content:
        tables = [f"[{table}]" for table, keys in TABLES.items() if key in keys and key not in known]
        if tables:
            raise SettingError(f"{key} stands in no table", where=where, fix=f"write it below {' or '.join(tables)}")
    check_keys(content, known, where=where)


def _layer(content: Mapping[str, object], say: str) -> _Layer:
    """Check the shape of a source: tables of known keys, and lists of them."""
    check_tables(content, (*TABLES, *LISTS), where=say)
    values: dict[str, Mapping[str, object]] = {}
    lists: dict[str, Sequence[Mapping[str, object]]] = {}
    for table, entries in content.items():
        if table in LISTS:
            lists[table] = _listed(table, entries, say)
            continue
        if not isinstance(entries, dict):
            raise SettingError(f"is {shown(entries)}", where=f"{say}: {table}", fix=f"write a table [{table}]")
        check_keys(entries, TABLES[table], where=say, prefix=f"{table}.")
        values[table] = entries
    return _Layer(values=values, lists=lists, say=say)


def _listed(name: str, entries: object, say: str) -> Sequence[Mapping[str, object]]:
    if not isinstance(entries, list | tuple) or not all(isinstance(entry, dict) for entry in entries):
        raise SettingError(f"is {shown(entries)}", where=f"{say}: {name}", fix=f"write [[{name}]] once for each")
    for entry in entries:
        check_keys(entry, LISTS[name], where=say, prefix=f"{name}.")
    return entries


def _nested(overrides: Mapping[str, object]) -> dict[str, dict[str, object]]:
    nested: dict[str, dict[str, object]] = {}
    for path, value in overrides.items():
        table, dot, key = path.partition(".")
        if not dot or not key:
            raise SettingError(f"{path!r} is no setting", where="command line", fix="use TABLE.KEY, as in run.rounds")
        nested.setdefault(table, {})[key] = Typed(value) if isinstance(value, str) else value
    return nested
