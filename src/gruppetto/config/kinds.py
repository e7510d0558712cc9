"""From what a file or a command line says to what a setting holds, or one line that says why not."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gruppetto.errors import SettingError

__all__ = [
    "Typed",
    "as_kind",
    "check_keys",
    "hints_of",
    "made",
    "parse_value",
    "plain",
    "read_list",
    "read_table",
    "shown",
]

LARGEST = 2**63 - 1
"""Of a whole number: files, wires and tensors hold no larger one."""
SHOWN = 80
"""Characters of a value that an error shows."""
_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+")


class Typed(str):
    """A value as somebody typed it: what it means depends on what is wanted."""

    __slots__ = ()


def parse_value(text: str) -> object:
    """A value as people type it: anything that TOML can say, numbers with commas, else the text itself.

    >>> [parse_value(text) for text in ("1e-3", "1,500", "true", "text:book.txt", "[1, 2]")]
    [0.001, 1500, True, 'text:book.txt', [1, 2]]
    """
    text = text.strip()
    try:
        if _GROUPED.fullmatch(text):
            return int(text.replace(",", ""))
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except (ValueError, RecursionError):  # besides what is no TOML: too many digits, too many brackets
        return text


@cache
def hints_of(kind: type) -> Mapping[str, Any]:
    """The type of each field of a settings dataclass."""
    hints = get_type_hints(kind)
    return MappingProxyType({f.name: hints[f.name] for f in fields(kind)})


def check_keys(found: Iterable[str], known: Iterable[str], *, where: str, prefix: str = "") -> None:
    """Refuse a key that nobody reads, and name the one that was probably meant."""
    known = list(known)
    for key in found:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            meant = f"did you mean {prefix}{near[0]}?" if near else f"use one of {', '.join(sorted(known))}"
            raise SettingError(f"{prefix}{key} is unknown", where=where, fix=meant)


def as_kind(value: object, kind: Any, *, where: str) -> Any:
    """``value`` as a ``kind``; :class:`SettingError` when it is none.

    >>> as_kind(1500.0, int, where="run.rounds"), as_kind("none", int | None, where="run.num_slots")
    (1500, None)
    >>> as_kind("many", int, where="run.rounds")
    Traceback (most recent call last):
    ...
    gruppetto.errors.SettingError: run.rounds: is 'many'; use a whole number
    """
    origin, choices = get_origin(kind), get_args(kind)
    if isinstance(value, Typed) and origin not in (Union, UnionType):
        value = str(value) if kind is str else parse_value(value)
    if origin in (Union, UnionType):
        if value is None or value == "none":
            return None
        (inner,) = (choice for choice in choices if choice is not NoneType)
        return as_kind(value, inner, where=where)
    if origin is Literal:
        if value in choices:
            return value
        raise SettingError(f"is {shown(value)}", where=where, fix=f"use one of {', '.join(map(str, choices))}")
    if origin is tuple:
        return _as_tuple(value, choices, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            names = ", ".join(str(member.value) for member in kind)
            raise SettingError(f"is {shown(value)}", where=where, fix=f"use one of {names}") from None
    return _as_plain(value, kind, where)


def _as_tuple(value: object, choices: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise SettingError(f"is {shown(value)}", where=where, fix="use a list, for example []")
    if len(choices) == 2 and choices[1] is Ellipsis:
        return tuple(as_kind(item, choices[0], where=f"{where}[{i}]") for i, item in enumerate(value))
    if len(value) != len(choices):
        raise SettingError(f"has {len(value)} entries", where=where, fix=f"use {len(choices)}")
    pairs = zip(value, choices, strict=True)
    return tuple(as_kind(item, each, where=f"{where}[{i}]") for i, (item, each) in enumerate(pairs))


def _as_plain(value: object, kind: type, where: str) -> object:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(value, int) and abs(value) > LARGEST:
        raise SettingError(f"is {shown(value)}", where=where, fix="use a number below 2^63")
    if isinstance(value, str) and "\0" in value:
        raise SettingError(f"is {shown(value)}", where=where, fix="leave out the NUL character")
    if kind is int and number and abs(value) <= LARGEST and value == value // 1:  # type: ignore[arg-type, operator]
        return int(value)
    if kind is float and number:
        return float(value)  # type: ignore[arg-type]
    if kind in (bool, str) and isinstance(value, kind):
        return value
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text in quotes"}
    raise SettingError(f"is {shown(value)}", where=where, fix=f"use {words[kind]}")


def shown(value: object) -> str:
    """A value for an error of one line: short, however long it is.

    >>> shown("abc"), shown(10**5000), len(shown("x" * 10_000))
    ("'abc'", 'a number of 16610 bits', 80)
    """
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # of a number too long to print, or brackets without end, inside of it
        return f"a {type(value).__name__} too long to print"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def plain(kind: type, values: Mapping[str, object], *, table: str) -> dict[str, Any]:
    """The values of a table as the fields of ``kind`` hold them."""
    hints = hints_of(kind)
    return {name: as_kind(value, hints[name], where=f"{table}.{name}") for name, value in values.items()}


def read_table(kind: type, content: Mapping[str, object], name: str) -> Any:
    """``[name]`` of a file as a ``kind``; its defaults where there is none. Raises :class:`SettingError`."""
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise SettingError(f"is {shown(table)}", where=name, fix=f"write a table [{name}]")
    check_keys(table, hints_of(kind), where=name)
    return made(kind, table, table=name)


def read_list(kind: type, content: Mapping[str, object], name: str) -> list[Any]:
    """Each ``[[name]]`` of a file as a ``kind``. Raises :class:`SettingError`."""
    entries = content.get(name, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SettingError(f"is {shown(entries)}", where=name, fix=f"write [[{name}]] once for each")
    for entry in entries:
        check_keys(entry, hints_of(kind), where=name)
    return [made(kind, entry, table=name) for entry in entries]


def made(kind: type, values: Mapping[str, object], *, table: str) -> Any:
    """A settings dataclass from a table of plain values."""
    for f in fields(kind):
        if f.name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise SettingError("is missing", where=f"{table}.{f.name}", fix="give it")
    return kind(**plain(kind, values, table=table))
