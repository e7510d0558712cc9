"""A run while it goes on: a table that renews itself on a terminal, a line every few seconds elsewhere. On stderr."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gruppetto.cli.status import gate_lines, standby_lines
from gruppetto.launch.sight import Sight
from gruppetto.protocol.grace import ema
from gruppetto.report.alarms import alarm_lines, holds
from gruppetto.report.story import as_bytes, as_duration

__all__ = ["LiveView"]

LINE_EVERY_S = 5.0
OVER_FOR_S = 60.0
"""An alarm that is over stays in sight for so long."""
SMOOTHING = 0.15
STALLED_S, STALLED_ROUNDS = 5.0, 8.0
"""A run is stalled when no round has closed for the first, and for so many times as long as one took."""
COLOURS = {"live": "green", "joining": "yellow", "away": "red", "left": "dim", "running": "yellow", "done": "dim"}


class LiveView:
    """Shows one :class:`Sight` after another; what it is given never changes the run."""

    def __init__(self, title: str, rounds: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._title, self._rounds = title, rounds
        self._live = (
            Live(console=self._console, refresh_per_second=4, transient=True) if self._console.is_terminal else None
        )
        self._said_at = -LINE_EVERY_S
        self._said_stage = self._said_page = ""
        self._pace = _Pace()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def show(self, sight: Sight) -> None:
        self._pace.look(sight)
        if self._live is not None:
            self._live.update(self._picture(sight))
            return
        if sight.page != self._said_page:
            self._said_page = sight.page
            self._console.print(f"see it at {sight.page}", highlight=False, markup=False, soft_wrap=True)
        if sight.stage != self._said_stage or sight.elapsed_s - self._said_at >= LINE_EVERY_S:
            self._said_stage, self._said_at = sight.stage, sight.elapsed_s
            self._console.print(self._line(sight), highlight=False, soft_wrap=True)

    # ── a terminal ───────────────────────────────────────────────────────────────────────────────────────────────

    def _picture(self, sight: Sight) -> RenderableType:
        status = sight.status
        head = Text.assemble((self._title, "bold"), f"  {sight.stage}  ", (as_duration(sight.elapsed_s), "dim"))
        if status is None:
            return Group(head, _processes(sight), *_page(sight))
        # In a grid of its own: a bare bar ends without a new line, and the next text would be cut off beside it.
        bar = Table.grid()
        bar.add_row(ProgressBar(total=self._rounds, completed=_made(status), width=40))
        return Group(
            head,
            bar,
            Text(self._counts(sight, status)),
            _learners(sight, status),
            *(Text(line, style="yellow", no_wrap=True, overflow="ellipsis") for line in gate_lines(status)),
            *(Text(line, style="dim") for line in standby_lines(sight.standby)),
            Text(f"waiting for {_awaited(sight, status)}", style="dim", no_wrap=True, overflow="ellipsis"),
            *_alarms(status),
            *_page(sight),
        )

    def _counts(self, sight: Sight, status: Mapping[str, Any]) -> str:
        grace, moved = status["grace"], status["bytes"]
        parts = [
            f"round {status['round']}/{self._rounds}{_behind(status)}",
            self._left(sight, status),
            f"loss {sight.losses[-1][1]:.3f}" if sight.losses else "loss –",
            f"{self._pace.tokens_per_s:,.0f} tokens/s",
            f"quorum {len(status['quorum']['participants'])}",
            f"grace {1000 * (grace['spent_s'] or 0):.0f} of {1000 * (grace['window_s'] or 0):.0f} ms",
            f"{as_bytes(moved['up'])} up, {as_bytes(moved['down'])} down",
        ]
        return " · ".join(parts)

    def _left(self, sight: Sight, status: Mapping[str, Any]) -> str:
        """How long it will take at the pace of the last rounds; what is waited for, while none closes, or when a shard
        that does not answer is all that is left."""
        rounds = self._rounds - _made(status)
        if (self._pace.stalled or sight.silent) if rounds else status["phase"] != "finished":
            return f"waiting for {_awaited(sight, status)}"
        left_s = self._pace.left_s(rounds)
        return "– left" if left_s is None else f"{as_duration(left_s)} left"

    # ── a file or a pipe ─────────────────────────────────────────────────────────────────────────────────────────

    def _line(self, sight: Sight) -> str:
        status = sight.status
        if status is None:
            return f"{as_duration(sight.elapsed_s)}: {sight.stage}"
        states = [f"{name} {_state(sight, name, each)} {each['clock']}" for name, each in status["learners"].items()]
        who = f" · {', '.join(states)}" if states else ""
        gate = "".join(f" · {line}" for line in gate_lines(status))
        standby = "".join(f" · {line}" for line in standby_lines(sight.standby))
        alarms = "".join(f" · {line}" for line in alarm_lines(filter(holds, status["alarms"]), status["uptime_s"]))
        return (
            f"{as_duration(sight.elapsed_s)}: {sight.stage}, {self._counts(sight, status)}{who}{standby}{gate}{alarms}"
        )


class _Pace:
    """Smoothed rounds and tokens per second."""

    def __init__(self) -> None:
        self.tokens_per_s = 0.0
        self._rounds_per_s: float | None = None
        self._tokens_per_s: float | None = None
        self._last: tuple[float, int, int] | None = None
        self._advanced_at: float | None = None
        self.stalled = False
        """For many times as long as a round takes none has closed."""

    def look(self, sight: Sight) -> None:
        if sight.status is None:
            return
        now = (sight.elapsed_s, _made(sight.status), sight.status["tokens"]["consumed"])
        if self._last is None:
            self._last = now
            return
        if now[1] > self._last[1] or self._advanced_at is None:
            self._advanced_at = now[0]
        round_s = 1 / self._rounds_per_s if self._rounds_per_s else 0.0
        self.stalled = now[0] - self._advanced_at > max(STALLED_S, STALLED_ROUNDS * round_s)
        passed_s = now[0] - self._last[0]
        if passed_s < 1.0:
            return
        if self.stalled:
            self._last = now  # how long nothing happens says nothing about the rounds after it
            return
        self._rounds_per_s = ema(self._rounds_per_s, (now[1] - self._last[1]) / passed_s, SMOOTHING)
        self._tokens_per_s = ema(self._tokens_per_s, (now[2] - self._last[2]) / passed_s, SMOOTHING)
        self.tokens_per_s = self._tokens_per_s
        self._last = now

    def left_s(self, rounds: int) -> float | None:
        return rounds / self._rounds_per_s if self._rounds_per_s else None


def _made(status: Mapping[str, Any]) -> int:
    """Rounds that all shards have made, as far as they answer; there may be just one."""
    return int(min(each["round"] for each in (status, *status.get("by_shard", {}).values()) if "round" in each))


def _behind(status: Mapping[str, Any]) -> str:
    """The other shards that are not where the first one is.

    >>> _behind({"round": 9, "by_shard": {"2": {"round": 9}, "3": {"round": 7}, "4": {"phase": "silent"}}})
    ' (shard 3: 7, shard 4: silent)'
    """
    others = status.get("by_shard", {}).items()
    said = [f"shard {k}: {each.get('round', 'silent')}" for k, each in others if each.get("round") != status["round"]]
    return f" ({', '.join(said)})" if said else ""


def _awaited(sight: Sight, status: Mapping[str, Any]) -> str:
    """What the run waits for: what the syncer says, or the syncer."""
    return f"the syncer ({sight.silent}); learners train on" if sight.silent else str(status["waiting_for"])


def _page(sight: Sight) -> list[Text]:
    return [Text(f"see it at {sight.page}", style="dim", no_wrap=True, overflow="fold")] if sight.page else []


def _alarms(status: Mapping[str, Any]) -> list[Text]:
    """Those that hold, and those that were withdrawn just now."""
    now = status["uptime_s"]
    holding = [alarm for alarm in status["alarms"] if holds(alarm)]
    recent = [alarm for alarm in status["alarms"] if not holds(alarm) and now - alarm["over_t"] <= OVER_FOR_S]
    return [
        *(Text(line, style="red") for line in alarm_lines(holding, now)),
        *(Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in alarm_lines(recent[-2:], now)),
    ]


def _learners(sight: Sight, status: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("learner", "state", "step", "clock", "last merged", "merged", "loss"):
        table.add_column(column, justify="left" if column in ("learner", "state") else "right", header_style="dim")
    names = sorted({*status["learners"], *sight.processes} - {"syncer"})
    for name in names:
        each = status["learners"].get(name, {})
        state = _state(sight, name, each)
        loss = each.get("metrics", {}).get("loss", "–")
        table.add_row(
            name,
            Text(state, style=COLOURS.get(state.partition(",")[0], "red" if _is_bad(state) else "")),
            f"{1000 * each['step_s']:.0f} ms" if each.get("step_s") else "–",
            str(each.get("clock", "–")),
            str(each.get("last_merged_round") or "–"),
            str(each.get("merged_rounds", "–")),
            Text("not finite", style="red") if loss is None else loss if isinstance(loss, str) else f"{loss:.3f}",
        )
    return table


def _state(sight: Sight, name: str, each: Mapping[str, Any]) -> str:
    """What the syncer says of a learner, or its process if that is not well; and how often it was started again."""
    process = sight.processes.get(name, {})
    own = process.get("state", "running")
    state = str(each.get("state", "starting")) if own in ("running", "done") else str(own)
    count = process.get("restarts", 0)
    if not count:
        return state
    state = "starting" if state == "away" and own == "running" else state
    return f"{state}, {count} restart{'s' if count > 1 else ''}"


def _is_bad(state: str) -> bool:
    return any(word in state for word in ("killed", "failed", "restarting"))


def _processes(sight: Sight) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, process in sight.processes.items():
        table.add_row(name, Text("starting" if process["state"] == "running" else process["state"], style="yellow"))
    return table
