"""Numbers as people write them: 1.2M chips, a year, 400 ms."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from gruppetto.errors import SettingError

__all__ = ["as_count", "as_gbit_s", "as_gib", "as_number", "as_seconds", "as_years", "counted", "timed"]

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_SECONDS = {
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 7 * 86_400.0,
    "y": 365 * 86_400.0,
}
_BITS = {"": 1e9, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_GIB = {"": 1.0, "mib": 2.0**-10, "gib": 1.0, "tib": 2.0**10, "mb": 1e6 / 2**30, "gb": 1e9 / 2**30, "tb": 1e12 / 2**30}
_RATE = re.compile(r"(.*?)\s*([kmgt]?)(bits?|[bB])?(?:/s|ps)?", re.IGNORECASE)
_NUMBER = re.compile(r"([+-]?(?:\d{1,3}(?:[,_]\d{3})+|\d+)?(?:\.\d*)?(?:e[+-]?\d+)?)\s*([a-zµ]*)", re.IGNORECASE)
_WORDS = {"never": math.inf, "inf": math.inf, "infinity": math.inf}


def as_count(text: str, *, where: str) -> int:
    """A whole number of things.

    >>> [as_count(text, where="--chips") for text in ("150k", "1.2M", "1,200,000", "2e6")]
    [150000, 1200000, 1200000, 2000000]
    >>> as_count("-3", where="--chips")
    Traceback (most recent call last):
    ...
    gruppetto.errors.SettingError: --chips: is '-3'; use a whole number of 1 or more, such as 8, 150k or 1.2M
    """
    value = _read(text, _SCALES, default="")
    if value is None or not 1 <= value < 2**63 or value != int(value):
        fix = "use a whole number of 1 or more, such as 8, 150k or 1.2M"
        raise SettingError(f"is {text!r}", where=where, fix=fix)
    return int(value)


def as_seconds(text: str, *, where: str, zero: bool = False, unit: str = "s", never: bool = True) -> float:
    """A duration in seconds; a bare number is in ``unit``. "never" is infinite, where that may ``never`` end.

    >>> [as_seconds(text, where="--step") for text in ("400ms", "1.5", "2 min", "1y", "never")]
    [0.4, 1.5, 120.0, 31536000.0, inf]
    """
    value = _WORDS.get(text.strip().lower())
    if value is None:
        value = _read(text, _SECONDS, default=unit)
    elif not never:
        value = None
    if value is None or math.isnan(value) or value < 0 or (value == 0 and not zero):
        fix = f"use a duration of {'0 or more' if zero else 'more than 0'}, such as 400ms, 1.5s, 20min, 30d or 1y"
        raise SettingError(f"is {text!r}", where=where, fix=fix)
    return value


def as_years(text: str, *, where: str) -> float:
    """A duration in seconds, of which a bare number is in years.

    >>> as_years("1", where="--mtbi-years") == as_years("365d", where="--mtbi-years")
    True
    """
    return as_seconds(text, where=where, unit="y")


def as_number(text: str, *, where: str, least: float = 0.0) -> float:
    """A plain number, or a share with a percent sign.

    >>> as_number("18%", where="--spread")
    0.18
    """
    bare = text.strip()
    percent = bare.endswith("%")
    value = _read(bare[:-1] if percent else bare, {"": 1.0}, default="")
    if value is None or not math.isfinite(value) or value < least:
        raise SettingError(f"is {text!r}", where=where, fix=f"use a number of {least:g} or more, such as 0.18 or 18%")
    return value / 100 if percent else value


def as_gbit_s(text: str, *, where: str) -> float:
    """A bandwidth in Gbit/s. A capital B is bytes.

    >>> [as_gbit_s(text, where="--gbit-s") for text in ("10", "400 Mbit/s", "1Tbps", "1.25GB/s", "10Gb")]
    [10.0, 0.4, 1000.0, 10.0, 10.0]
    >>> as_gbit_s("wide", where="--gbit-s")
    Traceback (most recent call last):
    ...
    gruppetto.errors.SettingError: --gbit-s: is 'wide'; use a bandwidth, such as 10, 400Mbit/s or 1.25GB/s
    """
    match = _RATE.fullmatch(text.strip())
    value = _read(match[1], {"": 1.0}, default="") if match else None
    if match is None or value is None or not 0 < value < math.inf:
        fix = "use a bandwidth, such as 10, 400Mbit/s or 1.25GB/s"
        raise SettingError(f"is {text!r}", where=where, fix=fix)
    return value * _BITS[match[2].lower()] * (8 if match[3] == "B" else 1) / 1e9


def as_gib(text: str, *, where: str) -> float:
    """An amount of memory in GiB.

    >>> as_gib("64", where="--syncer-gib"), as_gib("1.5TiB", where="--syncer-gib")
    (64.0, 1536.0)
    """
    value = _read(text, _GIB, default="")
    if value is None or not 0 < value < math.inf:
        raise SettingError(f"is {text!r}", where=where, fix="use an amount of more than 0, such as 64, 64GiB or 1TiB")
    return value


def timed(value_s: float) -> str:
    """A duration as people write it.

    >>> [timed(s) for s in (0.0004, 0.25, 1.5, 90, 7200, 86_400 * 400, math.inf)]
    ['0.4 ms', '250 ms', '1.5 s', '90 s', '2 h', '1.1 y', 'never']
    """
    if math.isinf(value_s):
        return "never"
    for unit, size, until in (("ms", 1e-3, 1.0), ("s", 1.0, 600.0), ("min", 60.0, 7200.0), ("h", 3600.0, 2 * 86_400.0)):
        if value_s < until:
            return f"{value_s / size:.3g} {unit}"
    return f"{value_s / 86_400:.3g} d" if value_s < 200 * 86_400 else f"{value_s / (365 * 86_400):.2g} y"


def counted(value: int) -> str:
    """A count as people write it.

    >>> [counted(n) for n in (8, 150_000, 1_200_000, 1_234_567, 70_000_000_000)]
    ['8', '150k', '1.2M', '1,234,567', '70B']
    """
    for unit, size in (("B", 1_000_000_000), ("M", 1_000_000), ("k", 1_000)):
        if value >= size and value % (size // 10) == 0:
            return f"{value // size}{f'.{tenths}' if (tenths := value % size * 10 // size) else ''}{unit}"
    return f"{value:,}"


def _read(text: str, units: Mapping[str, float], *, default: str) -> float | None:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or not any(c.isdigit() for c in match[1].lower().partition("e")[0]):
        return None
    unit = match[2].lower() or default
    if unit not in units:
        return None
    number = float(match[1].replace(",", "").replace("_", ""))
    written_zero = not any(c.isdecimal() and int(c) for c in match[1].lower().partition("e")[0])
    if math.isinf(number) or (number == 0) != written_zero:
        return None  # beyond what a number can be, and neither never nor nothing
    return number * units[unit]
