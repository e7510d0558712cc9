"""What is written to a trace comes back exactly, and what is no trace is refused with its line."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppetto.errors import DataError, StateError
from gruppetto.protocol.actions import Checkpoint, Persist, Send
from gruppetto.protocol.events import Persisted, Tick
from gruppetto.protocol.ledger import Ledger
from gruppetto.protocol.messages import Progress, Refusal, RefusalReason
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.units import Epoch, Incarnation, LearnerId, Round, Version
from gruppetto.trace.log import Header, Record, TraceWriter, read_trace
from gruppetto.trace.schema import PROTOCOL_TYPES, data_of, encode_line, value_of

st.register_type_strategy(Ledger, st.just(Ledger(num_fragments=1)))
VALUES = [kind for kind in PROTOCOL_TYPES.values() if kind not in (Persist, Checkpoint)]


def same(a: Any, b: Any) -> bool:
    """Equal in every bit: NaN is NaN, and 0.0 is not -0.0."""
    if is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@settings(deadline=None)
@given(value=st.sampled_from(VALUES).flatmap(st.from_type))
def test_every_protocol_value_comes_back_bit_for_bit(value: Any) -> None:
    line = encode_line({"t": 0.0, "who": "x", "in": type(value).__name__, "data": data_of(value)})
    assert line.count(b"\n") == 1
    assert same(value_of(type(value).__name__, msgspec.json.decode(line)["data"]), value)


def test_every_protocol_type_is_tried_above() -> None:
    assert len(VALUES) >= 39
    assert Send in VALUES


def progress(step_s: float) -> Progress:
    return Progress(
        learner=LearnerId("a"),
        incarnation=Incarnation(1),
        epoch=Epoch(1),
        clock=1,
        step_s=step_s,
        steps=1,
        tokens=1,
        cursor=1,
    )


def test_a_persist_keeps_its_round_and_a_digest_of_its_state() -> None:
    def state(*versions: int) -> SyncerState:
        return SyncerState(
            run_id="r",
            layout_hash="l",
            epoch=Epoch(1),
            round=Round(7),
            versions=tuple(map(Version, versions)),
            members=(),
            cursors=(),
            ledger=Ledger(num_fragments=2),
        )

    one, other = (data_of(Persist(round=Round(7), fragments=(), state=state(7, v))) for v in (5, 6))
    assert one["state"]["round"] == 7  # type: ignore[index]
    assert one["state"]["digest"] != other["state"]["digest"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("Rumour", {}, "a 'Rumour' cannot be read back"),
        ("Persist", {}, "a 'Persist' cannot be read back"),
        ("Persisted", {"round": "soon"}, "is no Persisted: Expected `int`"),
        ("Persisted", {}, "is no Persisted: .* missing required field `round`"),
        ("Send", {"to": "a"}, "is no Send: Expected `str`"),
        ("Send", {"to": "a", "session": "s", "Rumour": {}}, "a 'Rumour' cannot be read back"),
        ("Send", {"to": "a", "session": "s"}, "is no Send: not enough values"),
    ],
)
def test_what_the_protocol_does_not_have_is_refused(name: str, data: dict[str, object], says: str) -> None:
    with pytest.raises(DataError, match=says):
        value_of(name, data)


def test_a_message_that_is_sent_keeps_its_name() -> None:
    sent = Send(to=LearnerId("a"), session="s", message=Refusal(reason=RefusalReason.FULL, text="no"))
    assert data_of(sent) == {"to": "a", "session": "s", "Refusal": sent.message}


def test_a_header_comes_first_and_again_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "trace.jsonl"
    for epoch in (1, 2):
        with TraceWriter(path, {"epoch": epoch}) as trace:
            trace.event(1.0, "syncer", Tick())
    lines = list(read_trace(path))
    assert [line.data["epoch"] for line in lines if isinstance(line, Header)] == [1, 2]
    assert [line.line for line in lines] == [1, 2, 3, 4]


def test_what_a_writer_that_was_taken_over_from_still_writes_goes_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path, {"life": 1}) as hanging:
        hanging.note(0.0, "judge", "evaluation", loss=3.0)
        hanging.flush()
        hanging.note(0.1, "judge", "evaluation", loss=2.5)
        with TraceWriter(path, {"life": 2}, over=True) as heir:
            heir.note(0.0, "judge", "evaluation", loss=2.0)
            hanging.note(9.0, "judge", "evaluation", loss=1.0)
            hanging.flush()
            heir.note(1.0, "judge", "evaluation", loss=1.5)
    lines = list(read_trace(path))
    assert [line.data.get("life") or line.data["loss"] for line in lines] == [1, 3.0, 2, 2.0, 1.5]
    assert [file.name for file in tmp_path.iterdir()] == ["trace.jsonl"]


def test_a_torn_last_line_is_passed_over_and_cut_off_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path, {}) as trace:
        trace.event(1.0, "syncer", Tick())
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines()[1]) + 1):
        path.write_bytes(whole[:-cut])
        assert [line.line for line in read_trace(path)] == [1]
    TraceWriter(path, {"second": True}).close()
    assert [type(line) for line in read_trace(path)] == [Header, Header]


def test_a_torn_line_longer_than_one_read_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    TraceWriter(path, {}).close()
    whole = path.read_bytes()
    path.write_bytes(whole + b"x" * 200_000)
    TraceWriter(path, {}).close()
    assert path.read_bytes() == whole * 2


@pytest.mark.parametrize("text", ["my notes without newline", "my notes\nand more", '{"other":1}\n{"t":', '{"x'])
def test_a_file_that_is_no_trace_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StateError, match="is not a trace, and is left as it is; name another file"):
        TraceWriter(path, {})
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("text", ["", "{", '{"trace"', '{"trace":1'])
def test_a_trace_torn_in_its_first_words_is_begun_again(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text, encoding="utf-8")
    TraceWriter(path, {}).close()
    assert path.read_text(encoding="utf-8") == '{"trace":1}\n'


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"{\n", "is not a trace record"),
        (b"[1]\n", "is not a trace record"),
        (b'{"t":1.0,"who":"a","data":{}}\n', "exactly one of in, out and note"),
        (b'{"t":1.0,"who":"a","in":"Tick","out":"Tick","data":{}}\n', "exactly one of in, out and note"),
        (b'{"t":"soon","who":"a","in":"Tick","data":{}}\n', "is not a trace record"),
        (b'{"trace":2}\n', "is a trace of version 2"),
        (b'{"trace":1,}\n', "is not a trace header"),
        (b'{"trace":' + b"[" * 100_000 + b"\n", "is not a trace header"),
        (b'{"t":1.0,"who":"a","in":"Tick","data":{"x":' + b"[" * 100_000 + b"\n", "is not a trace record"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: bytes, what: str) -> None:
    path = tmp_path / "trace.jsonl"
    TraceWriter(path, {}).close()
    path.write_bytes(path.read_bytes() + line + b'{"t":1.0,"who":"a","note":"n","data":{}}\n')
    with pytest.raises(DataError, match=what) as caught:
        list(read_trace(path))
    assert caught.value.where == f"{path}:2"


def test_what_is_no_trace_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        list(read_trace(tmp_path / "nothing"))
    (tmp_path / "empty").touch()
    with pytest.raises(DataError, match="is empty"):
        list(read_trace(tmp_path / "empty"))
    (tmp_path / "headless").write_bytes(b'{"t":1.0,"who":"a","note":"n","data":{}}\n')
    with pytest.raises(DataError, match="first line is not a header"):
        list(read_trace(tmp_path / "headless"))
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="cannot be written"):
        TraceWriter(tmp_path / "file" / "trace.jsonl", {})


def test_records_reach_the_disk_within_a_second_of_trace_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    trace = TraceWriter(path, {})
    trace.event(0.5, "syncer", Persisted(round=Round(1)))
    trace.event(1.0, "syncer", Persisted(round=Round(2)))
    trace.event(1.1, "syncer", Persisted(round=Round(3)))
    assert [r.data["round"] for r in read_trace(path) if isinstance(r, Record)] == [1, 2]
    trace.close()
    trace.close()
    assert [r.data["round"] for r in read_trace(path) if isinstance(r, Record)] == [1, 2, 3]


def test_a_full_disk_ends_the_recording_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = Path("/dev/full")
    if not path.exists():
        pytest.skip("this system has no /dev/full")
    trace = TraceWriter(None, {})
    trace.path, trace._file = path, path.open("wb")
    for t in range(5):
        trace.event(float(t), "syncer", progress(1.0))
    assert trace.broken == "No space left on device"
    assert len(caplog.records) == 1
    trace.close()


def test_a_writer_without_a_path_keeps_nothing_and_tells_its_tap_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[bytes] = []
    with TraceWriter(None, {}) as trace:
        trace.event(0.0, "syncer", progress(math.nan))
        trace.tap = told.append
        trace.note(0.0, "judge", "evaluation", loss=1.0)
    assert trace.broken == "" and list(tmp_path.iterdir()) == []
    assert told == [b'{"t":0.0,"who":"judge","note":"evaluation","data":{"loss":1.0}}\n']
