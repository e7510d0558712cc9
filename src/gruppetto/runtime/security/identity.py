"""Whose certificate or token it is, and what that one may ask for.

A certificate carries its identity as a URI among its alternative names: ``gruppetto:learner:site-b``. The common name
is for people, and short.

>>> identity = Identity(role=Role.LEARNER, name="site-b")
>>> identity_of_uri(identity.uri) == identity
True
>>> identity_of_uri("gruppetto:learner:../b") is None
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from gruppetto.runtime.plausible import is_name

__all__ = ["MAY", "Deed", "Identity", "Role", "identity_in", "identity_of_uri", "serial_in"]

SCHEME = "gruppetto"


class Role(StrEnum):
    """What somebody is to a run."""

    LEARNER = "learner"
    """Trains. All ranks of a learner share its identity."""
    VIEWER = "viewer"
    """Sees how the run stands: status, dashboard, metrics. No weights."""
    OPERATOR = "operator"
    """Sees everything, and takes checkpoints. The judge of a local run is one."""
    SYNCER = "syncer"
    """Serves the run, or waits to."""


class Deed(StrEnum):
    """What may be asked for at a syncer."""

    TRAIN = "train"
    """Control connection, heartbeats, seeds, contributions: in one's own name alone."""
    READ = "read"
    """The weights: fragments and the whole model."""
    LOOK = "look"
    """Status, dashboard, metrics."""
    MARK = "mark"
    """Checkpoints of the whole run."""
    SERVE = "serve"
    """Say where a shard of the run is: what learners then take for the syncer."""


MAY: Mapping[Role, frozenset[Deed]] = MappingProxyType(
    {
        Role.LEARNER: frozenset({Deed.TRAIN, Deed.READ, Deed.LOOK}),
        Role.VIEWER: frozenset({Deed.LOOK}),
        Role.OPERATOR: frozenset({Deed.READ, Deed.LOOK, Deed.MARK}),
        Role.SYNCER: frozenset({Deed.LOOK, Deed.SERVE}),
    }
)
"""The deeds of each role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A role and a name in it; a learner's is its name in the run."""

    role: Role
    name: str

    @property
    def uri(self) -> str:
        return f"{SCHEME}:{self.role.value}:{self.name}"

    @property
    def stem(self) -> str:
        """What its files are called, without suffix; of the syncer ``syncer`` just ``syncer``."""
        return self.role.value if self.role.value == self.name else f"{self.role.value}-{self.name}"

    def __str__(self) -> str:
        return f"{self.role.value} {self.name}"


def identity_of_uri(text: str) -> Identity | None:
    """The identity that a URI spells; None if it spells none."""
    scheme, _, rest = text.partition(":")
    role, _, name = rest.partition(":")
    if scheme != SCHEME or role not in set(Role) or not is_name(name):
        return None
    return Identity(role=Role(role), name=name)


def identity_in(certificate: Mapping[str, Any]) -> Identity | None:
    """The identity in a certificate that TLS has checked, as :meth:`ssl.SSLSocket.getpeercert` describes it.

    None unless it names exactly one: whoever could be two is neither.
    """
    named = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    found = [identity for uri in named if (identity := identity_of_uri(uri)) is not None]
    return found[0] if len(found) == len(named) == 1 else None


def serial_in(certificate: Mapping[str, Any]) -> str:
    """Its serial number, as rosters spell it; "" if it has none.

    >>> serial_in({"serialNumber": "0A1F"})
    'a1f'
    """
    return str(certificate.get("serialNumber", "")).lower().lstrip("0")
