"""Everything of a learner that has values: bases, snapshots, what has arrived. It decides nothing.

The core decides (which versions, which mode, which snapshot); this carries it out on the model and lends the vectors
to the network side. All methods but :meth:`Holdings.lend` are called with the core's lock held.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gruppetto.attach import apply
from gruppetto.attach.inbox import Inbox
from gruppetto.attach.receipts import Receipts
from gruppetto.attach.sharding import FlatModel
from gruppetto.attach.snapshot import Snapshots, pool_for
from gruppetto.errors import StateError
from gruppetto.numerics.fragments import Fragmentation
from gruppetto.protocol.actions import Apply, KeepRest
from gruppetto.protocol.messages import Answer, ApplyMode
from gruppetto.protocol.units import Fragment, Round, Version
from gruppetto.runtime.backlog import Offer
from gruppetto.runtime.leases import Lease, LeasePool
from gruppetto.runtime.transfers import Share

__all__ = ["Holdings"]

MOST_LEFT = 2
"""Rests of one fragment that wait for a verdict: of the contribution that may have counted, and of one sent since."""


class Holdings:
    """The vectors of one learner. Each base is the buffer in which its fragment arrived: there is no second copy.

    ``restored`` are bases by parameter name (float32, in the parameter's shape) from a checkpoint cut as
    ``restored_cut`` says.
    """

    def __init__(self, model: FlatModel, *, by_agreement: bool = False) -> None:
        """``by_agreement``: what arrives waits in :attr:`inbox` until all ranks of the learner have their part."""
        self.model = model
        self.inbox = Inbox(model) if by_agreement else None
        self.receipts = Receipts()
        self._restored: Mapping[str, Tensor] = {}
        self._restored_cut, self._restored_fragments = "", 0
        self._pool = LeasePool()
        self._snapshots: Snapshots | None = None
        self._bases: dict[Fragment, Lease] = {}
        self._arrived: dict[Fragment, tuple[Version, Lease]] = {}
        self._sent: dict[Fragment, Lease] = {}
        self._keep_sent = False
        self._rests: dict[Fragment, Lease] = {}
        """What encodings have left unsaid of contributions that counted, and is owed: four bytes an element at most."""
        self._left: dict[Fragment, dict[tuple[Round, int], Lease]] = {}
        """What is left of those sent, by round and tokens."""
        self._restored_rests: Mapping[str, Tensor] = {}

    # ── for the network side (see runtime.client.Tensors) ────────────────────────────────────────────────────────

    def cut(self, fragmentation: Fragmentation, mode: ApplyMode) -> None:
        """The model falls into these fragments. Raises :class:`StateError` if a restored checkpoint had others."""
        cut_now = fragmentation.fragmentation_hash, fragmentation.num_fragments
        if self._restored and (self._restored_cut, self._restored_fragments) != cut_now:
            raise StateError(
                "the checkpoint was cut into other fragments than the run is now",
                where="Learner.load_state_dict",
                fix="continue the run it was written in, or attach without it",
            )
        self.model.cut(fragmentation)
        self._pool = pool_for(self.model)
        self._keep_sent = mode is ApplyMode.CARRY
        self._snapshots = Snapshots(self.model, self._pool, whole=self._keep_sent)
        if self._restored:
            for fragment in self._all():
                lease = self.lend(fragment)
                self.model.pack(self._restored, fragment, lease.values)
                self._bases[fragment] = lease
            self._restored = {}
        self._cut_rests()

    def lend(self, fragment: Fragment) -> Lease:
        """Room for one fragment. Needs no lock."""
        return self._pool.lend(self.model.numel(fragment))

    def arrive(self, fragment: Fragment, version: Version, values: Lease) -> None:
        """Keep values until the core applies them, unless newer ones wait already."""
        if self.inbox is not None:
            self.inbox.put(fragment, version, values)
            return
        self._keep(fragment, version, values)

    def keep(self, fragment: Fragment, version: Version) -> None:
        """All ranks have their part of this version."""
        assert self.inbox is not None
        self._keep(fragment, version, self.inbox.take(fragment, version) or self.lend(fragment))

    def found(self, fragment: Fragment, version: Version, values: Lease) -> None:
        """Keep values that came with the state of a peer: all ranks take theirs at the same boundary."""
        self._keep(fragment, version, values)

    def share(self, fragment: Fragment) -> Share | None:
        """What this rank moves of a fragment. Needs no lock."""
        return self.model.share(fragment)

    def _keep(self, fragment: Fragment, version: Version, values: Lease) -> None:
        waiting = self._arrived.get(fragment)
        if waiting is not None and waiting[0] >= version:
            values.release()
            return
        if waiting is not None:
            waiting[1].release()
        self._arrived[fragment] = (version, values)

    def offer(self, answer: Answer) -> Offer:
        """Base and snapshot of a fragment, held for the caller."""
        assert self._snapshots is not None
        base, theta = self._bases[answer.fragment], self._snapshots.get(answer.fragment)
        if self.inbox is not None:
            self.receipts.asked(answer)
        if self._keep_sent:
            self._release_sent(answer.fragment)
            self._sent[answer.fragment] = theta.hold()
        rest = self._rests.get(answer.fragment)
        return Offer(answer=answer, base=base.hold(), theta=theta.hold(), rest=None if rest is None else rest.hold())

    def left(self, answer: Answer, rest: Lease) -> None:
        """Keep what the encoding of a contribution leaves unsaid until it is known whether it has counted."""
        waiting = self._left.setdefault(answer.fragment, {})
        again = waiting.pop((answer.round, answer.tokens), None)
        if again is not None:
            again.release()
        waiting[answer.round, answer.tokens] = rest
        while len(waiting) > MOST_LEFT:
            waiting.pop(next(iter(waiting))).release()

    def keep_rest(self, action: KeepRest) -> None:
        """Its rest takes the place of the one before; what else was left of this fragment counts no more."""
        waiting = self._left.pop(action.fragment, {})
        kept = waiting.pop((action.round, action.tokens), None)
        if kept is not None:
            self._put_rest(action.fragment, kept)
        for lease in waiting.values():
            lease.release()

    def drop_rests(self) -> None:
        """Nothing is owed, and nothing waits."""
        for lease in (*self._rests.values(), *(lease for each in self._left.values() for lease in each.values())):
            lease.release()
        self._rests, self._left, self._restored_rests = {}, {}, {}

    # ── for the training thread ──────────────────────────────────────────────────────────────────────────────────

    def apply(self, action: Apply) -> None:
        """Put an arrived fragment into the model, and keep it as the base."""
        fragment = action.fragment
        waiting = self._arrived.pop(fragment, None)
        if waiting is None:
            waiting = action.version, self._bases.pop(fragment)
        version, arrived = waiting
        assert version == action.version, "the core speaks of what was told it"
        self.before_write()
        match action.mode:
            case ApplyMode.OVERWRITE:
                apply.overwrite(self.model, fragment, arrived)
            case ApplyMode.BLEND:
                scratch = self.lend(fragment)
                apply.blend(self.model, fragment, arrived, scratch.values, action.blend_alpha)
                scratch.release()
            case ApplyMode.CARRY:
                scratch, sent = self.lend(fragment), self._sent[fragment]
                sent.ready()
                apply.carry(self.model, fragment, arrived, scratch.values, sent.values)
                scratch.release()
        self._release_sent(fragment)
        old = self._bases.get(fragment)
        if old is not None:
            old.release()
        self._bases[fragment] = arrived

    def put_bases(self) -> None:
        """The model becomes what all fragments were when they last arrived: after the last round, the run's weights."""
        self.before_write()
        for fragment, base in sorted(self._bases.items()):
            apply.overwrite(self.model, fragment, base)
        for base in self._bases.values():
            base.ready()  # whoever held these buffers may be gone before a GPU has read them
        self.model.gather_shards()

    def take_snapshots(self, fragments: tuple[Fragment, ...]) -> None:
        """Copy these fragments as they are now; the copies of the last boundary are let go."""
        assert self._snapshots is not None
        self._snapshots.take(fragments)

    def seed_part(self, fragment: Fragment) -> Lease:
        """The initial values of one fragment, held for the caller."""
        assert self._snapshots is not None
        return self._snapshots.copy(fragment)

    def before_write(self) -> None:
        """The optimizer, or an arrived fragment, is about to write to the parameters."""
        if self._snapshots is not None:
            self._snapshots.before_write()

    def hold_bases(self) -> list[tuple[Fragment, Lease]]:
        """All bases, held for the caller: nobody writes to them any more. In order."""
        return [(fragment, lease.hold()) for fragment, lease in sorted(self._bases.items())]

    # ── checkpoints ──────────────────────────────────────────────────────────────────────────────────────────────

    def vectors(self) -> dict[str, Tensor]:
        """A copy of everything that is held, by kind and fragment: for a world that stands still, and is written."""
        assert self._snapshots is not None and not self._arrived
        kinds = {"base": self._bases, "snapshot": self._snapshots.held(), "sent": self._sent, "rest": self._rests}
        named = {f"{kind}.{p}": lease for kind, leases in kinds.items() for p, lease in leases.items()}
        for p, waiting in self._left.items():
            named |= {f"left.{p}.{round}.{tokens}": lease for (round, tokens), lease in waiting.items()}
        return {name: torch.from_numpy(lease.values.copy()) for name, lease in named.items()}

    def put_vectors(self, vectors: Mapping[str, Tensor]) -> None:
        """Take what :meth:`vectors` gave, in place of everything that is held."""
        assert self._snapshots is not None
        for lease in (*self._bases.values(), *self._sent.values()):
            lease.release()
        self._snapshots.drop()
        self.drop_rests()
        self._bases, self._sent = {}, {}
        for name, values in sorted(vectors.items()):
            kind, number, *which = name.split(".")
            fragment = Fragment(int(number))
            lease = self.lend(fragment)
            lease.values[:] = values.numpy()
            match kind:
                case "base":
                    self._bases[fragment] = lease
                case "sent":
                    self._sent[fragment] = lease
                case "rest":
                    self._rests[fragment] = lease
                case "left":
                    self._left.setdefault(fragment, {})[Round(int(which[0])), int(which[1])] = lease
                case _:
                    self._snapshots.put(fragment, lease)

    def bases_by_name(self) -> dict[str, Tensor]:
        """A copy of all bases, by parameter name and in its shape, float32; zeros for what has never arrived. Those of
        distributed parameters are distributed alike."""
        bases = self.model.empty_bases()
        for name, values in self._restored.items():
            bases[name].copy_(values)
        for fragment, lease in self._bases.items():
            self.model.unpack(bases, fragment, lease.values)
        return self.model.to_global(bases)

    def add_bases(self, bases: Mapping[str, Tensor]) -> None:
        """Put what this shard's fragments hold into a whole that :meth:`bases_by_name` of another has given."""
        for fragment, lease in self._bases.items():
            self.model.unpack(bases, fragment, lease.values)

    def rests_by_name(self) -> dict[str, Tensor]:
        """A copy of what is owed, likewise; nothing at all if nothing is, or if it is owed by many ranks: each knows
        what it supplies, and other ranks would supply something else."""
        if self.inbox is not None:
            return {}
        if not self._rests:
            return self.model.to_global({name: values.clone() for name, values in self._restored_rests.items()})
        rests = self.model.empty_bases()
        for fragment, lease in self._rests.items():
            self.model.unpack(rests, fragment, lease.values)
        return self.model.to_global(rests)

    def restore(
        self,
        bases: Mapping[str, Tensor],
        fragmentation_hash: str,
        rests: Mapping[str, Tensor] | None = None,
        *,
        num_fragments: int,
    ) -> None:
        """Take bases, and what is owed, from a checkpoint; they are cut when the syncer has said how. Copies them."""
        self._restored, self._restored_rests = self._local_copy(bases), self._local_copy(rests or {})
        self._restored_cut, self._restored_fragments = fragmentation_hash, num_fragments

    @property
    def cut_hash(self) -> str:
        """How the model is cut, or was when the restored checkpoint was written; "" if it is not known yet."""
        cut = self.model.fragmentation
        return cut.fragmentation_hash if cut is not None else self._restored_cut

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _all(self) -> list[Fragment]:
        return [Fragment(p) for p in range(self.model.num_fragments)]

    def _cut_rests(self) -> None:
        if self._restored_rests:
            for fragment in self._all():
                lease = self.lend(fragment)
                self.model.pack(self._restored_rests, fragment, lease.values)
                self._put_rest(fragment, lease)
            self._restored_rests = {}

    def _put_rest(self, fragment: Fragment, rest: Lease) -> None:
        before = self._rests.pop(fragment, None)
        if before is not None:
            before.release()
        self._rests[fragment] = rest

    def _local_copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        local = self.model.to_local({name: values.detach() for name, values in tensors.items()})
        return {name: values.to("cpu", torch.float32, copy=True) for name, values in local.items()}

    def _release_sent(self, fragment: Fragment) -> None:
        sent = self._sent.pop(fragment, None)
        if sent is not None:
            sent.release()
