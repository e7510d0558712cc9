"""Durations and amounts of bytes as people say them."""

from __future__ import annotations

__all__ = ["as_amount", "as_bytes", "as_duration"]


def as_duration(seconds: float | None) -> str:
    """A stretch of time as people say it, in two units at most.

    >>> as_duration(7.25), as_duration(125.0), as_duration(7325.0), as_duration(2e6)
    ('7.2 s', '2 min 5 s', '2 h 2 min', '23.1 days')
    """
    if seconds is None:
        return "an unknown time"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes / 1440:.1f} days"


def as_bytes(count: float) -> str:
    """An amount of data in decimal units.

    >>> as_bytes(999), as_bytes(1_234_567), as_bytes(5e12)
    ('999 B', '1.23 MB', '5.00 TB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def as_amount(count: int) -> str:
    """A number of things, with a letter for thousands, millions and billions.

    >>> as_amount(8), as_amount(37_500), as_amount(150_000), as_amount(1_200_000)
    ('8', '37.5k', '150k', '1.2M')
    """
    for unit, size in (("", 1.0), ("k", 1e3), ("M", 1e6)):
        if count < 1000 * size:
            return f"{count / size:.4g}{unit}"
    return f"{count / 1e9:.4g}B"
