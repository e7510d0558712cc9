"""``report.html``: one file that opens anywhere, without a network, in light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from gruppetto.protocol.admission import ADVICE, CLIP_ADVICE
from gruppetto.report.alarms import alarm_span
from gruppetto.report.shards import HEAD, rows_of
from gruppetto.report.simulated import amount_of, of_what_world, step_of
from gruppetto.report.story import LOOK_AT, as_bytes, as_duration

__all__ = ["page"]

STYLE = """
:root { color-scheme: light dark; --ink: #1b2530; --soft: #5d6b7a; --line: #d8dee5; --card: #f5f7f9; --paper: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e9ee; --soft: #9aa7b4; --line: #36414c; --card: #1d252d; --paper: #12181e; }
}
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 56rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.soft { color: var(--soft); } .story { font-size: 1.05rem; } .bad { color: #d55e00; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .7rem; margin: 1.4rem 0; }
.card { background: var(--card); border-radius: .5rem; padding: .7rem .9rem; }
.card b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: .85rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, .words th:last-child, .words td:last-child { text-align: left; }
th { color: var(--soft); font-weight: 500; }
figure { margin: 1.6rem 0; } figure svg { width: 100%; height: auto; color: var(--ink); }
figcaption { color: var(--soft); font-size: .9rem; }
pre { background: var(--card); padding: .9rem; border-radius: .5rem; overflow-x: auto; font-size: .85rem; }
pre.wrap { white-space: pre-wrap; overflow-wrap: anywhere; }
@media print {
  :root { color-scheme: light; --ink: #000; --soft: #444; --line: #bbb; --card: #fff; --paper: #fff; }
  @page { margin: 15mm; } body { max-width: none; padding: 0; font-size: 10.5pt; }
  .card { border: 1px solid var(--line); } pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  h2, figcaption { break-after: avoid; } figure, .card, tr { break-inside: avoid; } a { color: inherit; }
}
"""

CAPTIONS = {
    "chaos": "What went wrong, to whom, and who rode meanwhile. Blue: steps. Orange: a process starts. x: a fault.",
    "loss-by-round": "Loss by round: held out, of the global model, and of the learners' own batches, as far as known.",
    "loss-by-tokens": "The same by tokens that all learners together trained on.",
    "loss-by-time": "Held-out loss by virtual time, beside that of rivals under the same faults.",
    "participation": "Who rode when. A gap is a learner that was away; the others rode on.",
    "round-anatomy": "What a round is made of, on average. Learners train meanwhile.",
    "bytes": "What travelled, against data parallel for the same steps (ring all-reduce of float32 gradients).",
}


def page(
    report: Mapping[str, Any],
    *,
    title: str,
    story: str,
    pictures: Mapping[str, str],
    run_toml: str,
    sample: str,
) -> str:
    """The whole page. ``pictures`` maps a figure's name to its SVG."""
    kind = ", ".join(filter(None, (str(report["mode"]), of_what_world(report), f"{report['rounds']} rounds")))
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(kind)}</p>',
        '<div class="story">',
        *(f"<p>{escape(line)}</p>" for line in story.splitlines() if not line.startswith(LOOK_AT)),
        "</div>",
        _cards(report),
        *(
            f"<figure>{svg}<figcaption>{escape(CAPTIONS.get(name, name))}</figcaption></figure>"
            for name, svg in pictures.items()
        ),
        "<h2>Learners</h2>",
        _learners(report["learners"], step_of(report), amount_of(report)),
        *(["<h2>Shards</h2>", _table(HEAD, rows_of(report["shards"]))] if report.get("shards") else []),
        *_lists(report),
    ]
    if sample:
        parts += ["<h2>A sample of the global model</h2>", f'<pre class="wrap">{escape(sample)}</pre>']
    if run_toml:
        parts.append(f"<details><summary>run.toml</summary><pre>{escape(run_toml)}</pre></details>")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n'
        f"<body>\n{chr(10).join(parts)}\n</body></html>\n"
    )


