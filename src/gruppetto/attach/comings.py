"""How a learner comes into a run and leaves it: whatever the reason, and whatever its rank."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from gruppetto.attach.beginning import Beginning
from gruppetto.attach.conduct import Conduct, Report
from gruppetto.attach.deserting import Whereabouts
from gruppetto.attach.entering import Entering
from gruppetto.attach.follow import Follow
from gruppetto.attach.hands import Hands
from gruppetto.attach.holdings import Holdings
from gruppetto.attach.hooks import StepHooks
from gruppetto.attach.keeping import Keeping
from gruppetto.attach.meeting import SEED_PATIENCE_S, Meeting
from gruppetto.attach.notice import Notice
from gruppetto.attach.parting import finish, part
from gruppetto.attach.rewarm import Rewarm
from gruppetto.attach.sharding import FlatModel
from gruppetto.attach.taking import Taking
from gruppetto.errors import LayoutError, StateError
from gruppetto.protocol.donors import Source
from gruppetto.protocol.events import StepStarted
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.overwriting import overwriting_notice
from gruppetto.protocol.units import LearnerId
from gruppetto.runtime.client import Beside, LearnerClient
from gruppetto.runtime.orders import Begin, Word
from gruppetto.runtime.shard_books import ShardBook

__all__ = ["Comings"]

log = logging.getLogger("gruppetto.learner")

USUAL_OVERLAP_STEPS = 2
"""τ by default."""


class Comings(Keeping):
    """That side of a :class:`~gruppetto.attach.learner.Learner`. ``_hands`` and ``_conduct`` are those of rank 0, or of
    a learner that is alone; any other rank has ``_follow``."""

    name: str
    _hands: Hands
    _conduct: Conduct
    _follow: Follow | None
    _whereabouts: Whereabouts | None
    """Of a rank of many."""
    _taking: Taking
    """Of a rank that follows."""
    _notice: Notice
    _hooks: StepHooks | None
    _parted: bool
    _closed: bool
    _quiet: bool
    _connect_timeout_s: float | None
    _rewarm_steps: int
    _trainable_only: bool
    _dials: Callable[..., LearnerClient]
    """Makes what speaks to a syncer of the run."""

    @property
    def _word(self) -> Word | None:
        return self._follow.word if self._follow is not None else self._conduct.word

    # ── coming ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _enter(self) -> bool:
        """Wait until the first step may be made; False if it has had notice, and has left."""
        optimizer = self._inner
        beginning = None if optimizer is None else Beginning(self._model, optimizer, self._holdings, self._checkpoints)
        ready = Entering(
            self._hands,
            self._conduct,
            beginning,
            give_up_s=self._connect_timeout_s,
            says=not self._quiet,
            leaves=self._notice.look,
            rewarms=self._rewarms,
            notes=self._note_beginning,
            meets=Meeting(self._hands, self._hands_for),
        ).wait()
        if not ready:
            self._leave_on_notice()
            return False
        if self.finished:
            last = self._core.newest_round
            log.warning("%s: the run has reached its last round, %d; nothing is left to train", self.name, last)
        else:
            self._say_what_overwriting_costs()
        with self._client.news:
            self._hands.feed(StepStarted())
        return True

    def _hands_for(self, number: int) -> Hands:
        """For another shard of the run: the same life of the same learner, over fragments of its own."""
        first, began_s = self._hands.client, self._hands.client.clock.now()
        assert first.shards is not None

        def may_seed() -> bool:
            given = first.welcome is not None and first.welcome.welcome.seed
            return given or first.clock.now() - began_s > SEED_PATIENCE_S

        model = FlatModel(self._model, trainable_only=self._trainable_only)
        core = LearnerCore(LearnerId(self.name), session=self._core.session, layout_hash=self._layout_hash)
        core.run_id = first.shards.run_id
        holdings = Holdings(model)
        beside = Beside(shards=first.shards, number=number, news=first.news, may_seed=may_seed, pace=first.pace)
        client = self._dials(core, holdings, model.layout, ShardBook(first.shards, number), beside=beside)
        return Hands(core, client, holdings, None)

    def _say_what_overwriting_costs(self) -> None:
        """The Welcome does not tell τ; what is usual is near enough for a warning."""
        frame = self._client.welcome
        if frame is not None:
            said = frame.welcome
            overlap_steps = min(USUAL_OVERLAP_STEPS, said.sync_period - 1)  # never more than that
            notice = overwriting_notice(said.apply, sync_period=said.sync_period, overlap_steps=overlap_steps)
            if notice:
                log.warning("%s: %s", self.name, notice)

    def _enter_behind(self, follow: Follow) -> bool:
        """The same, as rank 0 says."""
        follow.start()
        self._heard(follow.through())
        return not self.left

    def _begins(self, order: Begin) -> None:
        """On a rank that follows: begin from what rank 0 begins from."""
        if order.source == Source.SYNCER.value:
            self._taking.undo()
            self._rewarms()
            return
        self._taking.begin(order, lambda: self._from_checkpoint(order.place))

    def _from_checkpoint(self, place: str) -> None:
        frame, layout = self._client.welcome, self._holdings.model.layout
        if self._checkpoints is None or self._inner is None or frame is None:
            raise StateError("this rank was attached without checkpoints", where="Learner")
        self._checkpoints.recover_from(Path(place), frame.welcome.run_id, layout, self._model, self._inner)

    def _rewarms(self) -> None:
        if self._rewarm_steps:
            self._rewarm = Rewarm(self._optimizer, steps=self._rewarm_steps)

    # ── going ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(self) -> None:
        """Say what is left to say; take the last weights of a finished run."""
        if self._ranks is not None and self._parted:
            return
        if self._ranks is None:
            self._left_on_notice()
        elif self._follow is None and not self.finished and self._notice.look():
            self._say_that_it_leaves()
            self._leave_on_notice()  # the others follow, wherever they are
            return
        self._holdings.model.gather_shards()
        try:
            self._holdings.model.check_unchanged()
        except LayoutError as wrong:  # since the last look; too late to mend, not to be told
            log.warning("%s: %s", self.name, wrong)
        if self._ranks is None:
            finish(self._hands, self._conduct, finished=self.finished)
            return
        with self._ranks.waiting_to_leave(self.name):
            self._say_that_it_leaves()
            if self._follow is not None:
                self._heard(self._follow.through(loops=False))
            else:
                finish(self._hands, self._conduct, finished=self.finished)

    def _say_that_it_leaves(self) -> None:
        """Before any meeting behind the loop: the others have to know, and this rank whether they can come."""
        if self._whereabouts is not None:
            self._whereabouts.leave(step_s=self._core.step_s)

    def _leave(self, timeout_s: float, why: str = "") -> None:
        """Give back handler, hooks and threads, each of them whatever becomes of the others. May be called again.
        ``why``: of what the training has failed, for the syncer."""
        self._closed = True
        with ExitStack() as backwards:
            if self._ranks is not None:
                backwards.callback(self._ranks.close)
            if self._whereabouts is not None:
                backwards.callback(self._whereabouts.close)
            for other in self._shards_of_the_run[1:]:
                backwards.callback(other.client.close, timeout_s, why)
            backwards.callback(self._client.close, timeout_s, why)
            if self._follow is not None:
                backwards.callback(self._follow.close)
            else:
                backwards.callback(self._conduct.close, "it has left in the middle of a boundary")
            if self._hooks is not None:
                backwards.callback(self._hooks.remove)
            backwards.callback(self._notice.stop_listening)

    # ── leaving on notice ────────────────────────────────────────────────────────────────────────────────────────

    def leave(self, within_s: float | None = None) -> None:
        """Leave the run at the next boundary, within so many seconds (``leave_within_s`` unless said).

        Returns at once; from any thread, and from a signal handler.
        """
        self._notice.give(within_s)

    @property
    def left(self) -> bool:
        """It has left the run, on notice or because it was closed: what is trained now is for nobody."""
        return self._parted or self._closed

    def _left_on_notice(self) -> bool:
        """Between two steps: if there has been notice, give what there is to give, and leave. Whether it has left."""
        if not self.left and self._ranks is None and self._notice.look():  # of many, only at a boundary of all ranks
            self._leave_on_notice()
        return self.left

    def _leave_on_notice(self) -> None:
        self._parted = True
        part(self._hands, self._conduct, within_s=self._notice.within_s)

    def _has_ended(self, report: Report) -> bool:
        """Notice has been given to a rank, or one has left its loop: all of them end, together."""
        if not report.stays:
            self._leave_on_notice()
        elif not report.loops:
            finish(self._hands, self._conduct, finished=self.finished)
            self._parted = True
        return self._parted

    def _heard(self, word: Word) -> None:
        self._parted = self._parted or word.parted or word.closing
