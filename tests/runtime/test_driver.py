from __future__ import annotations

from gruppetto.protocol import ProtocolSetting, SyncerCore
from gruppetto.protocol.actions import Send
from gruppetto.protocol.events import Tick
from gruppetto.protocol.messages import Heartbeat, Hello, Welcome
from gruppetto.runtime.clock import ManualClock
from gruppetto.runtime.driver import Driver
from gruppetto.trace.log import TraceWriter, read_trace


def test_events_fed_while_performing_wait_their_turn_and_the_tape_says_so(tmp_path):
    core = SyncerCore(ProtocolSetting(), run_id="r", layout_hash="x")
    performed = []

    def perform(action):
        performed.append(type(action).__name__)
        if isinstance(action, Send) and isinstance(action.message, Welcome):
            driver.feed(Heartbeat(learner="a", incarnation=1))
            performed.append("fed")

    clock = ManualClock()
    with TraceWriter(tmp_path / "trace.jsonl", {}) as trace:
        driver = Driver(core, who="syncer", clock=clock, trace=trace, perform=perform)
        clock.advance(1.0)
        driver.feed(Hello(learner="a", session="s", layout_hash="x"))
        assert driver.now == 1.0 and not driver.busy
        driver.feed(Tick())
    assert performed == ["MemberChanged", "Send", "fed"]
    tape = [(r.kind, r.name) for r in list(read_trace(tmp_path / "trace.jsonl"))[1:]]
    assert tape == [("in", "Hello"), ("out", "MemberChanged"), ("out", "Send"), ("in", "Heartbeat"), ("in", "Tick")]
