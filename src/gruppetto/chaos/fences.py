"""What an earlier epoch or incarnation has said changes nothing: neither at the syncer nor at a learner. Nor does who
comes when the run is over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from gruppetto.chaos.invariants import demand
from gruppetto.protocol.actions import LearnerAction
from gruppetto.protocol.events import SyncerEvent
from gruppetto.protocol.messages import Hello
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.runtime.wire import Frame

if TYPE_CHECKING:
    from gruppetto.chaos.learner import LearnerProcess
    from gruppetto.chaos.syncer import SyncerProcess

__all__ = ["nothing_changes_in_learner", "nothing_changes_in_syncer", "says_nothing", "visitors_only_look"]


@contextmanager
def nothing_changes_in_syncer(syncer: SyncerProcess, frame: Frame) -> Iterator[None]:
    """In the block the syncer hears ``frame``, which is of another life. Raises
    :class:`~gruppetto.chaos.invariants.BrokenWorldError` if it heeds it."""
    before = _standing_of(syncer)
    yield
    demand(_standing_of(syncer) == before, "old-lives-are-fenced", lambda: f"the syncer heeds {frame}")


@contextmanager
def visitors_only_look(core: SyncerCore, event: SyncerEvent) -> Iterator[None]:
    """In the block ``core`` hears ``event``. Raises likewise if who comes to a run that is over leaves a trace."""
    before = _books_of(core) if isinstance(event, Hello) and core.is_over else None
    yield
    demand(before is None or _books_of(core) == before, "visitors-only-look", lambda: f"{event} changes {before}")


@contextmanager
def nothing_changes_in_learner(process: LearnerProcess, frame: Frame) -> Iterator[None]:
    """The same of a learner."""
    core = process.core
    before = (core.snapshot(), core.begun, core.finished, dict(core.rejections))
    yield
    after = (core.snapshot(), core.begun, core.finished, dict(core.rejections))
    demand(before == after, "old-lives-are-fenced", lambda: f"{process.name} heeds {frame}")


def says_nothing(frame: Frame, actions: Sequence[LearnerAction]) -> None:
    """These are the ``actions`` to which it has led. Raises likewise."""
    demand(not actions, "old-lives-are-fenced", lambda: f"{frame} leads to {actions}")


def _standing_of(syncer: SyncerProcess) -> object:
    """All that a learner's word can change in the syncer, but for its having been heard."""
    core = syncer.core
    members = tuple((m.learner, m.incarnation, m.phase, m.clock, m.steps, dict(m.versions)) for m in core.members)
    totals = core.ledger.totals
    expected = [dict(opened.expected_at) for opened in core.open_rounds]
    books = (core.ledger.consumed, totals.merged, totals.discarded, totals.lost, core.ledger.promised_total())
    mark = core.open_mark
    marked = (dict(mark.waiting), dict(mark.parts), dict(mark.left_out)) if mark is not None else None
    return (core.phase, core.round, core.versions, members, books, expected, marked)


def _books_of(core: SyncerCore) -> object:
    """All that a commit would say, but for which process speaks for a life."""
    state = core.snapshot()
    return replace(state, members=tuple(replace(m, session="", awaited=False) for m in state.members))
