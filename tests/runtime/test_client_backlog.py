from __future__ import annotations

from gruppetto.protocol.ledger import Ledger
from gruppetto.protocol.messages import Answer, Applied, Deferred, Progress
from gruppetto.protocol.units import Epoch, Fragment, Incarnation, LearnerId, Round, Version
from gruppetto.runtime.backlog import MAX_DEFERRED, Backlog, Offer, SeedPart
from gruppetto.runtime.leases import LeasePool
from gruppetto.runtime.wire import MAX_METRICS, ProgressFrame, decode_frame, encode_frame

A = LearnerId("a")
POOL = LeasePool()


def progress(clock: int, *applied: Applied) -> Progress:
    return Progress(
        learner=A,
        incarnation=Incarnation(1),
        epoch=Epoch(1),
        clock=clock,
        step_s=0.1,
        steps=clock,
        tokens=10 * clock,
        cursor=clock,
        applied=applied,
    )


def applied(fragment: int, version: int) -> Applied:
    return Applied(fragment=Fragment(fragment), version=Version(version), at_tokens=10 * version)


def offer(fragment: int, round: int) -> Offer:
    answer = Answer(
        learner=A,
        incarnation=Incarnation(1),
        epoch=Epoch(1),
        round=Round(round),
        fragment=Fragment(fragment),
        base_version=Version(0),
        steps=1,
        tokens=10,
        total_tokens=10,
        cursor=1,
        layout_hash="h",
    )
    return Offer(answer=answer, base=POOL.lend(1), theta=POOL.lend(1))


def only_frame(backlog: Backlog) -> ProgressFrame:
    (frame,) = backlog.take_frames()
    assert isinstance(frame, ProgressFrame)
    return frame


def test_the_newest_progress_goes_with_all_that_was_applied() -> None:
    backlog = Backlog()
    backlog.report(progress(1, applied(0, 1)))
    backlog.note({"loss": 3.0})
    backlog.report(progress(2, applied(1, 2)))
    backlog.note({"loss": 2.0})
    frame = only_frame(backlog)
    assert frame.progress.clock == 2
    assert frame.progress.applied == (applied(0, 1), applied(1, 2))
    assert frame.metrics == {"loss": 2.0}
    assert backlog.take_frames() == []


def test_a_link_that_is_down_for_ever_fills_no_memory() -> None:
    backlog = Backlog()
    for t in range(1000):
        backlog.report(progress(t, applied(t % 3, t)))
        backlog.note({f"number-{t}": float(t)})
        backlog.defer(Deferred(learner=A, incarnation=Incarnation(1), epoch=Epoch(1), round=Round(t), expected_s=0.0))
        backlog.offer(offer(t % 3, t))
        backlog.want(Fragment(t % 3), Version(t))
    assert (backlog.uploads, backlog.downloads) == (3, 3)
    *deferred, frame = backlog.take_frames()
    assert len(deferred) == MAX_DEFERRED
    assert isinstance(frame, ProgressFrame)
    assert len(frame.progress.applied) <= 6
    assert len(frame.metrics) == MAX_METRICS
    assert decode_frame(encode_frame(frame), {"ProgressFrame"}) == frame


def test_shortening_what_was_applied_books_the_same_totals() -> None:
    books, shortened = Ledger(num_fragments=2), Ledger(num_fragments=2)
    news = [applied(t % 2, t) for t in range(1, 12)]
    backlog = Backlog()
    for t, one in enumerate(news, 1):
        backlog.report(progress(t, one))
    for ledger, told in ((books, news), (shortened, only_frame(backlog).progress.applied)):
        ledger.open_account(A)
        ledger.trained(A, 200)
        ledger.merged(A, Fragment(0), 3, 3)
        for one in told:
            ledger.applied(A, one)
    assert books.totals == shortened.totals
    assert books.balances()


def test_after_a_lost_link_what_was_applied_is_told_again() -> None:
    backlog = Backlog()
    backlog.report(progress(5, applied(0, 3), applied(1, 4)))
    backlog.take_frames()  # and then nobody knows whether it arrived
    backlog.link_down()
    assert backlog.take_frames() == []
    backlog.report(progress(6))
    assert only_frame(backlog).progress.applied == (applied(0, 3), applied(1, 4))


def test_a_new_life_has_applied_nothing_yet() -> None:
    backlog = Backlog()
    backlog.report(progress(5, applied(0, 3)))
    backlog.link_down()
    backlog.new_life()
    backlog.report(progress(6))
    assert only_frame(backlog).progress.applied == ()


def test_the_newest_offer_of_a_fragment_counts_and_the_older_is_let_go() -> None:
    backlog = Backlog()
    older, newer = offer(0, 1), offer(0, 2)
    theta = older.theta.hold()
    backlog.offer(older)
    backlog.offer(newer)
    assert theta._holders == 1, "only we hold it still"
    assert backlog.next_upload() is newer
    assert backlog.next_upload() is None
    assert backlog.uploads == 1
    backlog.uploaded()
    assert backlog.uploads == 0


def test_an_offer_waits_until_its_base_was_told() -> None:
    backlog = Backlog()
    backlog.report(progress(1, applied(0, 1)))
    first, second = offer(0, 2), offer(1, 2)
    backlog.offer(first)
    backlog.offer(second)
    assert backlog.next_upload() is second
    assert backlog.next_upload() is None
    backlog.take_frames()
    assert backlog.next_upload() is first


def test_a_fragment_is_downloaded_once_at_a_time_and_its_newest_version_next() -> None:
    backlog = Backlog()
    backlog.want(Fragment(0), Version(1))
    assert backlog.next_pull() == (0, 1)
    backlog.want(Fragment(0), Version(2))
    backlog.want(Fragment(0), Version(3))
    assert backlog.next_pull() is None
    assert backlog.downloads == 1
    backlog.pulled(Fragment(0))
    assert backlog.next_pull() == (0, 3)


def test_a_lost_link_lets_every_vector_go() -> None:
    backlog = Backlog()
    one, part = offer(0, 1), SeedPart(fragment=Fragment(1), theta=POOL.lend(2))
    watched = [one.base.hold(), one.theta.hold(), part.theta.hold()]
    backlog.offer(one)
    backlog.seed(part)
    backlog.want(Fragment(2), Version(1))
    backlog.link_down()
    assert [lease._holders for lease in watched] == [1, 1, 1]
    assert (backlog.uploads, backlog.downloads) == (0, 0)
