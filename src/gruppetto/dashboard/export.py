"""What the page shows, as a table to keep."""

from __future__ import annotations

import csv
import io

from gruppetto.dashboard.picture import Picture
from gruppetto.dashboard.window import MAX_SLOTS, series_of

__all__ = ["COLUMNS", "as_csv"]

COLUMNS = ("series", "from_s", "to_s", "count", "low", "high", "mean", "sum")
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_csv(picture: Picture, start: float, end: float) -> str:
    """One row for each series and slot of [start, end]; the series of a learner are called NAME/WHAT."""
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(COLUMNS)
    for name, series in series_of(picture).items():
        found = series.window(start, end, most=MAX_SLOTS)
        # A spreadsheet would take such a name for a formula.
        shown = f"'{name}" if name.startswith(FORMULA) else name
        for t, count, low, high, total in zip(
            found.start, found.count, found.low, found.high, found.total, strict=True
        ):
            table.writerow(
                (shown, f"{t:.9g}", f"{t + found.width_s:.9g}", int(count), *(f"{v:.9g}" for v in (low, high)),
                 f"{total / max(count, 1):.9g}", f"{total:.9g}")
            )  # fmt: skip
    return out.getvalue()
