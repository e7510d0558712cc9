"""A directory of certificates and tokens: what lies where, and who needs which of it.

::

    certs/  ca.pem  ca.key             the authority; the key belongs on no host of a run
            syncer.pem  syncer.key     the syncer's, and its standbys'
            learner-NAME.pem  .key     one learner's; or .token, if it shows a token instead
            viewer-NAME.*  operator-NAME.*
            tokens  revoked            what the syncer watches: digests of tokens, serials that count no more
            issued                     what the authority has made, for renewing and revoking

A host gets ``ca.pem`` and its own files; the syncer's gets ``tokens`` and ``revoked`` besides.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from gruppetto.errors import SettingError
from gruppetto.runtime.security.exposed import tell_exposure
from gruppetto.runtime.security.fresh import client_context
from gruppetto.runtime.security.identity import Identity, Role

__all__ = ["CA", "CA_KEY", "ISSUED", "REVOKED", "TOKENS", "Papers", "any_papers", "papers_of"]

CA, CA_KEY = "ca.pem", "ca.key"
TOKENS, REVOKED, ISSUED = "tokens", "revoked", "issued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Papers:
    """What somebody shows a syncer, and how he knows it. ``tls`` is None where nothing was said about certificates."""

    token: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    personal: bool = False
    """They are one identity's own, unlike a token that all share."""


def papers_of(directory: Path, identity: Identity) -> Papers:
    """The token of ``identity`` in ``directory`` if it has one there, else its certificate. Raises
    :class:`SettingError`."""
    stem = directory / identity.stem
    token, cert, key, ca = (
        stem.with_name(f"{stem.name}.token"),
        _suffixed(stem, "pem"),
        _suffixed(stem, "key"),
        directory / CA,
    )
    if token.is_file():
        return Papers(token=secret_in(token), tls=client_context(ca), ca=ca, personal=True)
    if not cert.is_file():
        raise SettingError(
            f"holds no certificate and no token of {identity}",
            where=str(directory),
            fix=f"say gruppetto certs make --{identity.role.value} {identity.name}",
        )
    return Papers(tls=client_context(ca, cert, key), cert=cert, key=key, ca=ca, personal=True)


def any_papers(directory: Path) -> Papers:
    """Of whichever operator, else viewer, has his papers in ``directory``. Raises :class:`SettingError`."""
    for role in (Role.OPERATOR, Role.VIEWER):
        for file in sorted(directory.glob(f"{role.value}-*")):
            if file.suffix in (".pem", ".token"):
                name = file.stem.removeprefix(f"{role.value}-")
                return papers_of(directory, Identity(role=role, name=name))
    raise SettingError(
        "holds no papers of an operator or a viewer",
        where=str(directory),
        fix="say gruppetto certs make --operator NAME",
    )


def secret_in(file: Path) -> str:
    """The one line of a token file. Raises :class:`SettingError`."""
    try:
        lines = file.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as wrong:
        raise SettingError("cannot be read", where=str(file), fix="give it to this user alone") from wrong
    if len(lines) != 1:
        raise SettingError("holds no token", where=str(file), fix="say gruppetto tokens add NAME")
    tell_exposure(file)
    return lines[0]


def _suffixed(stem: Path, suffix: str) -> Path:
    return stem.with_name(f"{stem.name}.{suffix}")
