"""``gruppetto certs make|renew|revoke|show``"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from gruppetto.cli.flags import positional, print_json, read_flags
from gruppetto.errors import SettingError, StateError, UserError
from gruppetto.home import at_home
from gruppetto.runtime.clock import wall_time_s
from gruppetto.runtime.security.identity import Identity, Role

if TYPE_CHECKING:
    from gruppetto.runtime.security.issuing import Authority

__all__ = ["authority_in", "main"]

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")
"""Under which its own machine finds a syncer in any case; the last two where it listens everywhere and says so."""
CA_DAYS = 3650


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Make and look after the certificates of a run: make, renew NAME..., revoke NAME..., or show.

    make makes what is missing (the authority, and certificates for who is named) and leaves what is there. A learner
    that is revoked is shown out within seconds, and nobody is started again for that, or for a renewal.
    """

    deed: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        positional("make|renew|revoke|show [NAME...]"),
    ] = ()
    """What to do; for renew and revoke, whose: the name of a learner, or ROLE:NAME. renew alone renews all."""
    dir: Annotated[str, tyro.conf.arg(metavar="DIR")] = "certs"
    """Where they lie."""
    host: Annotated[tuple[str, ...], tyro.conf.arg(metavar="HOST")] = ()
    """A name or address (IPv4, IPv6) under which learners find the syncer or a standby; may be given several times.
    Those of its own machine are there without saying."""
    syncer: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("syncer",)
    """Syncers; one certificate does for a syncer and its standbys."""
    learner: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ()
    """A learner; may be given several times."""
    operator: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("admin",)
    """Who may see everything and take checkpoints. A local run asks its own syncer as one."""
    viewer: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ()
    """Who may see how the run stands, and no weights."""
    days: int = 365
    """How long certificates hold; the authority's for ten years."""
    new_key: bool = False
    """With renew: a new key too, in place of the old one."""
    json: bool = False
    """One JSON object."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "certs")
    deeds: dict[str, Callable[[Flags, Authority, Sequence[str]], dict[str, object]]] = {
        "make": _make,
        "renew": _renew,
        "revoke": _revoke,
        "show": _show,
    }
    if not flags.deed or flags.deed[0] not in deeds:
        raise UserError("say what to do", where="gruppetto certs", fix=f"say one of {', '.join(deeds)}")
    verb, names = flags.deed[0], flags.deed[1:]
    if names and verb in ("make", "show"):
        raise UserError(f"{names[0]!r} is not understood", where=f"gruppetto certs {verb}", fix="say --learner NAME")
    found = deeds[verb](flags, authority_in(flags.dir), names)
    if flags.json:
        print_json(found)
    return 0


def authority_in(directory: str) -> Authority:
    """The authority in ``directory``. Raises :class:`UserError` where it cannot be made for want of a library."""
    if importlib.util.find_spec("cryptography") is None:
        raise UserError(
            "the package cryptography is missing", where="gruppetto certs", fix="pip install 'gruppetto[certs]'"
        )
    from gruppetto.runtime.security.issuing import Authority

    return Authority(at_home(directory), now=wall_time_s())


def identity_named(text: str) -> Identity:
    """``NAME``, a learner's, or ``ROLE:NAME``. Raises :class:`SettingError`.

    >>> str(identity_named("site-b")), str(identity_named("viewer:eve"))
    ('learner site-b', 'viewer eve')
    """
    role, colon, name = text.rpartition(":")
    if colon and role not in set(Role):
        raise SettingError(f"{role!r} is no role", where=text, fix=f"use one of {', '.join(Role)}")
    return Identity(role=Role(role) if colon else Role.LEARNER, name=name)


def _make(flags: Flags, authority: Authority, names: Sequence[str]) -> dict[str, object]:
    made = []
    if authority.found(days=max(flags.days, CA_DAYS)):
        made.append("ca")
    for role in (Role.SYNCER, Role.OPERATOR, Role.VIEWER, Role.LEARNER):
        for name in getattr(flags, role.value):
            identity = Identity(role=role, name=name)
            hosts = tuple(dict.fromkeys((*flags.host, *LOCAL_HOSTS))) if role is Role.SYNCER else ()
            if authority.make(identity, days=flags.days, hosts=hosts):
                made.append(identity.stem)
            elif role is Role.SYNCER and flags.host:
                _check_hosts(authority, identity, flags.host)
    _say(flags, f"{flags.dir}: made {', '.join(made)}" if made else f"{flags.dir}: everything is there already")
    return {"made": made}


def _check_hosts(authority: Authority, identity: Identity, hosts: Sequence[str]) -> None:
    there = next(paper.hosts for paper in authority.papers() if paper.identity == identity)
    if missing := sorted(set(hosts) - set(there)):
        fix = f"say gruppetto certs renew syncer:{identity.name} with all of its --host"
        raise StateError(f"is not for {', '.join(missing)}", where=str(authority.path(identity)), fix=fix)


def _renew(flags: Flags, authority: Authority, names: Sequence[str]) -> dict[str, object]:
    papers = authority.papers()
    chosen = [identity_named(name) for name in names] or [p.identity for p in papers if p.identity is not None]
    if flags.host and not (len(chosen) == 1 and chosen[0].role is Role.SYNCER):
        raise UserError(
            "--host is for a syncer", where="gruppetto certs renew", fix="say renew syncer:syncer --host ..."
        )
    for identity in chosen:
        hosts = tuple(dict.fromkeys((*flags.host, *LOCAL_HOSTS))) if flags.host else ()
        authority.renew(identity, days=flags.days, hosts=hosts, new_key=flags.new_key)
    _say(
        flags, f"renewed {', '.join(identity.stem for identity in chosen)}; who watches the file takes it up by himself"
    )
    return {"renewed": [identity.stem for identity in chosen]}


def _revoke(flags: Flags, authority: Authority, names: Sequence[str]) -> dict[str, object]:
    if not names:
        raise UserError("whose?", where="gruppetto certs revoke", fix="give the name of a learner, or ROLE:NAME")
    counts = {identity: authority.revoke(identity) for identity in map(identity_named, names)}
    unknown = [str(identity) for identity, count in counts.items() if not count]
    if unknown:
        raise StateError(f"has made nothing for {', '.join(unknown)}", where=flags.dir, fix="see gruppetto certs show")
    for identity, count in counts.items():
        _say(
            flags, f"{identity}: {count} revoked; a syncer that watches {flags.dir}/revoked shows it out within seconds"
        )
    return {"revoked": {identity.stem: count for identity, count in counts.items()}}


def _show(flags: Flags, authority: Authority, names: Sequence[str]) -> dict[str, object]:
    now, rows = wall_time_s(), []
    for paper in authority.papers():
        days = (paper.expires_at - now) / 86_400
        who = "the authority" if paper.identity is None else str(paper.identity)
        rows.append({"who": who, "file": str(paper.path), "days_left": round(days, 2), "hosts": list(paper.hosts)})
        _say(flags, f"{who:<24} {days:8.1f} days  {paper.path.name}  {' '.join(paper.hosts)}".rstrip())
    if not rows:
        raise StateError("holds no certificates", where=flags.dir, fix="say gruppetto certs make")
    return {"papers": rows}


def _say(flags: Flags, text: str) -> None:
    print(text, file=sys.stderr if flags.json else sys.stdout)
