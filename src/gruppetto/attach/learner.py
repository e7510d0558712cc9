"""Your own training loop as a learner of a decoupled run, in three lines. See :class:`Learner`."""

from __future__ import annotations

import logging
import math
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
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
from gruppetto.attach.giving import Giving, check_manifest
from gruppetto.attach.holdings import Holdings
from gruppetto.attach.hooks import StepHooks
from gruppetto.attach.notice import Notice, NoticeHook
from gruppetto.attach.parting import part
from gruppetto.attach.rewarm import Rewarm
from gruppetto.attach.setting import check_settings, default_name, donation_place
from gruppetto.attach.sharding import FlatModel
from gruppetto.attach.view import LearnerView
from gruppetto.errors import ConnectionLost, LayoutError, SettingError, StateError
from gruppetto.numerics import warm
from gruppetto.numerics.codec import CASTS
from gruppetto.protocol.actions import Apply, LearnerAction, SaveState, TakeSnapshot
from gruppetto.protocol.donors import Source
from gruppetto.protocol.events import Boundary, LearnerEvent, Recovered, StateSaved, StepDone, StepStarted
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.state import LearnerState
from gruppetto.protocol.units import Fragment, LearnerId
from gruppetto.runtime.address import SyncerAddress, tls_context
from gruppetto.runtime.backlog import SeedPart
from gruppetto.runtime.client import LearnerClient
from gruppetto.runtime.recovering import Find
from gruppetto.runtime.wire import RecoveryNote, is_name

__all__ = ["Learner"]

log = logging.getLogger("gruppetto.learner")

Item = TypeVar("Item")

