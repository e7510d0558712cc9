"""What the live view shows, on a terminal and elsewhere."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from gruppetto.cli.live import LiveView, _state
from gruppetto.launch.sight import Sight
from gruppetto.protocol import ProtocolSetting, SyncerCore
from gruppetto.protocol.messages import Hello
from gruppetto.protocol.units import LearnerId
from gruppetto.runtime.health import Observer, status_of

PROCESSES = {"syncer": {"pid": 1, "state": "running"}, "anna": {"pid": 2, "state": "killed (SIGKILL)"}}


def status() -> dict[str, Any]:
    """A real one, of a core that has met one learner."""
    core, seen = SyncerCore(ProtocolSetting(rounds=100), run_id="r", layout_hash="l"), Observer()
    core.rejected, core.clipped = {"late": 3}, {"norm": 2}
    core.step(0.0, Hello(learner=LearnerId("ben"), session="s", layout_hash="l"))
    seen.metrics[LearnerId("ben")] = {"loss": 2.5}
    return status_of(core, seen, 1.0)


def sights() -> list[Sight]:
    return [
        Sight(elapsed_s=0.0, stage="preparing the data"),
        Sight(elapsed_s=1.0, stage="starting", processes=PROCESSES),
        Sight(elapsed_s=2.0, stage="training", processes=PROCESSES, status=status(), losses=[(0, 5.426)]),
        Sight(elapsed_s=4.0, stage="training", processes=PROCESSES, status={**status(), "round": 20}),
        Sight(elapsed_s=4.5, stage="training", processes=PROCESSES, status={**status(), "round": 21}),
        Sight(elapsed_s=9.5, stage="training", processes=PROCESSES, status={**status(), "round": 40}),
    ]


def shown(*, terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=160, color_system=None)
    with LiveView("tour", 100, console) as view:
        for sight in sights():
            view.show(sight)
            if view._live is not None:
                view._live.refresh()
    return out.getvalue()


def test_a_run_of_several_shards_is_as_far_as_the_last_of_them() -> None:
    behind = {**status(), "round": 40, "by_shard": {"2": {"round": 10, "phase": "asking"}, "3": {"phase": "silent"}}}
    out = io.StringIO()
    with LiveView("tour", 100, Console(file=out, width=200)) as view:
        for elapsed_s, done in ((2.0, 0), (4.0, 20)):
            behind["by_shard"]["2"]["round"] = done
            view.show(Sight(elapsed_s=elapsed_s, stage=f"at {done}", processes=PROCESSES, status=behind))
        behind["by_shard"]["2"]["round"] = 100
        behind |= {"round": 100, "phase": "silent", "waiting_for": "the other shards to finish"}
        view.show(Sight(elapsed_s=6.0, stage="at the end", processes=PROCESSES, status=behind))
    assert "round 100/100 (shard 3: silent) · waiting for the other shards to finish · " in out.getvalue()
    # 20 rounds in 2 s, 80 to go.
    assert "round 40/100 (shard 2: 20, shard 3: silent) · 8.0 s left" in out.getvalue()


def test_a_terminal_gets_a_table() -> None:
    said = shown(terminal=True)
    for part in ("tour", "round 20/100", "loss 5.426", "ben", "joining", "2.500", "killed (SIGKILL)", "waiting for"):
        assert part in said, part
    for part in ("not merged: 3 late", "merged for less: 2 norm"):
        assert part in said, part
    # 20 rounds in 2 s, 80 to go.
    assert "8.0 s left" in said


def test_a_pipe_gets_a_line_at_each_stage_and_every_few_seconds() -> None:
    lines = shown(terminal=False).splitlines()
    assert [line.split(":")[0] for line in lines] == ["0.0 s", "1.0 s", "2.0 s", "9.5 s"]
    assert "ben joining 0 · not merged: 3 late · merged for less: 2 norm" in lines[2]
    assert "\x1b" not in "".join(lines)


def test_a_pipe_is_told_the_address_of_the_page_once_and_again_when_it_moves() -> None:
    out = io.StringIO()
    pages = ["", "http://127.0.0.1:1/dashboard/", "http://127.0.0.1:1/dashboard/", "http://[::1]:2/dashboard/"]
    with LiveView("tour", 100, Console(file=out, width=30, color_system=None)) as view:
        for t, page in enumerate(pages):
            view.show(Sight(elapsed_s=float(t), stage="training", status=status(), page=page))
    told = [line for line in out.getvalue().splitlines() if line.startswith("see it at ")]
    assert told == ["see it at http://127.0.0.1:1/dashboard/", "see it at http://[::1]:2/dashboard/"]


def test_a_terminal_shows_the_address_of_the_page_all_the_time() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=160, color_system=None)
    with LiveView("tour", 100, console) as view:
        for stands in (None, status()):
            view.show(Sight(stage="training", status=stands, page="http://h:1/dashboard/"))
            assert view._live is not None
            out.truncate(0)
            view._live.refresh()
            assert "see it at http://h:1/dashboard/" in out.getvalue()


def test_while_the_syncer_is_silent_nothing_old_is_said_to_be_waited_for() -> None:
    out = io.StringIO()
    with LiveView("tour", 100, Console(file=out, width=300, color_system=None)) as view:
        view.show(Sight(stage="training", status=status(), silent="restarting in 2 s"))
    assert "waiting for the syncer (restarting in 2 s); learners train on" in out.getvalue()
    assert status()["waiting_for"] not in out.getvalue()


@pytest.mark.parametrize(
    ("process", "syncer_says", "shown"),
    [
        ({"state": "running", "restarts": 0}, "live", "live"),
        ({"state": "restarting in 2 s", "restarts": 0}, "away", "restarting in 2 s"),
        ({"state": "running", "restarts": 1}, "away", "starting, 1 restart"),
        ({"state": "running", "restarts": 2}, "live", "live, 2 restarts"),
        ({"state": "failed (exit 1)", "restarts": 5}, "away", "failed (exit 1), 5 restarts"),
    ],
)
def test_a_learner_is_seen_to_die_and_to_come_back(process: dict[str, Any], syncer_says: str, shown: str) -> None:
    assert _state(Sight(processes={"ben": process}), "ben", {"state": syncer_says}) == shown


def test_a_run_that_stands_still_says_what_it_waits_for_instead_of_years() -> None:
    out = io.StringIO()
    alarm = {"t": 3.0, "kind": "quorum-short", "text": "round 21 waits.", "over_t": None}
    with LiveView("tour", 100, Console(file=out, width=300, color_system=None)) as view:
        for elapsed_s, round in ((0.0, 0), (5.0, 10), (10.0, 20), *((10.0 + 2 * i, 20) for i in range(1, 40))):
            stands = {**status(), "round": round, "waiting_for": "1 learner more", "alarms": [alarm]}
            view.show(Sight(elapsed_s=elapsed_s, stage="training", status=stands))
    lines = out.getvalue().splitlines()
    assert "40.0 s left" in lines[2] and "waiting for 1 learner more" not in lines[2]
    assert "waiting for 1 learner more" in lines[-1] and " left" not in lines[-1]
    assert "! quorum-short, for" in lines[-1] and "round 21 waits." in lines[-1]
