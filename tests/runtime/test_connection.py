from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gruppetto.protocol.messages import Announcement, Ask
from gruppetto.runtime.connection import MAX_WAITING, Connection
from gruppetto.runtime.wire import FROM_SYNCER, CloseCode, decode_frame


def connection():
    return Connection(learner="a", session="s", peer="test")


def taken(link):
    return [decode_frame(data, FROM_SYNCER) for data in link.take()]


@given(st.lists(st.dictionaries(st.integers(0, 5), st.integers(0, 9), max_size=3), min_size=1, max_size=8))
def test_announcements_that_wait_become_one_with_the_newest_of_each_fragment(news):
    link = connection()
    newest = {}
    for t, versions in enumerate(news):
        rising = {p: t * 10 + v for p, v in versions.items()}
        newest |= rising
        link.put(Announcement(epoch=1, round=t, versions=tuple(rising.items()), finished=t == len(news) - 1))
    (one,) = taken(link)
    assert one.round == len(news) - 1 and one.finished
    assert dict(one.versions) == newest
    assert taken(link) == []


def test_a_learner_that_reads_nothing_is_cut_off_and_nobody_else_notices():
    link, other = connection(), connection()
    for t in range(MAX_WAITING + 1):
        link.put(Ask(epoch=1, round=t, fragments=(0,)))
    assert link.closing.code == CloseCode.TOO_SLOW
    assert link.take() == []
    link.put(Ask(epoch=1, round=1, fragments=(0,)))
    assert link.take() == [] and other.closing is None


def test_the_first_reason_to_close_counts_and_what_waits_is_still_sent():
    link = connection()
    link.put(Ask(epoch=1, round=1, fragments=(0,)))
    link.close(CloseCode.REFUSED, "first")
    link.close(CloseCode.GOING_AWAY, "second")
    assert len(taken(link)) == 1 and link.closing.text == "first"
