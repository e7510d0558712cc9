"""What a process begins from that joins a run under way: what the search has found is put in, or turned down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from gruppetto.attach.checkpoints import Checkpoints
from gruppetto.attach.holdings import Holdings
from gruppetto.attach.inner_state import undoing
from gruppetto.attach.taking import put_in, took
from gruppetto.errors import StateError
from gruppetto.protocol.donors import Source
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.units import NEVER, Fragment, Version
from gruppetto.runtime.client import LearnerClient
from gruppetto.runtime.leases import Lease
from gruppetto.runtime.recovering import Find
from gruppetto.runtime.wire import RecoveryNote

__all__ = ["Beginning", "Begun"]

Arrivals = list[tuple[Fragment, Version, Lease]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """Optimizer and buffers are in place; the bases wait to be applied."""

    arrivals: Arrivals
    versions: tuple[Version, ...]
    note: RecoveryNote
    place: str = ""
    """The checkpoint that it is."""


class Beginning:
    """Puts finds in. The parameters it leaves alone: they become the run's Θ when the bases are applied.

    Not the donor's own parameters: its steps since its last synchronisation would then be merged twice, as part of the
    donor's contribution and of this learner's.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        holdings: Holdings,
        checkpoints: Checkpoints | None,
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._holdings, self._checkpoints = holdings, checkpoints
        self._place = ""
        self._undo: Callable[[], None] | None = None

    def undo(self) -> None:
        """Another rank cannot begin from what was put in last: optimizer and buffers are as they were before."""
        if self._undo is not None:
            self._undo()

    def take(self, find: Find, client: LearnerClient) -> Begun | None:
        """None if it does not fit; the search then goes on."""
        recovering = client.recovering
        assert recovering is not None
        if self._holdings.inbox is not None:
            self._undo = undoing(self._model, self._optimizer)
        try:
            arrivals = self._put_in(find, client)
        except StateError as wrong:
            recovering.decline(wrong)
            return None
        except Exception as wrong:  # no memory for it, or our mistake: there are other rungs
            if find.source is Source.SYNCER:
                raise
            recovering.decline(f"{type(wrong).__name__}: {wrong}")
            return None
        by_fragment = {fragment: version for fragment, version, _ in arrivals}
        fragments = map(Fragment, range(self._holdings.model.num_fragments))
        versions = tuple(by_fragment.get(p, NEVER) for p in fragments)
        return Begun(arrivals=arrivals, versions=versions, note=recovering.accept(), place=self._place)

    def _put_in(self, find: Find, client: LearnerClient) -> Arrivals:
        match find.source:
            case Source.PEER:
                return self._from_peer(find)
            case Source.CHECKPOINT:
                assert client.welcome is not None
                return self._from_checkpoint(client.welcome.welcome.run_id, client.core)
            case _:
                return []

    def _from_peer(self, find: Find) -> Arrivals:
        state = find.state
        assert state is not None
        found = took(self._model, self._holdings, state)
        put_in(self._model, self._optimizer, found.inner)
        arrivals: Arrivals = []
        for fragment, values in found.bases.items():
            lease = self._holdings.lend(fragment)
            lease.values[:] = values
            arrivals.append((fragment, state.manifest.versions[fragment], lease))
        return arrivals

    def _from_checkpoint(self, run_id: str, core: LearnerCore) -> Arrivals:
        """Its bases serve where the run has stood still meanwhile; the core takes no others."""
        assert self._checkpoints is not None
        layout, cut = self._holdings.model.layout, self._holdings.model.fragmentation
        found, place = self._checkpoints.recover(run_id, layout, self._model, self._optimizer)
        (state, cut_hash, bases), self._place = found, str(place)
        arrivals: Arrivals = []
        if self._holdings.inbox is not None:
            return arrivals  # of many ranks all would have to find them: the weights come from the syncer
        if cut is None or cut_hash != cut.fragmentation_hash or not core.still_stands(state.epoch):
            return arrivals
        for p, (version, _, _) in enumerate(state.fragments):
            if version != NEVER:
                lease = self._holdings.lend(Fragment(p))
                self._holdings.model.pack(bases, p, lease.values)
                arrivals.append((Fragment(p), version, lease))
        return arrivals
