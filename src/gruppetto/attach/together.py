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

__all__ = ["AUTO", "come_together"]

AUTO = "auto"
ANY_PORT = ":0"
"""Of an address at which each rank finds a port of its own."""


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
    donates: str
    """Where it was told to give its state; "" if nowhere, or if "auto" comes to nowhere."""
    held: list[tuple[tuple[int, int], ...]]
    """By tensor of the layout."""


def come_together(
    ranks: Ranks,
    flat: FlatModel,
    *,
    name: str | None,
    fallback: str,
    session: str,
    saves: str = "",
    donates: str = "",
) -> tuple[str, str, bool]:
    """(name, session) of the learner: those of rank 0; and whether all ranks give. ``flat`` is told what this rank
    supplies.

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
        donates=donates,
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
    _check_places([greeting.donates for greeting in greetings])
    by_rank = [
        {tensor.name: Runs(bounds) for tensor, bounds in zip(flat.layout.tensors, greeting.held, strict=True)}
        for greeting in greetings
    ]
    flat.spread(supplied(flat.layout, by_rank)[ranks.rank])
    return first.name or first.fallback, first.session, all(greeting.donates for greeting in greetings)


def _check_places(places: list[str]) -> None:
    """Each rank gives its own portion: at an address of its own, or none does. Raises :class:`SettingError`."""
    named = {place: rank for rank, place in reversed(list(enumerate(places))) if place not in ("", AUTO)}
    for rank, place in enumerate(places):
        if not named or named.get(place) == rank or place.endswith(ANY_PORT):
            continue
        other, its = min((at, where) for where, at in named.items())
        raise SettingError(
            f"rank {other} gives its state at {its}, rank {rank} {'there too' if place == its else 'nowhere'}"
            if place != AUTO
            else f"rank {other} gives its state at {its}, rank {rank} where it finds room",
            where="Learner.donate",
            fix="give each rank a HOST:PORT of its own, such as port 7300 + local rank, or none of them any",
        )