FINAL_WEIGHTS_S = 10.0
"""How long :meth:`Learner.close` waits for the last weights of a finished run."""
LAST_WORDS_S = 2.0
"""How long leaving may take otherwise."""
NOTICE_POLL_S = 0.5
"""Whoever waits looks as often whether it is to leave."""
SAVE_EVERY_STEPS = 500
"""Between two checkpoints, where ``checkpoints`` is a directory."""
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

    ``syncer``: its address; several with commas between them, a syncer and its standbys, are tried in turn.

    ``name``: the learner's stable name. A process started again under the same name takes the old one's place; the
    default is new for every process. ``tokens_per_step``: tokens in the batches of one step; without it call
    :meth:`tokens` in the loop. ``cursor``: a function that gives the index of the next batch of the data slot; without
    it every step counts one batch. ``optimizer`` may be None with ``hook=False``: call :meth:`step` after every step.
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

    Pass the model that you call: evaluation passes (``model.eval()`` or no gradients) are told by its forward hook.
    Raises :class:`SettingError`, :class:`LayoutError` and :class:`AddressError` for what you can mend, and
    :class:`Refused` if the syncer does not take this learner in.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        *,
        syncer: str,
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
    ) -> None:
        self.name = default_name() if name is None else name
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
        addresses = SyncerAddress.parse_all(syncer)
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
        self._max_run_ahead, self._run_ahead_timeout_s = max_run_ahead, run_ahead_timeout_s
        self._quiet = quiet
        flat = FlatModel(model, trainable_only=trainable_only)
        self._layout_hash = flat.layout.layout_hash
        self._holdings = Holdings(flat)
        core = LearnerCore(
            LearnerId(self.name),
            session=secrets.token_hex(8),
            layout_hash=self._layout_hash,
            recovers=recover and optimizer is not None,
        )
        client = LearnerClient(
            core,
            self._holdings,
            flat.layout,
            addresses,
            token=token,
            tls=tls,
            stall_s=stall_s,
            library=__version__,
            donates=donates,
            has_own=self._checkpoints is not None and self._checkpoints.any(),
            fits=partial(check_manifest, model, optimizer, base_numel=sum(t.numel for t in flat.layout.tensors))
            if optimizer is not None
            else lambda manifest: None,
        )
        super().__init__(core, client)
        self._inner = optimizer
        self._rewarm_steps = whole_number(rewarm_steps, "Learner.rewarm_steps")
        self._giving = None if donates is None or optimizer is None else Giving(model, optimizer, self._holdings)
        if self._giving is not None and client.donations is not None:
            client.donations.on_idle = self._giving.forget
        self._hooks: StepHooks | None = None
        self._counts = StepCounts(core, tokens_per_step=tokens_per_step, cursor=cursor)
        self._entered = self._closed = self._parted = False
        self._fresh, self._evaluated = True, False
        self._deaf_since_round = -1
        self._said_failure = False
        self._on_checkpoint = on_checkpoint
        self._cut: LearnerState | None = None
        """While a part is being saved: the core as of the cut."""
        self._saving = 0

    # ── coming and going ─────────────────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Self:
        if self._entered:
            raise StateError("it was entered before", where="Learner", fix="make a new Learner")
        self._entered = True
        try:
            self._notice.listen()
            self._client.start()
            warm(CASTS)  # compiled loops are loaded while the connection is made, not in the first step
            self._wait_until_ready()
            if self._left_on_notice():
                return self
            if self._client.welcome is not None:
                warm({self._client.welcome.uplink} - set(CASTS))
            self._hooks = StepHooks(
                self._model, self._optimizer, forward=self._on_forward, before=self._before_step, after=self.step
            )
            with self._client.news:
                self._feed(StepStarted())
        except BaseException:
            self._leave(LAST_WORDS_S)
            raise
        return self

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
        self._left_on_notice()
        client, core = self._client, self._core
        try:
            self._holdings.model.check_unchanged()
        except LayoutError as wrong:  # since the last look; too late to mend, not to be told
            log.warning("%s: %s", self.name, wrong)
        finished = self.finished
        deadline = client.clock.now() + (FINAL_WEIGHTS_S if finished else LAST_WORDS_S)
        with client.news:
            while core.linked and client.clock.now() < deadline:
                if finished and core.wants_boundary:
                    self._feed(Boundary())
                if not (self._saving or client.backlog.uploads or (finished and client.backlog.downloads)):
                    break
                client.news.wait(deadline - client.clock.now())
            if finished:
                self._holdings.put_bases()
            if finished and core.linked and client.backlog.downloads:
                log.warning("left without the last weights: they had not come after %g s", FINAL_WEIGHTS_S)

    def _leave(self, timeout_s: float) -> None:
        """Give back handler, hooks and threads, each of them whatever becomes of the others. May be called again."""
        self._closed = True
        with ExitStack() as backwards:
            backwards.callback(self._client.close, timeout_s)
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
        if self.left or not self._notice.look():
            return self.left
        self._parted = True
        part(self._client, self._feed, within_s=self._notice.within_s)
        return True

    def _wait_until_ready(self) -> None:
        client, core = self._client, self._core
        began, said = client.clock.now(), ""
        while not self._notice.look():
            with client.news:
                if client.failure is not None:
                    raise client.failure
                if client.seed_wanted:
                    self._seed()
                if core.wants_boundary:
                    self._feed(Boundary())
                if core.ready and core.linked:
                    return
                find = client.find
                waiting_for = client.waiting_for
                what = waiting_for.partition(",")[0]  # the same with other figures is no news
                if what == said and find is None:
                    left_s = self._left_s(began)
                    client.news.wait(NOTICE_POLL_S if left_s is None else min(NOTICE_POLL_S, left_s))
            if what != said and not self._quiet:
                print(f"{self.name}: waiting for {waiting_for}", file=sys.stderr, flush=True)
            said = what
            if find is not None:
                self._begin_from(find)
            if self._left_s(began) == 0.0:
                raise ConnectionLost(
                    f"{self.name} was not ready after {self._connect_timeout_s:g} s, waiting for {waiting_for}"
                )

    def _begin_from(self, find: Find) -> None:
        """Look at what the search for a state has brought, and begin from it if it fits. The lock is not held."""
        assert self._inner is not None
        beginning = Beginning(self._model, self._inner, self._holdings, self._checkpoints)
        found = beginning.take(find, self._client)
        if found is None:
            return
        if find.source is Source.SYNCER and self._rewarm_steps:
            self._rewarm = Rewarm(self._optimizer, steps=self._rewarm_steps)
        with self._client.news:
            stands = self._core.search_stands
            for fragment, version, lease in found.arrivals:
                if stands:
                    self._holdings.arrive(fragment, version, lease)
                else:
                    lease.release()
            self._client.backlog.tell_recovery(found.note)
            self._feed(Recovered(versions=found.versions if stands else ()))

    def _left_s(self, began: float) -> float | None:
        if self._connect_timeout_s is None:
            return None
        return max(0.0, began + self._connect_timeout_s - self._client.clock.now())

    def _seed(self) -> None:
        self._client.seed_wanted = False
        self._holdings.model.check_finite()
        for p in range(len(self._core.fragments)):
            fragment = Fragment(p)
            self._client.backlog.seed(SeedPart(fragment=fragment, theta=self._holdings.seed_part(fragment)))
        self._client.perform(())

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
        done = StepDone(tokens=self._counts.take_tokens(tokens), cursor=self._counts.take_cursor())
        if self._core.steps % LOOK_STEPS == 0:
            self._holdings.model.check_unchanged()
        with self._client.news:
            self._feed(done)
        if self._left_on_notice():
            return
        self._give_and_save()
        self._complain()
        if self._max_run_ahead is not None:
            self._wait_for_the_run(self._max_run_ahead)
            if self._left_on_notice():
                return
        with self._client.news:
            self._feed(StepStarted())
        self._fresh, self._evaluated = True, False

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

    def _feed(self, event: LearnerEvent) -> None:
        """Take one event to the core and carry out what it decides, in order; the lock is held."""
        now = self._client.clock.now
        for_network: list[LearnerAction] = []
        for action in self._core.step(now(), event):
            match action:
                case Apply():
                    before = now()
                    self._holdings.apply(action)
                    self._apply_s += now() - before
                case TakeSnapshot():
                    before = now()
                    self._holdings.take_snapshots(action.fragments)
                    self._snapshot_s += now() - before
                case SaveState():
                    self._save_part(action)
                case _:
                    for_network.append(action)
        self._client.perform(for_network)

    def _on_forward(self, training: bool) -> None:
        """The step is stamped at the boundary before it; again here, if that stamp has become stale meanwhile."""
        if self.left:
            return
        if not training:
            self._evaluated = True
        elif self._fresh:
            self._fresh = False
            core = self._core
            if self._evaluated or core.newest_round >= core.clock:
                with self._client.news:
                    self._feed(StepStarted(anew=self._evaluated))

    def _before_step(self) -> None:
        self._holdings.before_write()
        if self._giving is not None:
            self._giving.before_write()
        if self._rewarm is not None:
            self._rewarm.before_step()

    def _give_and_save(self) -> None:
        """Copies of this boundary: for a learner that has asked for this one's state, and for the disk."""
        donations, checkpoints = self._client.donations, self._checkpoints
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

    def _wait_for_the_run(self, max_run_ahead: int) -> None:
        """Wait for rounds to close and their weights to come; a syncer that is not heard of is not waited for again."""
        client, core = self._client, self._core
        if core.run_ahead <= max_run_ahead or self._deaf_since_round == core.newest_round:
            return
        began = client.clock.now()
        deadline = began + self._run_ahead_timeout_s
        with client.news:
            while not core.finished and client.failure is None and not self._notice.look():
                if core.wants_boundary:
                    self._feed(Boundary())
                if core.run_ahead <= max_run_ahead and not client.backlog.downloads:
                    break
                left_s = deadline - client.clock.now()
                if left_s <= 0:
                    self._deaf_since_round = core.newest_round
                    log.warning(
                        "%s: no round has closed in %g s; trains on without waiting",
                        self.name,
                        self._run_ahead_timeout_s,
                    )
                    break
                client.news.wait(min(NOTICE_POLL_S, left_s))
        self._waited_s += client.clock.now() - began

    def _complain(self) -> None:
        """A later refusal is said once; with ``on_disconnect="raise"`` it, or a lost link, ends the loop."""
        failure = self._client.failure
        if self._strict and not self.finished:
            if failure is not None:
                raise failure
            if not self._core.linked:
                raise ConnectionLost(
                    f"{self._client.trouble or self._client.waiting_for}; start this learner again later"
                )
        if failure is not None and not self._said_failure:
            self._said_failure = True
            log.warning("%s; training goes on alone", failure)

    # ── checkpoints ──────────────────────────────────────────────────────────────────────────────────────────────

    def _save_part(self, action: SaveState) -> None:
        """Have this learner's part of a checkpoint saved, as everything is now; the lock is held."""
        self._saving += 1
        if self._on_checkpoint is None:
            self._part_saved(action.mark, ok=False, text="it saves no parts: it was attached without on_checkpoint")
            return
        self._cut = action.state
        try:
            where = self._on_checkpoint(self, action.mark)
        except Exception as wrong:
            log.warning("%s: no part of checkpoint %s: %s", self.name, action.mark, wrong)
            self._part_saved(action.mark, ok=False, text=f"{type(wrong).__name__}: {wrong}")
            return
        finally:
            self._cut = None
        if isinstance(where, Future):
            where.add_done_callback(lambda written: self._part_written(action.mark, written))
        else:
            self._part_saved(action.mark, ok=True, text=str(where))

    def _part_written(self, mark: str, written: Future[str]) -> None:
        """In whatever thread has written it."""
        wrong = None if written.cancelled() else written.exception()
        with self._client.news:
            if wrong is not None or written.cancelled():
                log.warning("%s: no part of checkpoint %s: %s", self.name, mark, wrong or "cancelled")
                self._part_saved(mark, ok=False, text=f"{type(wrong).__name__}: {wrong}" if wrong else "cancelled")
            else:
                self._part_saved(mark, ok=True, text=str(written.result()))

    def _part_saved(self, mark: str, *, ok: bool, text: str) -> None:
        self._saving -= 1
        self._client.perform(self._core.step(self._client.clock.now(), StateSaved(mark=mark, ok=ok, text=text)))
        self._client.news.notify_all()

    def state_dict(self) -> dict[str, Any]:
        """All that this learner has to remember, beside the model's and the optimizer's own. Call it between steps.

        A flat dictionary of tensors (the bases, copied), numbers and text, as distributed checkpoints take it.
        """
        with self._client.news:
            return to_state_dict(
                self._core.snapshot() if self._cut is None else self._cut,
                layout_hash=self._layout_hash,
                cut_hash=self._holdings.cut_hash,
                bases=self._holdings.bases_by_name(),
                rests=self._holdings.rests_by_name(),
            )

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
                self._client.backlog.tell_recovery(RecoveryNote(source=Source.CHECKPOINT.value))
            self._holdings.restore(bases, cut_hash, rests)
