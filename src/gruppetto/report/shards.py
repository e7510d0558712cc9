"""A run that several syncers served: what each of them made of its own fragments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gruppetto.report.in_short import as_bytes

__all__ = ["HEAD", "about_shards", "rows_of"]

HEAD = ("shard", "rounds", "fragments", "participation", "tokens merged", "to it", "from it")


def about_shards(shards: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence on all, for the end of a terminal session; none of a run with one syncer.

    >>> one = {"shard": "1/2", "rounds": 720, "fragments": 12, "participation": 1.0, "bytes": {"up": 10, "down": 20}}
    >>> one |= {"tokens": {"consumed": 100, "merged": 97}}
    >>> about_shards([one, one | {"shard": "2/2", "rounds": 690, "bytes": {"up": None, "down": None}}])
    ['2 shards served it: 1/2 made 720 rounds of 12 fragments, 97% merged, 30 B; 2/2 690 of 12, 97%.']
    """
    if not shards:
        return []
    first, *others = shards
    said = [f"{first['shard']} made {first['rounds']} rounds of {first['fragments']} fragments{_share(first)} merged"]
    said[0] += _moved(first)
    said += [f"{each['shard']} {each['rounds']} of {each['fragments']}{_share(each)}{_moved(each)}" for each in others]
    return [f"{len(shards)} shards served it: {'; '.join(said)}."]


def _share(shard: Mapping[str, Any]) -> str:
    tokens = shard["tokens"]
    return f", {tokens['merged'] / tokens['consumed']:.0%}" if tokens["consumed"] else ", nothing"


def _moved(shard: Mapping[str, Any]) -> str:
    up, down = shard["bytes"]["up"], shard["bytes"]["down"]
    return "" if up is None else f", {as_bytes(up + down)}"


def rows_of(shards: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """For a table under :data:`HEAD`."""
    return [
        (
            each["shard"],
            f"{each['rounds']:,}",
            f"{each['fragments']:,}",
            "–" if each["participation"] is None else f"{each['participation']:.1%}",
            f"{each['tokens']['merged'] / each['tokens']['consumed']:.1%}" if each["tokens"]["consumed"] else "–",
            "–" if each["bytes"]["up"] is None else as_bytes(each["bytes"]["up"]),
            "–" if each["bytes"]["down"] is None else as_bytes(each["bytes"]["down"]),
        )
        for each in shards
    ]
