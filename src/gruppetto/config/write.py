"""The resolved run as a file that reads back to the same run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path

from gruppetto.config.run import RunConfig

__all__ = ["END", "section", "to_toml", "write_run"]

END = "# end of run.toml"
"""The last line of a resolved run that was written whole."""


def to_toml(config: RunConfig) -> str:
    """RUN.toml with every setting spelled out; what is None is left out, where leaving it out means just that.

    >>> from gruppetto.config.load import load_run
    >>> print(to_toml(load_run(overrides={"run.num_learners": 2}))[:37])
    [run]
    mode = "decoupled"
    num_learners
    """
    train = _table(config.train)
    nested = {name: train.pop(name) for name in ("model", "data", "inner")}
    tables: dict[str, Mapping[str, object]] = {
        "run": {"mode": config.mode, **_table(config.protocol)},
        "outer": _table(config.outer),
        "merge": _table(config.merge),
        "fragments": _table(config.fragments),
        "codec": _table(config.codec),
        "syncer": _table(config.syncer),
        "launch": _table(config.launch),
        "train": train,
        **{name: _table(part) for name, part in nested.items()},
    }
    parts = [section(f"[{name}]", values) for name, values in tables.items()]
    parts += [section("[[learner]]", _table(entry)) for entry in config.learners]
    parts += [section("[[group]]", _table(group)) for group in config.groups]
    return "\n".join(parts)


def write_run(config: RunConfig, path: Path) -> None:
    """Write the resolved run to ``path``, whole or not at all, with a last line that says so. Raises OSError."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(f"{to_toml(config)}\n{END}\n", encoding="utf-8")
    new.replace(path)


def _table(setting: object) -> dict[str, object]:
    return {f.name: _spelled(getattr(setting, f.name), f.default) for f in fields(setting)}  # type: ignore[arg-type]


def _spelled(value: object, default: object) -> object:
    """None has to be said where leaving it out would mean something else."""
    return "none" if value is None and default not in (None, MISSING) else value


def section(head: str, values: Mapping[str, object]) -> str:
    """A table of a TOML file under its ``head``, brackets included; what is None is left out."""
    lines = [f"{name} = {_value(value)}\n" for name, value in values.items() if value is not None]
    return "".join([f"{head}\n", *lines])


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case Enum():
            return _value(value.value)
        case int() | float():
            return repr(value)
        case str():
            # JSON's escapes are TOML's too, but for a character that JSON need not escape.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case tuple() | list():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            raise AssertionError(f"{value!r} has no place in a RUN.toml")
