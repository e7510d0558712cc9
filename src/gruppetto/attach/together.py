"""How the ranks of one learner come together: one name, one life, one layout, and who supplies what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from gruppetto import __version__
from gruppetto.attach.ranks import Ranks
from gruppetto.attach.sharding import FlatModel
from gruppetto.errors import LayoutError, SettingError
from gruppetto.numerics.runs import Runs
from gruppetto.numerics.shares import supplied

__all__ = ["AUTO", "Setting", "come_together"]

Setting = bool | int | float | str | None
"""As a rank tells it to the others."""

AUTO = "auto"
ANY_PORT = ":0"
"""Of an address at which each rank finds a port of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """Of a greeting, what every version has: the rest is read only where all run the same one."""

    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Greeting(_Version):
    """What each rank tells all others, once."""

    name: str
    """"" if it was not given one."""
    fallback: str
    session: str
    layout_hash: str
    saves: str
    """What it saves, when, and where: on all ranks, or on none."""
    alike: dict[str, Setting]
    """Arguments that are to be the same on all ranks."""
    donates: str
    """Where it was told to give its state; "" if nowhere."""
    gives: bool
    """False also where "auto" comes to nowhere."""
    held: list[tuple[tuple[int, int], ...]]
    """By tensor of the layout."""


def come_together(
    ranks: Ranks,
    flat: FlatModel,
    *,
    name: str | None,
    fallback: str,
    session: str,
    alike: Mapping[str, Setting],
    saves: str = "",
    donates: str = "",
    gives: bool = False,
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
        alike=dict(alike),
        donates=donates,
        gives=gives,
        held=[held[tensor.name].bounds for tensor in flat.layout.tensors],
    )
    said = ranks.everybody(msgspec.msgpack.encode(own))
    _check_versions([msgspec.msgpack.decode(data, type=_Version).version for data in said])
    greetings = [msgspec.msgpack.decode(data, type=_Greeting) for data in said]
    first = greetings[0]
    for rank, other in enumerate(greetings):
        _check_alike(first.alike, rank, other.alike)
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
    return first.name or first.fallback, first.session, all(greeting.gives for greeting in greetings)


def _check_versions(versions: list[str]) -> None:
    for rank, version in enumerate(versions):
        if version != versions[0]:
            raise SettingError(
                f"rank 0 runs Gruppetto {versions[0]}, rank {rank} {version}",
                where="Learner",
                fix="run one version on all ranks",
            )


def _check_alike(first: Mapping[str, Setting], rank: int, other: Mapping[str, Setting]) -> None:
    for key, value in first.items():
        if other[key] != value:
            raise SettingError(
                f"{key} is {value!r:.80} on rank 0, {other[key]!r:.80} on rank {rank}",
                where=f"Learner.{key}",
                fix="give one value to all ranks of a learner",
            )


def _check_places(places: list[str]) -> None:
    """Each rank gives its own portion: at an address of its own, or none does. Raises :class:`SettingError`."""
    named = {place: rank for rank, place in reversed(list(enumerate(places))) if place not in ("", AUTO)}
    if not named:
        told: list[dict[str, Setting]] = [{"donate": place or None} for place in places]
        for rank, own in enumerate(told):
            _check_alike(told[0], rank, own)
        return
    for rank, place in enumerate(places):
        if named.get(place) == rank or place.endswith(ANY_PORT):
            continue
        other, its = min((at, where) for where, at in named.items())
        raise SettingError(
            f"rank {other} gives its state at {its}, rank {rank} {'there too' if place == its else 'nowhere'}"
            if place != AUTO
            else f"rank {other} gives its state at {its}, rank {rank} where it finds room",
            where="Learner.donate",
            fix="give each rank a HOST:PORT of its own, such as port 7300 + local rank, or none of them any",
        )
