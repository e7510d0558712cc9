"""Your own training loop as a learner of a decoupled run, in three lines. See :class:`Learner`."""

from __future__ import annotations

import logging
import math
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, Self, SupportsIndex, TypeVar

import torch
from torch import nn

from gruppetto import __version__
from gruppetto.attach.checkpoint import from_state_dict, to_state_dict
from gruppetto.attach.counting import StepCounts
from gruppetto.attach.holdings import Holdings
from gruppetto.attach.hooks import StepHooks
from gruppetto.attach.setting import check_settings, default_name
from gruppetto.attach.sharding import FlatModel
from gruppetto.attach.view import LearnerView
from gruppetto.errors import ConnectionLost, LayoutError, SettingError, StateError
from gruppetto.numerics import warm
from gruppetto.protocol.actions import Apply, LearnerAction, TakeSnapshot
from gruppetto.protocol.events import Boundary, LearnerEvent, StepDone, StepStarted
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.units import Fragment, LearnerId
from gruppetto.runtime.address import SyncerAddress, tls_context
from gruppetto.runtime.backlog import SeedPart
from gruppetto.runtime.client import LearnerClient
from gruppetto.runtime.wire import is_name

__all__ = ["Learner"]

log = logging.getLogger("gruppetto.learner")

Item = TypeVar("Item")

