"""Write docs/alarms.md from the table of alarms: when each holds, what is behind it, and what to do.

python tools/alarms_page.py            writes the page
python tools/alarms_page.py --check    exits with 1 if the page is not what would be written
"""

from __future__ import annotations

import sys

import written

from gruppetto.protocol.alarm_table import ALARMS

INTRO = """\
# Alarms

What a syncer raises when somebody should look. An alarm is said once, with its figures, and withdrawn when it no longer
holds: `gruppetto status` and the live view show those that hold, since when, and those that are over since a few
minutes; the log of the syncer has both moments, and so have the trace and the report.

This page is written by `python tools/alarms_page.py` from the source; a test keeps it true.
"""


def page() -> str:
    parts = [INTRO]
    for kind, row in ALARMS.items():
        lines = [f"\n## {kind.value}\n"]
        lines += [f"* **{'Holds' if row.lasts else 'Happened'}**: {row.holds}"]
        lines += [f"* **Behind it**: {row.cause}", f"* **What to do**: {row.action}"]
        parts.append("\n".join(lines) + "\n")
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(written.main({"alarms.md": page}))
