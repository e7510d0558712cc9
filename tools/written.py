"""What every tool does that writes a part of the documentation: write it, or with --check say whether it is fresh."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["DOCS", "main"]

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main(parts: Mapping[str, Callable[[], str]]) -> int:
    """Write each part, by its name under docs/. With --check: 1 if one of them is not what would be written."""
    stale = []
    for name, make in parts.items():
        place, wanted = DOCS / name, make()
        if "--check" not in sys.argv:
            place.write_text(wanted, encoding="utf-8")
        elif not place.exists() or place.read_text(encoding="utf-8") != wanted:
            stale.append(name)
    if stale:
        print(f"not what would be written: {', '.join(stale)}", file=sys.stderr)
    return int(bool(stale))
