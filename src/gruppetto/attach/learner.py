"""Your own training loop as a learner of a decoupled run, in three lines. See :class:`Learner`."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, SupportsIndex, TypeVar

import torch
from torch import nn

from gruppetto import __version__
from gruppetto.attach.beginning import Beginning
from gruppetto.attach.checkpoint import from_state_dict, rests_of, to_state_dict
from gruppetto.attach.checkpoints import Checkpoints
from gruppetto.attach.counting import StepCounts, whole_number
from gruppetto.attach.entering import Entering
from gruppetto.attach.follow import Follow
from gruppetto.attach.giving import Giving, check_manifest
from gruppetto.attach.hands import Hands
from gruppetto.attach.holdings import Holdings
from gruppetto.attach.hooks import StepHooks
from gruppetto.attach.lead import Alone, Lead, Report
from gruppetto.attach.notice import Notice, NoticeHook
from gruppetto.attach.optimizers import Optimizers, as_one
from gruppetto.attach.parting import LAST_WORDS_S, finish, part
from gruppetto.attach.ranks import Ranks, ranks_of
from gruppetto.attach.rewarm import Rewarm
from gruppetto.attach.run_ahead import RunAhead
from gruppetto.attach.setting import check_for_ranks, check_settings, default_name, donation_place
from gruppetto.attach.sharding import FlatModel
from gruppetto.attach.shards import SEED_PATIENCE_S, Meeting
from gruppetto.attach.together import come_together
from gruppetto.attach.view import LearnerView
from gruppetto.attach.watching import Watch
from gruppetto.errors import ConnectionLost, LayoutError, RunFailed, SettingError, StateError
from gruppetto.numerics import warm
from gruppetto.numerics.codec import CASTS
from gruppetto.protocol.donors import Source
from gruppetto.protocol.events import StepDone, StepStarted
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.overwriting import overwriting_notice
from gruppetto.protocol.state import LearnerState
from gruppetto.protocol.units import LearnerId
from gruppetto.runtime.address import tls_context
from gruppetto.runtime.address_book import address_book
from gruppetto.runtime.client import Beside, LearnerClient
from gruppetto.runtime.orders import Word
from gruppetto.runtime.rank_client import RankClient
from gruppetto.runtime.shard_books import ShardBook
from gruppetto.runtime.wire import RecoveryNote, is_name

__all__ = ["Learner"]

log = logging.getLogger("gruppetto.learner")

Item = TypeVar("Item")

SAVE_EVERY_STEPS = 500
"""Between two checkpoints, where ``checkpoints`` is a directory."""
USUAL_OVERLAP_STEPS = 2
"""τ by default."""
LOOK_STEPS = 64
"""Steps between two looks at whether the model still has the parameters it was attached with."""


class Learner(LearnerView):
    """A context manager that makes a PyTorch training loop one learner of a decoupled run.

    ::

        with gruppetto.Learner(model, optimizer, syncer="http://127.0.0.1:7171", tokens_per_step=8192) as learner:
            for batch in learner.until_finished(loader):
                model(batch).loss.backward()
                optimizer.step()          # counts the step, offers, applies what has arrived
                optimizer.zero_grad()

    On entering it connects and waits until it holds the run's weights and training has begun. From then on it never
    waits: all traffic is on other threads, and a lost syncer is dialled again while training goes on alone. Every
    ``optimizer.step()`` is a step boundary; a step that the AMP scaler skips calls no ``step()`` and is none, and
    accumulated gradients are one step.

    ``syncer``: its address; several with commas between them, a syncer and its standbys, are tried in turn. Or its
    state directory on this machine, where every syncer says where it listens.

    ``name``: the learner's stable name. A process started again under the same name takes the old one's place; the
    default is new for every process. ``tokens_per_step``: tokens in the batches of one step; without it call
    :meth:`tokens` in the loop. ``cursor``: a function that gives the index of the next batch of the data slot; without
    it every step counts one batch. ``optimizer``: one, or a list of several, of which the last to step ends the step of
    the loop; None with ``hook=False``: call :meth:`step` after every step.
    ``max_run_ahead``: wait when more than so many steps ahead of the newest round seen, ``run_ahead_timeout_s``
    at most, and not again until the syncer is heard of. ``on_disconnect="raise"`` makes a lost link or a later refusal
    an error at the next step. ``connect_timeout_s``: give up entering after so long (default: never).
    ``on_checkpoint``: called as ``on_checkpoint(learner, mark)`` when a checkpoint of the whole run is cut, at a step
    boundary; it saves model, optimizer and :meth:`state_dict`, and returns where, or a future of that (see
    :class:`gruppetto.attach.part.Parts`). Without it this learner is left out of such checkpoints.

    A process that begins in a run under way takes optimizer state, buffers and weights from another learner, if one
    gives them, else from its own last checkpoint in ``checkpoints`` (a directory, or a :class:`Checkpoints`), else
    weights alone from the syncer (a directory gets a checkpoint every 500 steps); its learning rate then rises over
    ``rewarm_steps`` steps (:attr:`lr_factor`). ``recover=False``: always the last, without the ramp. ``donate``: where
    it gives its own state to others; "auto": on this machine if the syncer is on it, else nowhere; HOST:PORT: there,
    under the run's token; None: nowhere. Whatever
    comes from a learner's checkpoint or a peer, the parameters are the run's, never those of a peer's own steps.
    Leaving on notice: :meth:`leave`, ``notice`` (a :class:`threading.Event`, or a function polled at every boundary
    that is true when it is time) or, with ``leave_on_sigterm=True``, SIGTERM. At the next boundary the learner gives
    its work of all fragments with its true counts, says goodbye and has :attr:`left`, ``leave_within_s`` later at most;
    :meth:`until_finished` then ends, and a loop of your own has to look at :attr:`left`.

    A model that is spread over ranks (DDP, FSDP2, hybrid or tensor parallel) is one learner: every rank makes one of
    these, with the same name or none, enters it, steps and leaves it. Tokens and cursor are what rank 0 says, for all.
    ``process_group``: the learner's ranks, where they are not all of ``torch.distributed``. Raises :class:`RunFailed`
    on all ranks when one of them has gone.

    Pass the model that you call: evaluation passes (``model.eval()`` or no gradients) are told by its forward hook.
    Raises :class:`SettingError`, :class:`LayoutError` and :class:`AddressError` for what you can mend, and
    :class:`Refused` if the syncer does not take this learner in.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers | None,
        *,
        syncer: str | Path,
        token: str | None = None,
        tokens_per_step: int | None = None,
        name: str | None = None,
        on_disconnect: Literal["keep-training", "raise"] = "keep-training",
        connect_timeout_s: float | None = None,
        max_run_ahead: int | None = None,
        run_ahead_timeout_s: float = 10.0,
        trainable_only: bool = True,
        cursor: Callable[[], SupportsIndex] | None = None,
        hook: bool = True,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        stall_s: float = 30.0,
        quiet: bool = False,
        donate: str | None = "auto",
        checkpoints: Checkpoints | str | Path | None = None,
        recover: bool = True,
        rewarm_steps: SupportsIndex = 20,
        notice: NoticeHook | None = None,
        leave_on_sigterm: bool = False,
        leave_within_s: float = 10.0,
        on_checkpoint: Callable[[Learner, str], str | Path | Future[str]] | None = None,
        process_group: Any = None,
    ) -> None:
        self.name = default_name() if name is None else name
        optimizer = None if optimizer is None else as_one(optimizer)
        check_settings(
            model=model,
            name=self.name,
            token=token,
            cursor=cursor,
            on_disconnect=on_disconnect,
            tokens_per_step=tokens_per_step,
            max_run_ahead=max_run_ahead,
            connect_timeout_s=connect_timeout_s,
            run_ahead_timeout_s=run_ahead_timeout_s,
            stall_s=stall_s,
        )
        if hook and optimizer is None:
            raise SettingError(
                "optimizer is None", where="Learner", fix="pass the optimizer, or hook=False and call step()"
            )
        self._notice = Notice(notice, within_s=leave_within_s, on_sigterm=leave_on_sigterm)
        if on_checkpoint is not None and not callable(on_checkpoint):
            raise SettingError(
                f"on_checkpoint is {on_checkpoint!r:.80}",
                where="Learner.on_checkpoint",
                fix="pass a function, or Parts",
            )
        if checkpoints is not None and not isinstance(checkpoints, Checkpoints | str | Path):
            raise SettingError(
                f"checkpoints is {checkpoints!r:.80}",
                where="Learner.checkpoints",
                fix="pass a directory, or gruppetto.Checkpoints(DIR, every_steps=N)",
            )
        book = address_book(syncer)
        addresses = book.addresses()
        donates = donation_place(donate, addresses, token=token, has_optimizer=optimizer is not None)
        self._checkpoints = (
            Checkpoints(checkpoints, every_steps=SAVE_EVERY_STEPS)
            if isinstance(checkpoints, str | Path)
            else checkpoints
        )
        tls = tls_context(ca_file, cert_file, key_file) if any(address.secure for address in addresses) else None
        for address in addresses:
            if not address.secure and not address.is_loopback:
                log.warning("%s: weights and token travel unencrypted; use https", address)
        self._model, self._optimizer = model, optimizer if hook else None
        self._strict = on_disconnect == "raise"
        self._connect_timeout_s = connect_timeout_s
        self._quiet = quiet
        members = ranks_of(model, process_group)
        if members is not None:
            check_for_ranks(donate=donate, checkpoints=checkpoints, on_checkpoint=on_checkpoint)
            donates = None
        self._follow: Follow | None = None
        self._ranks = None if members is None else Ranks(members, device=next(model.parameters()).device)
        flat = FlatModel(model, trainable_only=trainable_only)
        session = secrets.token_hex(8)
        if self._ranks is not None:
            self.name, session = come_together(self._ranks, flat, name=name, fallback=self.name, session=session)
        self._layout_hash, self._trainable_only = flat.layout.layout_hash, trainable_only
        self._watch = Watch(model, (tensor.name for tensor in flat.layout.tensors), learner=self.name)
        self._holdings = Holdings(flat, by_agreement=self._ranks is not None)
        core = LearnerCore(
            LearnerId(self.name),
            session=session,
            layout_hash=self._layout_hash,
            recovers=recover and optimizer is not None,
        )
        self._inner: torch.optim.Optimizer | None = optimizer
        self._rewarm_steps = whole_number(rewarm_steps, "Learner.rewarm_steps")
        self._hooks: StepHooks | None = None
        self._counts = StepCounts(core, tokens_per_step=tokens_per_step, cursor=cursor)
        self._entered = self._closed = self._parted = False
        self._fresh, self._evaluated = True, False
        self._said_failure = False
        self._giving: Giving | None = None
        if self._ranks is not None and not self._ranks.leads:
            self._follow = Follow(
                self._ranks,
                core,
                self._holdings,
                RankClient(
                    core,
                    self._holdings,
                    flat.layout,
                    addresses[0],
                    rank=self._ranks.rank,
                    token=token,
                    tls=tls,
                    stall_s=stall_s,
                ),
                begin=self._begins,
                notice=self._notice.look,
            )
            super().__init__(core, self._follow.client)
            return
        lead = None if self._ranks is None else Lead(self._ranks, core)

        def dials(*what: Any, **how: Any) -> LearnerClient:
            """Closed over the token, which shows in no repr."""
            return LearnerClient(*what, token=token, tls=tls, stall_s=stall_s, library=__version__, **how)

        self._dials = dials
        client = dials(
            core,
            self._holdings,
            flat.layout,
            book,
            donates=donates,
            has_own=self._checkpoints is not None and self._checkpoints.any(),
            fits=partial(check_manifest, model, optimizer, base_numel=sum(t.numel for t in flat.layout.tensors))
            if optimizer is not None
            else lambda manifest: None,
            also=None if lead is None else lead.order,
        )
        super().__init__(core, client)
        save = None if on_checkpoint is None else lambda mark: on_checkpoint(self, mark)
        self._hands = self._clocked = Hands(core, client, self._holdings, save)
        self._conduct: Alone | Lead = Alone(self._hands) if lead is None else lead
        self._run_ahead = self._paced = RunAhead(
            self._hands, self._conduct, self._notice, most=max_run_ahead, timeout_s=run_ahead_timeout_s
        )
        if lead is not None:
            lead.serve(self._hands)
        if donates is not None and optimizer is not None:
            self._giving = Giving(model, optimizer, self._holdings)
        if self._giving is not None and client.donations is not None:
            client.donations.on_idle = self._giving.forget

    # ── coming and going ─────────────────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Self:
        if self._entered:
            raise StateError("it was entered before", where="Learner", fix="make a new Learner")
        self._entered = True
        try:
            self._notice.listen()
            self._client.start()
            warm(CASTS)  # compiled loops are loaded while the connection is made, not in the first step
            if not (self._enter_behind(self._follow) if self._follow is not None else self._enter()):
                return self
            if self._client.welcome is not None:
                warm({self._client.welcome.uplink} - set(CASTS))
            self._hooks = StepHooks(
                self._model, self._optimizer, forward=self._on_forward, before=self._before_step, after=self.step
            )
        except BaseException:
            self._leave(LAST_WORDS_S)
            raise
        return self

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
        beside = Beside(shards=first.shards, number=number, news=first.news, may_seed=may_seed)
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

    def _note_beginning(self, note: RecoveryNote) -> None:
        """For the syncer, its status and the report, and for this learner's own log; the lock is held."""
        self._began_from = f"{note.source} {note.donor}".strip()
        self._client.backlog.tell_recovery(note)

    def _enter_behind(self, follow: Follow) -> bool:
        """The same, as rank 0 says."""
        follow.start()
        self._heard(follow.through())
        return not self.left

    def _begins(self, source: str) -> None:
        """On a rank that follows: begin from what rank 0 begins from."""
        if source == Source.SYNCER.value:
            self._rewarms()

    def _rewarms(self) -> None:
        if self._rewarm_steps:
            self._rewarm = Rewarm(self._optimizer, steps=self._rewarm_steps)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._leave(LAST_WORDS_S)

    def close(self) -> None:
        """Leave the run: report, say goodbye; from any thread. Called again it finishes what has failed before.

        If the run is finished, its last weights are in the model afterwards, the same bits in every learner; what was
        trained since a fragment last arrived goes.
        """
        try:
            if not self._closed:
                self._finish()
        finally:
            self._leave(LAST_WORDS_S)

    def _finish(self) -> None:
        """Say what is left to say; take the last weights of a finished run."""
        if self._ranks is not None and self._parted:
            return
        if self._ranks is None:
            self._left_on_notice()
        self._holdings.model.gather_shards()
        try:
            self._holdings.model.check_unchanged()
        except LayoutError as wrong:  # since the last look; too late to mend, not to be told
            log.warning("%s: %s", self.name, wrong)
        if self._follow is not None:
            self._heard(self._follow.through(loops=False))
        else:
            finish(self._hands, self._conduct, finished=self.finished)

    def _leave(self, timeout_s: float) -> None:
        """Give back handler, hooks and threads, each of them whatever becomes of the others. May be called again."""
        self._closed = True
        with ExitStack() as backwards:
            if self._ranks is not None:
                backwards.callback(self._ranks.close)
            for other in self._shards_of_the_run[1:]:
                backwards.callback(other.client.close, timeout_s)
            backwards.callback(self._client.close, timeout_s)
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

    # ── one step ─────────────────────────────────────────────────────────────────────────────────────────────────

    def step(self, tokens: SupportsIndex | None = None) -> None:
        """A step is done: count it, apply what has arrived, take snapshots, report. Called by the optimizer's hook.

        With ``hook=False`` call it yourself after each optimizer step, with the tokens of the step if they vary.
        Raises :class:`SettingError` for counts that are none, and :class:`LayoutError` (every 64 steps it looks) if a
        parameter has been replaced by another object, whose values the run would never see. Once it has left, a step is
        nobody's.
        """
        if self.left:
            return
        if self._hooks is None:
            raise StateError("a step outside of the with block", where="Learner.step", fix="use `with Learner(...)`")
        if self._rewarm is not None:
            self._rewarm.after_step()
        used = self._counts.take_tokens(tokens)
        if self._follow is not None:
            with self._client.news:
                self._counts.take_cursor()  # rank 0 says it for all
            self._step_behind(self._follow)
            return
        if self._core.steps % LOOK_STEPS == 0:
            self._holdings.model.check_unchanged()
            self._watch.look()
        met = self._conduct.meet()
        report = replace(met, stays=met.stays and not self._notice.look())
        with self._client.news:  # no new life may begin between the cursor and the core
            done = StepDone(tokens=used, cursor=self._counts.take_cursor())
            held = self._conduct.release(
                done, again=lambda: not (report.stays and report.loops) or self._run_ahead.is_too_far
            )
        if self._has_ended(report):
            return
        self._give_and_save()
        self._complain()
        if held and self._has_ended(self._run_ahead.wait()):
            return
        with self._client.news:
            self._hands.feed(StepStarted())
        self._fresh, self._evaluated = True, False

    def _step_behind(self, follow: Follow) -> None:
        """The same on a rank that follows: what rank 0 says of this boundary."""
        wrong: LayoutError | None = None
        if self._core.steps % LOOK_STEPS == 0:
            try:
                self._holdings.model.check_unchanged()
            except LayoutError as found:
                wrong = found
        try:
            self._heard(follow.through(failed=wrong is not None))
        except RunFailed:
            if wrong is not None:
                raise wrong from None
            raise

    def _heard(self, word: Word) -> None:
        self._parted = self._parted or word.parted or word.closing

    def tokens(self, n: SupportsIndex) -> None:
        """The step in progress used ``n`` tokens more. Raises :class:`SettingError` if that is no count."""
        self._counts.add_tokens(n)

    def report(self, **numbers: float) -> None:
        """Show a few numbers (``loss=...``) beside this learner's name. They decide nothing; 32 at most."""
        if not all(is_name(key) for key in numbers):
            raise SettingError(
                f"names {list(numbers)}", where="Learner.report", fix="use letters, digits, dots, dashes"
            )
        try:
            plain = {key: float(number) for key, number in numbers.items()}
        except (TypeError, ValueError, OverflowError, RuntimeError) as wrong:
            raise SettingError(f"not a number ({wrong})", where="Learner.report", fix="report plain numbers") from None
        finite = {key: number for key, number in plain.items() if math.isfinite(number)}
        with self._client.news:
            self._client.backlog.note(finite)

    @property
    def cursor(self) -> int:
        """The next batch of the slot. If a step takes more than one, set it between taking them and the step."""
        return self._counts.cursor

    @cursor.setter
    def cursor(self, index: SupportsIndex) -> None:
        self._counts.cursor = index

    def took(self, cursor: SupportsIndex, *, incarnation: int) -> None:
        """As setting :attr:`cursor`, of the slot that this learner had in that life (:attr:`place`): of another one it
        moves nothing."""
        self._counts.tell(cursor, incarnation)

    def until_finished(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, until the run has reached its last round or this learner has left: on notice, or closed."""
        iterator = iter(items)
        while not (self.finished or self._left_on_notice()):
            try:
                item = next(iterator)
            except StopIteration:
                return
            if self.left:  # closed by another thread while the item was made
                return
            yield item

    @property
    def _word(self) -> Word | None:
        return self._follow.word if self._follow is not None else self._conduct.word

    def begins_pass(self, *, training: bool) -> None:
        """A forward pass begins, or an evaluation. Its forward hook tells of the model that was attached; where that is
        not called itself (Lightning calls ``training_step``), say it."""
        if self._hooks is not None:
            self._on_forward(training)

    def _on_forward(self, training: bool) -> None:
        """The step is stamped at the boundary before it; again here, if that stamp has become stale meanwhile."""
        if self.left or self._follow is not None:
            return
        if not training:
            self._evaluated = True
        elif self._fresh:
            self._fresh = False
            overtaken = any(each.core.newest_round >= each.core.clock for each in self._hands.everybody)
            if self._evaluated or overtaken:
                with self._client.news:
                    self._hands.feed(StepStarted(anew=self._evaluated))

    def _before_step(self) -> None:
        if self._follow is None:
            self._hands.before_write()
        else:
            self._holdings.before_write()
        if self._giving is not None:
            self._giving.before_write()
        if self._rewarm is not None:
            self._rewarm.before_step()

    def _give_and_save(self) -> None:
        """Copies of this boundary: for a learner that has asked for this one's state, and for the disk."""
        donations, checkpoints = self._hands.client.donations, self._checkpoints
        try:
            if self._giving is not None and donations is not None and donations.wants_cut():
                began = self._client.clock.now()
                # Without the lock: bases and their versions change in this thread alone.
                cut = self._giving.cut(self._core, layout_hash=self._layout_hash)
                if self._optimizer is None:
                    cut.ready()  # nobody tells when the optimizer writes again
                donations.give(cut)
                self._give_s += self._client.clock.now() - began
            if checkpoints is not None and self._inner is not None and checkpoints.is_due(self._core.steps):
                checkpoints.save(self._model, self._inner, self)
        except StateError as wrong:  # of a kind that stays
            log.warning("%s; this learner neither gives its state to others nor saves it", wrong)
            self._giving = self._checkpoints = None
            if donations is not None:
                donations.give(None)

    def _complain(self) -> None:
        """A later refusal is said once; with ``on_disconnect="raise"`` it, or a lost link, ends the loop."""
        failure = self._hands.failure
        if self._strict and not self.finished:
            if failure is not None:
                raise failure
            lost = next((each.client for each in self._hands.everybody if not each.core.linked), None)
            if lost is not None:
                raise ConnectionLost(f"{lost.trouble or lost.waiting_for}; start this learner again later")
        if failure is not None and not self._said_failure:
            self._said_failure = True
            log.warning("%s; training goes on alone", failure)

    # ── checkpoints ──────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """All that this learner has to remember, beside the model's and the optimizer's own. Call it between steps.

        A flat dictionary of tensors (the bases, copied), numbers and text, as distributed checkpoints take it. Of many
        ranks each has its own: the bases of distributed parameters are distributed tensors, placed alike, so what one
        number of ranks has saved, another can load.
        """
        with self._client.news:
            bases = self._holdings.bases_by_name()
            for other in self._shards_of_the_run[1:]:
                other.holdings.add_bases(bases)
            return to_state_dict(
                self._state(),
                layout_hash=self._layout_hash,
                cut_hash=self._holdings.cut_hash,
                bases=bases,
                rests=self._holdings.rests_by_name(),
            )

    def _state(self) -> LearnerState:
        """Of the core: as of the cut, while a part is being saved; of many ranks, as of the last boundary."""
        if self._word is not None:
            return self._word.state
        if self._follow is None and self._hands.cut is not None:
            return self._hands.cut
        return self._core.snapshot()

    def load_state_dict(self, state_dict: Mapping[str, Any], *, same_life: bool = False) -> None:
        """Go on from a checkpoint, before the ``with`` block. Only fragments that have changed since are then pulled.

        The model must hold the weights of the same checkpoint. ``same_life``: the whole run goes on from a checkpoint
        of which this is a part, so nothing is lost. Raises :class:`StateError`.
        """
        if self._entered:
            raise StateError("already attached", where="Learner.load_state_dict", fix="load before the with block")
        layout = self._holdings.model.layout
        state, cut_hash, bases = from_state_dict(state_dict, layout)
        # What an earlier life owed belongs to an account that is closed.
        rests = rests_of(state_dict, layout) if same_life else {}
        if state.fragments and all(version >= 0 for version, _, _ in state.fragments):
            self._core.restore(state, same_life=same_life)
            if not same_life:
                self._note_beginning(RecoveryNote(source=Source.CHECKPOINT.value))
            self._holdings.restore(bases, cut_hash, rests)
