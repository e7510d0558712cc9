"""``gruppetto version``"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from gruppetto import __version__
from gruppetto.cli.flags import print_json, read_flags

__all__ = ["main"]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Say which version of Gruppetto this is, and what it runs with."""

    json: bool = False
    """One JSON object."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "version")
    found: dict[str, str | None] = {"gruppetto": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "numba", "aiohttp", "msgspec"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    if flags.json:
        print_json(found)
    else:
        print(", ".join(f"{name} {version or 'not installed'}" for name, version in found.items()))
    return 0
