"""Of which bytes results are.

A ride has only the name of its data, and ``python-stdlib`` is another text in every version of Python.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Store

__all__ = ["CORPUS", "several", "texts"]

CORPUS = "corpus"
"""What a result calls the hash of what it was trained and judged on. Results of older versions do not say it."""


def texts(rides: Iterable[Ride], store: Store) -> dict[str, Counter[str]]:
    """By the name of the data: how many of these rides' results are of each hash that is known."""
    found: dict[str, Counter[str]] = {}
    for ride in dict.fromkeys(rides):
        said = (store.get(ride) or {}).get(CORPUS)
        if said:
            found.setdefault(ride.data, Counter())[str(said)] += 1
    return found


def several(found: Mapping[str, Mapping[str, int]], here: Mapping[str, str] | None = None) -> str:
    """Which data are several texts under one name, in words; "" for none. ``here``: what a name means on this machine.

    >>> several({"python-stdlib": {"a" * 64: 3}}, here={"python-stdlib": "b" * 64})
    'python-stdlib (sha256 aaaaaaaaaaaaaaaa… of 3, and bbbbbbbbbbbbbbbb… here)'
    >>> several({"python-stdlib": {"a" * 64: 3}}, here={"python-stdlib": "a" * 64})
    ''
    """
    told = []
    for data, counts in sorted(found.items()):
        each = [f"{sha256[:16]}… of {count}" for sha256, count in sorted(counts.items())]
        if here and data in here and here[data] not in counts:
            each.append(f"{here[data][:16]}… here")
        if len(each) > 1:
            told.append(f"{data} (sha256 {', '.join(each[:-1])}, and {each[-1]})")
    return "; ".join(told)
