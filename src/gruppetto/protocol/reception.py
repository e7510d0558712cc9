"""Who is let in, and what a newcomer is told (section 8). Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from gruppetto.protocol.membership import Member
from gruppetto.protocol.messages import Donor, Hello, Refusal, RefusalReason, Welcome
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.units import NEVER, UNBORN, Epoch, Round, Version

__all__ = ["refusal_for", "visitor", "welcome_for"]


def refusal_for(
    hello: Hello,
    *,
    run_id: str,
    layout_hash: str,
    superseded: bool,
    newest_round: Round,
    went_back: Iterable[tuple[Epoch, Round]] = (),
    needs_weights: bool,
) -> Refusal | None:
    """The first reason to keep a learner out, with what to do; None to let it in.

    ``superseded``: a newer process has its name. ``newest_round``: the newest that anybody may know of. ``went_back``:
    see :class:`~gruppetto.protocol.state.SyncerState`. ``needs_weights``: there are none yet and nobody has been asked
    for any.
    """
    if hello.run_id and hello.run_id != run_id:
        text = f"this syncer serves run {run_id}, the learner belongs to {hello.run_id}; check the address"
        return Refusal(reason=RefusalReason.WRONG_RUN, text=text)
    if hello.layout_hash != layout_hash:
        text = (
            f"the learner's model (layout {hello.layout_hash}) is not the run's (layout {layout_hash}); build the "
            "model that the others train"
        )
        return Refusal(reason=RefusalReason.LAYOUT, text=text)
    if superseded:
        text = f"another process has taken the name {hello.learner!r}; give each process its own name"
        return Refusal(reason=RefusalReason.SUPERSEDED, text=text)
    held = max(hello.versions, default=NEVER)
    if held > newest_round or any(hello.epoch < epoch and held > round for epoch, round in went_back):
        text = (
            f"the learner holds weights of a round {held} that this run, which is at round {newest_round}, has not "
            "made: it was resumed from an earlier moment; start the learner from its part of that checkpoint, or afresh"
        )
        return Refusal(reason=RefusalReason.AHEAD, text=text)
    if needs_weights and not hello.can_seed:
        text = "the syncer has no weights yet and this learner has none to give; start one with initial weights"
        return Refusal(reason=RefusalReason.CANNOT_SEED, text=text)
    return None


def visitor(hello: Hello) -> Member:
    """Who comes when the run is over: it may have the last weights, lives no life in the run and leases no slot."""
    return Member(learner=hello.learner, session=hello.session, incarnation=UNBORN, slot=0)


def welcome_for(
    member: Member,
    setting: ProtocolSetting,
    *,
    run_id: str,
    epoch: Epoch,
    cursor: int,
    round: Round,
    versions: tuple[Version, ...],
    seed: bool,
    begun: bool,
    offsets: tuple[int, ...] = (),
    donors: tuple[Donor, ...] = (),
    goes_on: bool = False,
    finished: bool = False,
) -> Welcome:
    """What a learner needs to take part: its life, its data, the state of the run and the run's dials."""
    return Welcome(
        run_id=run_id,
        epoch=epoch,
        incarnation=member.incarnation,
        goes_on=goes_on,
        slot=member.slot,
        cursor=cursor,
        round=round,
        versions=versions,
        seed=seed,
        begun=begun,
        num_fragments=setting.num_fragments,
        sync_period=setting.sync_period,
        snapshot_window=setting.snapshot_window,
        apply=setting.apply,
        blend_alpha=setting.blend_alpha,
        rounds=None if setting.rounds is None else Round(setting.rounds),
        offsets=offsets,
        donors=donors,
        accepts_stale=setting.stale == "accept",
        finished=finished,
    )