FINAL_WEIGHTS_S = 10.0
"""How long :meth:`Learner.close` waits for the last weights of a finished run."""
LAST_WORDS_S = 2.0
"""How long leaving may take otherwise."""
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

    ``name``: the learner's stable name. A process started again under the same name takes the old one's place; the
    default is new for every process. ``tokens_per_step``: tokens in the batches of one step; without it call
    :meth:`tokens` in the loop. ``cursor``: a function that gives the index of the next batch of the data slot; without
    it every step counts one batch. ``optimizer`` may be None with ``hook=False``: call :meth:`step` after every step.
    ``max_run_ahead``: wait when more than so many steps ahead of the newest round seen, ``run_ahead_timeout_s``
    at most, and not again until the syncer is heard of. ``on_disconnect="raise"`` makes a lost link or a later refusal
    an error at the next step. ``connect_timeout_s``: give up entering after so long (default: never).

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
        address = SyncerAddress.parse(syncer)
        tls = tls_context(ca_file, cert_file, key_file) if address.secure else None
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
        core = LearnerCore(LearnerId(self.name), session=secrets.token_hex(8), layout_hash=self._layout_hash)
        client = LearnerClient(
            core, self._holdings, flat.layout, address, token=token, tls=tls, stall_s=stall_s, library=__version__
        )
        super().__init__(core, client)
        self._hooks: StepHooks | None = None
        self._counts = StepCounts(core, tokens_per_step=tokens_per_step, cursor=cursor)
        self._entered = self._closed = False
        self._fresh, self._evaluated = True, False
        self._deaf_since_round = -1
        self._said_failure = False

    # ── coming and going ─────────────────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Self:
        if self._entered:
            raise StateError("it was entered before", where="Learner", fix="make a new Learner")
        self._entered = True
        try:
            self._client.start()
            warm()  # compiled loops are loaded while the connection is made, not in the first step
            self._wait_until_ready()
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
        """Leave the run: report, say goodbye. Harmless when called again.

        If the run is finished, its last weights are in the model afterwards, the same bits in every learner; what was
        trained since a fragment last arrived goes.
        """
        if self._closed:
            return
        client, core = self._client, self._core
        try:
            self._holdings.model.check_unchanged()
        except LayoutError as wrong:  # since the last look; too late to mend, not to be told
            log.warning("%s: %s", self.name, wrong)
        finished = self.finished
        deadline = client.clock.now() + (FINAL_WEIGHTS_S if finished else LAST_WORDS_S)
        with client.news:
            while core.linked and client.clock.now() < deadline:
                if finished and core.has_arrived:
                    self._feed(Boundary())
                if not (client.backlog.uploads or (finished and client.backlog.downloads)):
                    break
                client.news.wait(deadline - client.clock.now())
            if finished:
                self._holdings.put_bases()
            if finished and core.linked and client.backlog.downloads:
                log.warning("left without the last weights: they had not come after %g s", FINAL_WEIGHTS_S)
        self._leave(LAST_WORDS_S)

    def _leave(self, timeout_s: float) -> None:
        if self._closed:
            return
        self._closed = True
        if self._hooks is not None:
            self._hooks.remove()
        self._client.close(timeout_s)

    def _wait_until_ready(self) -> None:
        client, core = self._client, self._core
        began, said = client.clock.now(), ""
        while True:
            with client.news:
                if client.failure is not None:
                    raise client.failure
                if client.seed_wanted:
                    self._seed()
                if core.has_arrived:
                    self._feed(Boundary())
                if core.ready and core.linked:
                    return
                waiting_for = client.waiting_for
                what = waiting_for.partition(",")[0]  # the same with other figures is no news
                if what == said:
                    client.news.wait(self._left_s(began))
            if what != said and not self._quiet:
                print(f"{self.name}: waiting for {waiting_for}", file=sys.stderr, flush=True)
            said = what
            if self._left_s(began) == 0.0:
                raise ConnectionLost(
                    f"{self.name} was not ready after {self._connect_timeout_s:g} s, waiting for {waiting_for}"
                )

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
        parameter has been replaced by another object, whose values the run would never see.
        """
        if self._hooks is None:
            raise StateError("a step outside of the with block", where="Learner.step", fix="use `with Learner(...)`")
        done = StepDone(tokens=self._counts.take_tokens(tokens), cursor=self._counts.take_cursor())
        if self._core.steps % LOOK_STEPS == 0:
            self._holdings.model.check_unchanged()
        with self._client.news:
            self._feed(done)
        self._complain()
        if self._max_run_ahead is not None:
            self._wait_for_the_run(self._max_run_ahead)
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
        """The items, until the run has reached its last round."""
        iterator = iter(items)
        while not self.finished:
            try:
                item = next(iterator)
            except StopIteration:
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
                case _:
                    for_network.append(action)
        self._client.perform(for_network)

    def _on_forward(self, training: bool) -> None:
        """The step is stamped at the boundary before it; again here, if that stamp has become stale meanwhile."""
        if not training:
            self._evaluated = True
        elif self._fresh:
            self._fresh = False
            core = self._core
            if self._evaluated or core.newest_round >= core.clock:
                with self._client.news:
                    self._feed(StepStarted())

    def _before_step(self) -> None:
        self._holdings.before_write()

    def _wait_for_the_run(self, max_run_ahead: int) -> None:
        """Wait for rounds to close and their weights to come; a syncer that is not heard of is not waited for again."""
        client, core = self._client, self._core
        if core.run_ahead <= max_run_ahead or self._deaf_since_round == core.newest_round:
            return
        began = client.clock.now()
        deadline = began + self._run_ahead_timeout_s
        with client.news:
            while not core.finished and client.failure is None:
                if core.has_arrived:
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
                client.news.wait(left_s)
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

    def state_dict(self) -> dict[str, Any]:
        """All that this learner has to remember, beside the model's and the optimizer's own. Call it between steps.

        A flat dictionary of tensors (the bases, copied), numbers and text, as distributed checkpoints take it.
        """
        with self._client.news:
            return to_state_dict(
                self._core.snapshot(),
                layout_hash=self._layout_hash,
                cut_hash=self._holdings.cut_hash,
                bases=self._holdings.bases_by_name(),
            )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, before the ``with`` block. Only fragments that have changed since are then pulled.

        The model must hold the weights of the same checkpoint. Raises :class:`StateError`.
        """
        if self._entered:
            raise StateError("already attached", where="Learner.load_state_dict", fix="load before the with block")
        state, cut_hash, bases = from_state_dict(state_dict, self._holdings.model.layout)
        if state.fragments and all(version >= 0 for version, _, _ in state.fragments):
            self._core.restore(state)
            self._holdings.restore(bases, cut_hash)
