"""Write docs/metrics.md from the table of metrics: names, units, labels and meaning.

python tools/metrics_page.py            writes the page
python tools/metrics_page.py --check    exits with 1 if the page is not what would be written
"""

from __future__ import annotations

import sys

import written

from gruppetto.dashboard.metrics import METRICS

INTRO = """\
# Metrics

`GET /metrics` at a syncer is text for Prometheus. Whoever needs the token for everything else needs it here too, as
`authorization` in a scrape configuration. [A dashboard for Grafana](../deploy/grafana/gruppetto.json) is made of them.
A counter begins at 0 in every life of the syncer unless its text says otherwise; what is not known yet is left out.

| metric | kind | unit | labels | |
|---|---|---|---|---|
"""
END = """
This page is written by `python tools/metrics_page.py` from the source; a test keeps it true.
"""


def page() -> str:
    rows = []
    for m in METRICS:
        labels = ", ".join(f"`{label}`" for label in m.labels) or "–"
        rows.append(f"| `{m.name}` | {m.kind} | {m.unit or '–'} | {labels} | {m.help} |")
    return INTRO + "\n".join(rows) + "\n" + END


if __name__ == "__main__":
    sys.exit(written.main({"metrics.md": page}))
