"""An alarm is said once, and withdrawn when its cause has gone."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gruppetto.protocol.actions import Alarm, AlarmKind, AlarmOver
from gruppetto.protocol.alarms import PATIENCE_S, Alarms
from gruppetto.protocol.units import Fragment, LearnerId, Round

ZERO = AlarmKind.ZERO_UPDATE


def test_a_frozen_fragment_is_said_once_though_others_come_between() -> None:
    said: list[Alarm | AlarmOver] = []
    alarms, frozen = Alarms(said.append, solo_rounds=4), Fragment(0)
    for round in range(12):
        due = Fragment(round % 3)
        alarms.zero_update(Round(round), (due,), (due,) if due == frozen else ())
    assert [type(each) for each in said] == [Alarm]
    alarms.zero_update(Round(12), (frozen,), ())
    assert said[1:] == [AlarmOver(kind=ZERO)]


@given(st.lists(st.tuples(st.floats(0.1, 4.0), st.integers(0, 3)), max_size=40))
def test_a_shortage_is_said_when_it_has_lasted_and_over_when_it_has_not(script: list[tuple[float, int]]) -> None:
    said: list[Alarm | AlarmOver] = []
    alarms, now, since = Alarms(said.append, solo_rounds=4), 0.0, None
    for passed_s, live in script:
        now += passed_s
        alarms.quorum_short(now, Round(1), live=live, quorum=2)
        since = None if live >= 2 else now if since is None else since
        holds = bool(said) and isinstance(said[-1], Alarm)
        assert holds == (since is not None and now >= since + PATIENCE_S)
    assert all(isinstance(a, Alarm) is not isinstance(b, Alarm) for a, b in pairwise(said))


def test_who_is_left_alone_supplies_everything_and_no_alarm() -> None:
    said: list[Alarm | AlarmOver] = []
    alarms = Alarms(said.append, solo_rounds=4)
    for _ in range(4):
        alarms.merged({LearnerId("a"): 10}, live=2)
    alarms.merged({LearnerId("a"): 10}, live=1)
    assert [type(each) for each in said] == [Alarm, AlarmOver]
