"""How a run cuts its model, and which merge rule each tensor takes. Syncer and learners call the same function."""

from __future__ import annotations

from collections.abc import Sequence

from gruppetto.numerics.fragments import Fragmentation, fragment
from gruppetto.numerics.layout import Layout
from gruppetto.numerics.merge import rule_for

__all__ = ["cut", "merge_rules"]


def merge_rules(layout: Layout, merge: Sequence[tuple[str, str]] = ()) -> dict[str, str]:
    """The merge rule of every tensor: the first of ``merge`` (regex, rule) that fits, else the default."""
    return {tensor.name: rule_for(tensor.name, tensor.shape, merge) for tensor in layout.tensors}


def cut(
    layout: Layout, fragments_asked: int, fragmenter: str = "balanced", merge: Sequence[tuple[str, str]] = ()
) -> Fragmentation:
    """The fragments of a run, with a notice if there are fewer than asked for."""
    return fragment(layout, fragments_asked, fragmenter, merge_rules(layout, merge).__getitem__)
