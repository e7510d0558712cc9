"""How the ranks of one learner come together: one name, one life, one layout, and who supplies what."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from gruppetto import __version__
from gruppetto.attach.ranks import Ranks
from gruppetto.attach.sharding import FlatModel
from gruppetto.errors import LayoutError, SettingError
from gruppetto.numerics.runs import Runs
from gruppetto.numerics.shares import supplied

__all__ = ["come_together"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Greeting:
    """What each rank tells all others, once."""

    version: str
    name: str
    """"" if it was not given one."""
    fallback: str
    session: str
    layout_hash: str
    saves: str
    """What it saves, when, and where: on all ranks, or on none."""
    held: list[tuple[tuple[int, int], ...]]
    """By tensor of the layout."""


def come_together(
    ranks: Ranks, flat: FlatModel, *, name: str | None, fallback: str, session: str, saves: str = ""
) -> tuple[str, str]:
    """(name, session) of the learner: those of rank 0. ``flat`` is told what this rank supplies.

    Collective. Raises :class:`SettingError` or :class:`LayoutError` on every rank if they do not belong together.
    """
    held = flat.held
    own = _Greeting(
        version=__version__,
        name=name or "",
        fallback=fallback,
        session=session,
        layout_hash=flat.layout.layout_hash,
        saves=saves,
        held=[held[tensor.name].bounds for tensor in flat.layout.tensors],
    )
    greetings = [msgspec.msgpack.decode(data, type=_Greeting) for data in ranks.everybody(msgspec.msgpack.encode(own))]
    first = greetings[0]
    for rank, other in enumerate(greetings):
        if other.version != first.version:
            raise SettingError(
                f"rank 0 runs Gruppetto {first.version}, rank {rank} {other.version}",
                where="Learner",
                fix="run one version on all ranks",
            )
        if other.layout_hash != first.layout_hash:
            raise LayoutError(
                f"ranks 0 and {rank} hold models of different layouts",
                where="model",
                fix="build one model on all ranks of a learner; for ranks that are learners of their own, pass a "
                "process_group of one rank each",
            )
        if other.name != first.name:
            raise SettingError(
                f"rank 0 was named {first.name!r}, rank {rank} {other.name!r}",
                where="Learner.name",
                fix="all ranks are one learner: give one name; for several learners pass a process_group to each",
            )
        if other.saves != first.saves:
            raise SettingError(
                f"rank 0 saves {first.saves or 'nothing'}, rank {rank} {other.saves or 'nothing'}",
                where="Learner.checkpoints",
                fix="give checkpoints and on_checkpoint alike to all ranks",
            )
    by_rank = [
        {tensor.name: Runs(bounds) for tensor, bounds in zip(flat.layout.tensors, greeting.held, strict=True)}
        for greeting in greetings
    ]
    flat.spread(supplied(flat.layout, by_rank)[ranks.rank])
    return first.name or first.fallback, first.session
