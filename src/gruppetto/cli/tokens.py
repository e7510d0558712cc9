"""``gruppetto tokens add|revoke|show``"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from gruppetto.cli.certs import authority_in, identity_named
from gruppetto.cli.flags import positional, print_json, read_flags
from gruppetto.errors import StateError, UserError
from gruppetto.home import at_home
from gruppetto.runtime.security.places import TOKENS
from gruppetto.runtime.security.roster import parse_roster

__all__ = ["main"]

DEEDS = ("add", "revoke", "show")


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Tokens in place of certificates, for who cannot show one (a browser, Prometheus, a learner behind a proxy).

    add writes a new secret into a file for its owner alone, and its digest into the list that the syncer watches.
    """

    deed: Annotated[tuple[str, ...], tyro.conf.Positional, positional("add|revoke|show [NAME...]")] = ()
    """What to do, and for whom: the name of a learner, or ROLE:NAME, for instance viewer:grafana."""
    dir: Annotated[str, tyro.conf.arg(metavar="DIR")] = "certs"
    """Where they lie; that of the certificates."""
    new: bool = False
    """With add: another one in place of the one that is there."""
    json: bool = False
    """One JSON object."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "tokens")
    if not flags.deed or flags.deed[0] not in DEEDS:
        raise UserError("say what to do", where="gruppetto tokens", fix=f"say one of {', '.join(DEEDS)}")
    verb, names = flags.deed[0], flags.deed[1:]
    if not names and verb != "show":
        raise UserError("whose?", where=f"gruppetto tokens {verb}", fix="give the name of a learner, or ROLE:NAME")
    out = sys.stderr if flags.json else sys.stdout
    found: dict[str, object] = {}
    if verb == "show":
        path = at_home(flags.dir) / TOKENS
        if not path.is_file():
            raise StateError("holds no tokens", where=flags.dir, fix="say gruppetto tokens add NAME")
        known = parse_roster(path.read_text(encoding="utf-8"), serials=False)
        for identity in known.values():
            print(identity, file=out)
        found["tokens"] = [str(identity) for identity in known.values()]
    for name in names:
        identity, authority = identity_named(name), authority_in(flags.dir)
        if verb == "add":
            path = authority.add_token(identity, anew=flags.new)
            print(f"{path} is for {identity} alone", file=out)
            found[identity.stem] = str(path)
        else:
            count = authority.revoke_tokens(identity)
            if not count:
                raise StateError(f"has no token of {identity}", where=flags.dir, fix="see gruppetto tokens show")
            print(f"{identity}: {count} taken back", file=out)
            found[identity.stem] = count
    if flags.json:
        print_json(found)
    return 0
