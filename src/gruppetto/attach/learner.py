"""Your own training loop as a learner of a decoupled run, in three lines. See :class:`Learner`."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, SupportsIndex

import torch
from torch import nn

from gruppetto import __version__
from gruppetto.attach.boundaries import Boundaries
from gruppetto.attach.checkpoints import Checkpoints
from gruppetto.attach.conduct import Alone, Conduct
from gruppetto.attach.counting import StepCounts, whole_number
from gruppetto.attach.deserting import Whereabouts
from gruppetto.attach.follow import Follow
from gruppetto.attach.giving import Giving, check_manifest
from gruppetto.attach.hands import Hands
from gruppetto.attach.holdings import Holdings
from gruppetto.attach.hooks import StepHooks, check_free
from gruppetto.attach.lead import Lead
from gruppetto.attach.notice import Notice, NoticeHook
from gruppetto.attach.optimizers import Optimizers, as_one
from gruppetto.attach.parting import LAST_WORDS_S
from gruppetto.attach.portions import GivingTogether
from gruppetto.attach.ranks import Ranks, ranks_of
from gruppetto.attach.rendezvous import say_if_it_may_not_come_back
from gruppetto.attach.run_ahead import RunAhead
from gruppetto.attach.setting import (
    check_exposure,
    check_for_mailbox,
    check_papers,
    check_settings,
    check_switches,
    default_name,
    donation_place,
    refuse_ranks_by_mail,
)
from gruppetto.attach.sharding import FlatModel
from gruppetto.attach.taking import Taking, needs_of
from gruppetto.attach.together import come_together
from gruppetto.attach.watching import Glance, Watch, say_if_untrained
from gruppetto.errors import RunFailed, SettingError, StateError
from gruppetto.home import at_home
from gruppetto.numerics import warm
from gruppetto.numerics.codec import CASTS
from gruppetto.numerics.downlink import DOWNLINKS
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.messages import Donor, in_a_line
from gruppetto.protocol.units import LearnerId
from gruppetto.runtime.address import tls_context
from gruppetto.runtime.address_book import address_book
from gruppetto.runtime.client import LearnerClient
from gruppetto.runtime.clock import MonotonicClock
from gruppetto.runtime.joining import Visit
from gruppetto.runtime.mailbox.address import MailboxAddress
from gruppetto.runtime.rank_client import RankClient
from gruppetto.runtime.security.fresh import PeerTls

__all__ = ["Learner"]

SAVE_EVERY_STEPS = 500
"""Between two checkpoints, where ``checkpoints`` is a directory."""


class Learner(Boundaries):
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
    state directory on this machine, where every syncer says where it listens. Or ``s3://BUCKET/PREFIX``, the mailbox
    through which it serves where nothing can listen; that takes neither token nor certificates, one rank, and no
    ``donate``.

    ``name``: the learner's stable name. A process started again under the same name takes the old one's place; the
    default is new for every process. ``tokens_per_step``: tokens in the batches of one step; without it call
    :meth:`tokens` in the loop. ``cursor``: a function that gives the index of the next batch of the data slot; without
    it every step counts one batch. ``optimizer``: one, or a list of several, of which the last to step ends the step of
    the loop; None with ``hook=False``: call :meth:`step` after every step.
    ``max_run_ahead``: wait when more than so many steps ahead of the newest round seen (what is due next of its weights
    is here), ``run_ahead_timeout_s`` at most, and not again until the syncer is heard of; never for a round that waits
    for another step of this learner. ``on_disconnect="raise"`` makes a lost link or a later refusal
    an error at the next step. ``max_bytes_per_s``: what contributions, and its state for those who begin, go up at
    together, at most (of each rank).
    ``connect_timeout_s``: give up entering after so long (default: never).
    ``on_checkpoint``: called as ``on_checkpoint(learner, mark)`` when a checkpoint of the whole run is cut, at a step
    boundary; it saves model, optimizer and :meth:`state_dict`, and returns where, or a future of that (see
    :class:`gruppetto.attach.part.Parts`). Without it this learner is left out of such checkpoints.

    A process that begins in a run under way takes optimizer state, buffers and weights from another learner, if one
    gives them, else from its own last checkpoint in ``checkpoints`` (a directory, or a :class:`Checkpoints`), else
    weights alone from the syncer (a directory gets a checkpoint every 500 steps); its learning rate then rises over
    ``rewarm_steps`` steps (:attr:`lr_factor`). ``recover=False``: always the last, without the ramp. ``donate``: where
    it gives its own state to others; "auto": on this machine if the syncer is on it, else nowhere; HOST:PORT: there,
    under the run's token, or with certificates of both sides; None: nowhere. Whatever
    comes from a learner's checkpoint or a peer, the parameters are the run's, never those of a peer's own steps.
    Leaving on notice: :meth:`leave`, ``notice`` (a :class:`threading.Event`, or a function polled at every boundary
    that is true when it is time) or, with ``leave_on_sigterm=True``, SIGTERM. At the next boundary the learner gives
    its work of all fragments with its true counts, says goodbye and has :attr:`left`, ``leave_within_s`` later at most;
    :meth:`until_finished` then ends, and a loop of your own has to look at :attr:`left`.

    ``ca_file`` (the authority by which the syncer is known), ``cert_file`` and ``key_file``, or ``token``: this
    learner's own papers, see ``gruppetto certs``. Plain text to another machine takes ``allow_plaintext``.

    A model that is spread over ranks (DDP, FSDP2, hybrid or tensor parallel) is one learner: every rank makes one of
    these, with the same name or none, enters it, steps and leaves it. Tokens and cursor are what rank 0 says, for all;
    what else it decides by has to be the same on all ranks, else all of them refuse.
    ``checkpoints`` and ``on_checkpoint`` are given to all ranks, which write together where all of them see it;
    ``donate=HOST:PORT`` is each rank's own.
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
        ca_file: str | Path | None = None,
        cert_file: str | Path | None = None,
        key_file: str | Path | None = None,
        allow_plaintext: bool = False,
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
        max_bytes_per_s: float | None = None,
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
            max_bytes_per_s=max_bytes_per_s,
        )
        check_switches(
            trainable_only=trainable_only,
            hook=hook,
            allow_plaintext=allow_plaintext,
            quiet=quiet,
            recover=recover,
            leave_on_sigterm=leave_on_sigterm,
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
        by_mail = any(isinstance(address, MailboxAddress) for address in addresses)
        if by_mail:
            check_for_mailbox(donate=donate, token=token, papers=(ca_file, cert_file, key_file))
            donate = None
        check_papers(book, ca_file=ca_file, cert_file=cert_file, key_file=key_file)
        donates = donation_place(
            donate,
            addresses,
            token=token,
            has_optimizer=optimizer is not None,
            has_certificate=ca_file is not None and cert_file is not None,
        )
        self._checkpoints = (
            Checkpoints(checkpoints, every_steps=SAVE_EVERY_STEPS)
            if isinstance(checkpoints, str | Path)
            else checkpoints
        )
        check_exposure(addresses, allow_plaintext=allow_plaintext)
        secure = any(address.secure for address in addresses)
        tls = tls_context(ca_file, cert_file, key_file) if secure else None
        peers = None
        if secure and ca_file is not None and cert_file is not None and key_file is not None:
            peers = PeerTls(ca=at_home(ca_file), cert=at_home(cert_file), key=at_home(key_file))
        self._model, self._optimizer = model, optimizer if hook else None
        self._strict = on_disconnect == "raise"
        self._connect_timeout_s = connect_timeout_s
        self._quiet = quiet
        self._rewarm_steps = whole_number(rewarm_steps, "Learner.rewarm_steps")
        members = ranks_of(model, process_group)
        if members is not None and by_mail:
            refuse_ranks_by_mail()
        self._follow: Follow | None = None
        self._whereabouts: Whereabouts | None = None
        self._ranks = None if members is None else Ranks(members, device=next(model.parameters()).device)
        if self._ranks is not None and self._ranks.leads:
            say_if_it_may_not_come_back()
        flat = FlatModel(model, trainable_only=trainable_only)
        session = secrets.token_hex(8)
        if self._ranks is not None:
            kept = self._checkpoints
            saves = "" if kept is None else f"every {kept.every_steps} steps in {kept.directory}"
            saves += " and parts" if on_checkpoint is not None else ""
            self.name, session, gives = come_together(
                self._ranks,
                flat,
                name=name,
                fallback=self.name,
                session=session,
                saves=saves,
                donates="" if donate is None else donate,
                gives=donates is not None,
                # What rank 0 decides by for all, or what changes the weights of each.
                alike={
                    "trainable_only": trainable_only,
                    "optimizer": None if optimizer is None else type(optimizer).__name__,
                    "hook": hook,
                    "recover": recover,
                    "rewarm_steps": self._rewarm_steps,
                    "on_disconnect": on_disconnect,
                    "connect_timeout_s": None if connect_timeout_s is None else float(connect_timeout_s),
                    "max_run_ahead": None if max_run_ahead is None else int(max_run_ahead),
                    "run_ahead_timeout_s": float(run_ahead_timeout_s),
                    "leave_within_s": float(leave_within_s),
                },
            )
            donates = donates if gives else None
            self._whereabouts = Whereabouts(
                self._ranks.store, session, rank=self._ranks.rank, size=self._ranks.size, clock=MonotonicClock()
            )
        self._layout_hash, self._trainable_only = flat.layout.layout_hash, trainable_only
        self._glance = Glance(model)
        self._watch = Watch(model, (tensor.name for tensor in flat.layout.tensors), learner=self.name)
        if optimizer is not None:
            say_if_untrained(optimizer, model.parameters(), learner=self.name)
        self._holdings = Holdings(flat, by_agreement=self._ranks is not None)
        core = LearnerCore(
            LearnerId(self.name),
            session=session,
            layout_hash=self._layout_hash,
            recovers=recover and optimizer is not None,
        )
        self._inner: torch.optim.Optimizer | None = optimizer
        self._hooks: StepHooks | None = None
        self._counts = StepCounts(core, tokens_per_step=tokens_per_step, cursor=cursor)
        self._entered = self._closed = self._parted = False
        self._fresh, self._evaluated = True, False
        self._said_failure = False
        self._giving: Giving | None = None
        self._due = ""
        fits = (
            partial(check_manifest, model, optimizer, base_numel=sum(t.numel for t in flat.layout.tensors))
            if optimizer is not None
            else lambda manifest: None
        )
        needs = partial(needs_of, self._holdings)
        if self._ranks is not None and not self._ranks.leads:

            def visit(donor: Donor) -> Visit:
                return Visit(
                    donor.address,
                    learner=self.name,
                    session=session,
                    token=token,
                    stall_s=stall_s,
                    fits=fits,
                    needs=needs,
                    tls=None if peers is None else peers.as_guest_of(donor.learner),
                )

            self._taking = Taking(model, optimizer, self._holdings, rank=self._ranks.rank, visit=visit)
            if donates is not None and optimizer is not None:
                self._giving = GivingTogether(model, optimizer, self._holdings, self._ranks)
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
                    taken=self._holdings.receipts.taken,
                    max_bytes_per_s=max_bytes_per_s,
                    donates=donates,
                    peers=peers,
                ),
                begin=self._begins,
                notice=self._notice.look,
                save=None if on_checkpoint is None else lambda mark: on_checkpoint(self, mark),
                taking=self._taking,
            )
            if self._giving is not None and self._follow.client.donations is not None:
                self._follow.client.donations.on_idle = self._giving.forget
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
            fits=fits,
            needs=needs,
            peers=peers,
            also=None if lead is None else lead.order,
            max_bytes_per_s=max_bytes_per_s,
        )
        super().__init__(core, client)
        save = None if on_checkpoint is None else lambda mark: on_checkpoint(self, mark)
        self._hands = self._clocked = Hands(core, client, self._holdings, save)
        self._conduct: Conduct = Alone(self._hands) if lead is None else lead
        self._run_ahead = self._paced = RunAhead(
            self._hands, self._conduct, self._notice, most=max_run_ahead, timeout_s=run_ahead_timeout_s
        )
        if lead is not None:
            lead.serve(self._hands)
        if donates is not None and optimizer is not None:
            self._giving = (
                Giving(model, optimizer, self._holdings)
                if self._ranks is None
                else GivingTogether(model, optimizer, self._holdings, self._ranks, dropped=self._drop_portions)
            )
        if self._giving is not None and client.donations is not None:
            client.donations.on_idle = self._giving.forget

    # ── coming and going ─────────────────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Self:
        if self._entered:
            raise StateError("it was entered before", where="Learner", fix="make a new Learner")
        check_free(self._model, self._optimizer)
        self._entered = True
        try:
            self._notice.listen()
            self._client.start()
            if self._whereabouts is not None:
                self._whereabouts.start()
            warm(CASTS)  # compiled loops are loaded while the connection is made, not in the first step
            if not (self._enter_behind(self._follow) if self._follow is not None else self._enter()):
                return self
            if (welcome := self._client.welcome) is not None:
                warm({welcome.uplink, *DOWNLINKS[welcome.downlink].codecs} - set(CASTS))
            self._hooks = StepHooks(
                self._model, self._optimizer, forward=self._on_forward, before=self._before_step, after=self.step
            )
        except BaseException:
            self._leave(LAST_WORDS_S)
            raise
        if self._whereabouts is not None:
            self._whereabouts.between()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        deserted = self._whereabouts.deserted if self._whereabouts is not None else ""
        self._leave(LAST_WORDS_S, in_a_line(f"{kind.__name__}: {error}") if issubclass(kind, Exception) else "")
        if deserted and issubclass(kind, RuntimeError):  # of a collective of the loop, which shows that, but not why
            raise RunFailed(deserted) from error

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
