"""Reading the command line of a verb into a dataclass, with mistakes as one line."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import io
import json
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro

from gruppetto.errors import DataError, SettingError, UserError
from gruppetto.home import at_home

__all__ = [
    "at_most_one",
    "exactly_one",
    "log_to_stderr",
    "overrides_of",
    "positional",
    "print_json",
    "read_flags",
    "refuse_missing",
]

T = TypeVar("T")
NOTHING = (None, False, "")
"""Defaults of which the help says nothing: what is not given is not there."""

METAVARS: Mapping[Any, str] = {
    of: metavar
    for kind, metavar in ((int, "N"), (float, "NUMBER"), (str, "VALUE"), (Path, "PATH"))
    for of in (kind, kind | None)
}
"""What the help calls a value of which the flag says nothing itself."""

HOME = re.compile(r"~(?:[\w.-]*/|$)")
NO_NUMBER = {
    "a whole number": re.compile(
        r"Error parsing (--[\w-]+): (?:no type matching \S*INT could|invalid literal for int).*"
    ),
    "a number": re.compile(
        r"Error parsing (--[\w-]+): (?:no type matching \S*FLOAT could|could not convert string to float).*"
    ),
}
"""What Python and tyro say of a flag that wants one, in their own words."""


def positional(metavar: str) -> Any:
    """How the help shows a positional argument: its name alone, in brackets where it may be left out."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


def read_flags(kind: type[T], arguments: Sequence[str], verb: str) -> T:
    """``arguments`` as a ``kind``, whose docstrings make the help. Raises :class:`UserError` for what is not known."""
    _refuse_empty(arguments, verb)
    arguments = [_at_home(argument) for argument in arguments]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            flags, unknown = tyro.cli(
                _in_plain_words(kind),
                args=arguments,
                prog=f"gruppetto {verb}",
                description=inspect.cleandoc(kind.__doc__ or ""),
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.UseAppendAction),
                return_unknown_args=True,
            )
    except SystemExit as ended:
        if not ended.code:
            raise
        raise UserError(_first_sentence(said.getvalue()), fix=f"see gruppetto {verb} --help") from None
    if unknown:
        # Without the dashes, which all have in common.
        names = [f.name.replace("_", "-") for f in fields(kind)]  # type: ignore[arg-type]
        option = unknown[0].removeprefix("--").partition("=")[0]
        near = difflib.get_close_matches(option, names, n=1) if unknown[0].startswith("--") else []
        fix = f"did you mean --{near[0]}?" if near else f"see gruppetto {verb} --help"
        raise UserError(f"{unknown[0]} is not understood", where=f"gruppetto {verb}", fix=fix)
    return flags


def _at_home(argument: str) -> str:
    """A shell spells ``~`` out at the beginning of a word only, and not in ``--out=~/runs``."""
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    return f"{option}{equals}{at_home(value)}" if HOME.match(value) else argument


def _refuse_empty(arguments: Sequence[str], verb: str) -> None:
    """What a shell leaves of a variable that is not set would be read as nothing said, or as where we are."""
    before = ""
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if not argument.strip() or (argument.startswith("--") and equals and not value.strip()):
            where = option if equals else before or f"gruppetto {verb}"
            raise UserError("is empty", where=where, fix="give a value, or leave it out")
        before = argument if argument.startswith("--") and not equals else ""


def _in_plain_words(kind: type[T]) -> type[T]:
    """The same class, whose help is silent on :data:`NOTHING` and has no names of types for values.

    Its docstrings are found under its name.
    """
    silent = tyro.conf.arg(help_behavior_hint="")
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):  # type: ignore[arg-type]
        if metavar := METAVARS.get(hints[field.name]):
            hints[field.name] = Annotated[hints[field.name], tyro.conf.arg(metavar=metavar)]
        if any(field.default is nothing for nothing in NOTHING):
            hints[field.name] = Annotated[hints[field.name], silent]
    as_it_was = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**as_it_was, "__annotations__": hints})


def exactly_one(values: Sequence[str], what: str, verb: str) -> str:
    """The one positional argument that a verb needs."""
    if len(values) != 1:
        raise UserError(
            f"{len(values)} arguments where one {what} is needed", where=f"gruppetto {verb}", fix=f"give one {what}"
        )
    return values[0]


def refuse_missing(target: str) -> None:
    """What is neither there nor an address with its port is a directory that is not there. Raises
    :class:`DataError`."""
    if target.startswith((".", "/", "~")) or ":" not in target:
        fix = "name a run directory, or an address as http://HOST:PORT"
        raise DataError("no such directory", where=target, fix=fix)


def at_most_one(values: Sequence[str], what: str, verb: str) -> str | None:
    """The one positional argument that a verb may have."""
    return exactly_one(values, what, verb) if values else None


def overrides_of(settings: Sequence[str], flags: Mapping[str, str | None]) -> dict[str, object]:
    """``--set TABLE.KEY=VALUE``, and the flags that stand for a setting; a flag wins over a ``--set``."""
    overrides: dict[str, object] = {}
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals:
            raise SettingError(f"{setting!r} has no value", where="--set", fix="use TABLE.KEY=VALUE, run.rounds=500")
        overrides[path.strip()] = value
    return {**overrides, **{path: value for path, value in flags.items() if value is not None}}


def print_json(value: Mapping[str, Any]) -> None:
    """The one object that ``--json`` promises on standard output."""
    print(json.dumps(value, allow_nan=False))


def log_to_stderr(level: int = logging.INFO) -> None:
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def _first_sentence(boxed: str) -> str:
    """What a box of tyro's says, without the box."""
    lines = [re.sub(r"^[^\w'\"-]*-? |[^\w.'\"!?)]+$", "", line).strip("─-|+ ") for line in boxed.splitlines()]
    said = [line for line in lines if line]
    sentence = said[1] if len(said) > 1 else (said[0] if said else "the arguments are not understood")
    for wanted, theirs in NO_NUMBER.items():
        sentence = theirs.sub(rf"\1: {wanted} is needed", sentence)
    return sentence
