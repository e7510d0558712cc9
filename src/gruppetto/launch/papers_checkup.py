"""Whether the papers in a directory will do: what expires, and which secrets others could read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gruppetto.errors import StateError
from gruppetto.launch.finding import Finding
from gruppetto.runtime.security.expiry import WARN_DAYS, days_left
from gruppetto.runtime.security.exposed import exposure

__all__ = ["look_at_papers"]


def look_at_papers(directory: Path, *, now: float) -> Iterator[Finding]:
    """One finding for every certificate that expires soon or cannot be read, and for every secret that others could
    read; else one that all is well."""
    soonest, wrong = float("inf"), False
    for path in sorted(directory.glob("*.pem")):
        try:
            days = days_left(path, now=now)
        except StateError as error:
            wrong = True
            yield Finding(subject="papers", level="wrong", text=str(error))
            continue
        soonest = min(soonest, days)
        if days < WARN_DAYS:
            wrong = True
            text = f"{path} {f'expires in {days:.1f} days' if days > 0 else 'has expired'}"
            fix = f"say gruppetto certs renew --dir {directory} where the authority's key lies"
            yield Finding(subject="papers", level="warning" if days > 0 else "wrong", text=text, fix=fix)
    for path in sorted([*directory.glob("*.key"), *directory.glob("*.token")]):
        if text := exposure(path):
            wrong = True
            yield Finding(subject="papers", level="wrong", text=text, fix=f"say chmod 600 {path}")
    if soonest == float("inf"):
        yield Finding(
            subject="papers", level="wrong", text=f"{directory} holds no certificate", fix="say gruppetto certs make"
        )
    elif not wrong:
        yield Finding(subject="papers", level="ok", text=f"{directory}: nothing expires before {soonest:.0f} days")