def _cards(report: Mapping[str, Any]) -> str:
    evaluated, moved, tokens = report["eval"], report["bytes"], report["tokens"]
    told, virtual = report.get("simulated"), "virtual " if report.get("world", "real") != "real" else ""
    cards = [
        (as_duration(report["training_s"]), f"of {virtual}training"),
        (_number(report["goodput"], ".1%"), "goodput" if told is None else "of learners' time in steps"),
        (_number(report["uptime"], ".1%"), "uptime"),
        (_number(report["participation"], ".1%"), "participation"),
        (f"{tokens['consumed']:,}", amount_of(report)),
        (_number(tokens["merged"] / tokens["consumed"] if tokens["consumed"] else None, ".1%"), "of them merged"),
    ]
    if told is None:
        loss = (_number(evaluated["loss"], ".3f"), "held-out loss, nats per token")
        cards = [loss, (_number(evaluated["perplexity"], ".2f"), "perplexity"), *cards]
    else:
        cards.insert(1, (_number(told["goodput"], ".1%"), "goodput: of the chips' time in steps"))
    if moved["up"] is not None:
        cards.append((as_bytes(moved["up"] + moved["down"]), "travelled"))
    inside = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(text)}</span></div>' for value, text in cards
    )
    return f'<div class="cards">{inside}</div>'


def _learners(learners: Mapping[str, Mapping[str, Any]], step: str, amount: str) -> str:
    rows = [
        (
            name,
            f"{each['steps']:,}",
            _number(each["step_s"], ".3f"),
            f"{each['tokens']:,}",
            f"{each['merged_rounds']:,}",
            str(each.get("lives", 1)),
            str(each.get("state") or "–"),
        )
        for name, each in learners.items()
    ]
    return _table(("", "steps", f"s per {step}", amount, "rounds merged", "lives", "state"), rows)


def _lists(report: Mapping[str, Any]) -> list[str]:
    parts = []
    if report.get("verdict"):
        judged = [(c["name"], c["state"], c["text"]) for c in report["verdict"]["checks"]]
        parts += ["<h2>The verdict</h2>", _table(("", "", "found"), judged, words=True)]
    if report["rejected"]:
        refused = [(reason, f"{count:,}", _advice(ADVICE, reason)) for reason, count in report["rejected"].items()]
        parts += [
            "<h2>Contributions that were not merged</h2>",
            _table(("reason", "count", "means"), refused, words=True),
        ]
    if report.get("clipped"):
        clipped = [(cause, f"{count:,}", _advice(CLIP_ADVICE, cause)) for cause, count in report["clipped"].items()]
        parts += ["<h2>Contributions that were merged for less than they hold</h2>"]
        parts.append(_table(("cause", "count", "means"), clipped, words=True))
    if report["recoveries"]:
        back = [
            (
                r["learner"],
                r["cause"],
                r["source"],
                _number(r["seconds"], ".1f"),
                _number(r.get("search_s"), ".1f"),
                as_bytes(r["payload_bytes"]) if r.get("payload_bytes") else "–",
            )
            for r in report["recoveries"]
        ]
        head = ("learner", "cause", "state from", "seconds until merged", "of them the search", "from a peer")
        parts += ["<h2>Recoveries</h2>", _table(head, back)]
    if report["alarms"]:
        parts.append("<h2>Alarms</h2>")
        parts += [f'<p class="bad">{alarm_span(a)}: {escape(a["text"])}</p>' for a in report["alarms"]]
    if report.get("checks"):
        checks = [(name, str(found)) for name, found in report["checks"].items()]
        parts += ["<h2>Checks of the trace</h2>", _table(("", "found"), checks, words=True)]
    return parts


def _advice(texts: Mapping[Any, str], name: str) -> str:
    """What a rejection or a clipping means; nothing for a name that is not known here."""
    return {str(key): text for key, text in texts.items()}.get(name, "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, words: bool = False) -> str:
    """Numbers are read from the right; the last column may hold ``words``."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    opening = '<table class="words">' if words else "<table>"
    return f"{opening}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
