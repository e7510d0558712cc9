"""What a learner keeps of itself, and gives: its state for distributed checkpoints, its own, and other learners."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from gruppetto.attach.checkpoint import from_state_dict, rests_of, to_state_dict
from gruppetto.attach.checkpoints import Checkpoints
from gruppetto.attach.data_share import share_of
from gruppetto.attach.giving import Giving
from gruppetto.attach.holdings import Holdings
from gruppetto.attach.portions import GivingTogether
from gruppetto.attach.ranks import Ranks
from gruppetto.attach.telling import Telling
from gruppetto.errors import StateError
from gruppetto.protocol.donors import Source
from gruppetto.protocol.learner import LearnerState
from gruppetto.runtime.client import LearnerClient
from gruppetto.runtime.portion_donor import PortionServer
from gruppetto.runtime.wire import RecoveryNote

if TYPE_CHECKING:
    from gruppetto.attach.learner import Learner

__all__ = ["Keeping"]

log = logging.getLogger("gruppetto.learner")


class Keeping(Telling):
    """That side of a :class:`~gruppetto.attach.learner.Learner`."""

    _model: nn.Module
    _optimizer: torch.optim.Optimizer | None
    """The one whose steps are boundaries."""
    _inner: torch.optim.Optimizer | None
    _holdings: Holdings
    _layout_hash: str
    _giving: Giving | None
    _checkpoints: Checkpoints | None
    _ranks: Ranks | None
    _entered: bool

    @property
    def ranks(self) -> Ranks | None:
        """What the ranks of this learner say to each other; None if it has one."""
        return self._ranks

    @property
    def session(self) -> str:
        """This life of this process, the same on all of its ranks."""
        return self._core.session

    @property
    def data_share(self) -> tuple[int, int]:
        """Which of how many equal shares of its slot's items this rank takes. Raises :class:`SettingError` where that
        cannot be seen, as with tensor parallelism."""
        return share_of(self._model, self._ranks)

    def agree(self, text: str) -> str:
        """What rank 0 has passed, on all ranks: collective, between two steps."""
        if self._ranks is None:
            return text
        if not self._ranks.leads:
            return self._ranks.hear().decode()
        self._ranks.tell(text.encode())
        return text

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
        hands = self._clocked
        if hands is not None and hands.cut is not None:
            return hands.cut
        return self._core.snapshot() if self._word is None else self._word.state

    @property
    def marks_kept(self) -> tuple[str, ...]:
        """While ``on_checkpoint`` is called: the older checkpoints that the run can still go on from.

        Parts of checkpoints that the syncer has taken by its timer, and that are not among these, may go.
        """
        return () if self._clocked is None else self._clocked.kept

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
            self._holdings.restore(bases, cut_hash, rests, num_fragments=len(state.fragments))

    def _note_beginning(self, note: RecoveryNote) -> None:
        """For the syncer, its status and the report, and for this learner's own log; the lock is held."""
        self._began_from = f"{note.source} {note.donor}".strip()
        self._client.backlog.tell_recovery(note)

    # ── copies of a boundary ─────────────────────────────────────────────────────────────────────────────────────

    def _give_and_save(self) -> None:
        """For a learner that has asked for this one's state, and for the disk. Of many ranks all come here together."""
        checkpoints = self._checkpoints
        try:
            self._give()
            if checkpoints is not None and self._inner is not None and checkpoints.is_due(self._core.steps):
                checkpoints.save(self._model, self._inner, cast("Learner", self))
        except StateError as wrong:  # of a kind that stays
            log.warning("%s; this learner neither gives its state to others nor saves it", wrong)
            self._giving = self._checkpoints = None
            if isinstance(self._client, LearnerClient) and self._client.donations is not None:
                self._client.donations.give(None)

    def _give(self) -> None:
        if self._ranks is not None:
            self._give_portion()
            return
        donations = self._client.donations if isinstance(self._client, LearnerClient) else None
        if self._giving is not None and donations is not None and donations.wants_cut():
            began = self._client.clock.now()
            # Without the lock: bases and their versions change in this thread alone.
            cut = self._giving.cut(self._core, layout_hash=self._layout_hash)
            if self._optimizer is None:
                cut.ready()  # nobody tells when the optimizer writes again
            donations.give(cut)
            self._give_s += self._client.clock.now() - began

    def _portion_due(self) -> str:
        """The cut of which this rank is to give its portion now, as rank 0 has said at this boundary; "" for none."""
        raise NotImplementedError

    def _give_portion(self) -> None:
        """Of many ranks: all of them come here at the same boundary."""
        due, giving, donations = self._portion_due(), self._giving, self._client.donations
        if not due or not isinstance(giving, GivingTogether):
            return
        began = self._client.clock.now()
        address = donations.address if isinstance(donations, PortionServer) else None
        try:
            cut = giving.cut_portion(self._core, due, address=address, layout_hash=self._layout_hash)
        except StateError as wrong:  # the same on all ranks
            log.warning("%s; this learner gives its state to nobody", wrong)
            self._giving = None
            if donations is not None and address is None:
                donations.give(None)
            return
        if self._optimizer is None:
            cut.ready()
        if isinstance(donations, PortionServer):
            donations.hold(cut)
        giving.wait_for_all()  # nobody is told of it before every portion can be had
        if donations is not None and not isinstance(donations, PortionServer):
            donations.give(cut)
        self._give_s += self._client.clock.now() - began
