"""A value that is refused is called what its author called it: the option on the command line, the key in a file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gruppetto.errors import SettingError

__all__ = ["as_typed", "said_in"]

COMMAND_LINE = "command line: "


@contextmanager
def as_typed(
    options: Mapping[str, str],
    *,
    said: Collection[str] = (),
    file: Path | None = None,
    in_file: Collection[str] = (),
    tables_of: Path | None = None,
) -> Iterator[None]:
    """Raise a :class:`SettingError` of the block with another ``where``.

    ``options`` leads from where the house says a value is to the option that sets it. An option that was not ``said``
    on the command line, but ``in_file``, is called by its key in ``file``; ``tables_of``: what is no option is a key of
    a table of that file.

    >>> with as_typed({"pace.jitter": "--jitter"}):
    ...     raise SettingError("is 3", where="pace.jitter", fix="use less")
    Traceback (most recent call last):
    ...
    gruppetto.errors.SettingError: --jitter: is 3; use less
    >>> with as_typed({}, file=Path("DAY.toml"), in_file=["--step-s"]):
    ...     raise SettingError("is '0'", where="--step-s", fix="use more")
    Traceback (most recent call last):
    ...
    gruppetto.errors.SettingError: DAY.toml: step_s: is '0'; use more
    """
    try:
        yield
    except SettingError as error:
        where = options.get(error.where, error.where)
        if where.startswith(COMMAND_LINE):
            setting = where.removeprefix(COMMAND_LINE)
            where = options.get(setting, f"--set {setting}")
        option, more = where.partition(" ")[0].partition(":")[0], where.partition(":")[2]
        if file is not None and option in in_file and option not in said:
            where = f"{file}: {option.removeprefix('--').replace('-', '_')}" + (f":{more}" if more else "")
        if tables_of is not None and not where.startswith(("--", COMMAND_LINE, str(tables_of))):
            where = f"{tables_of}: {where}"
        raise SettingError(error.what, where=where, fix=error.fix) from error


def said_in(arguments: Collection[str]) -> set[str]:
    """The options among them.

    >>> sorted(said_in(["--learners=2", "--step-s", "1", "DAY.toml"]))
    ['--learners', '--step-s']
    """
    return {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
