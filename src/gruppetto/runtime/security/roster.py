"""What a syncer knows of identities, read from two small files and read again when they change.

``tokens`` has a line for each token, ``DIGEST ROLE NAME DATE``: the SHA-256 of the token, so that who reads the file
can show none. (Tokens are 256 random bits; a slow digest would protect nothing more.) ``revoked`` has a line for each
certificate that counts no more, ``SERIAL ROLE NAME DATE``. A line that starts with # is for people. To take a token
back is to take its line out.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from pathlib import Path

from gruppetto.errors import StateError
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.plausible import is_name
from gruppetto.runtime.security.identity import Identity, Role
from gruppetto.runtime.security.places import REVOKED, TOKENS

__all__ = ["MAX_ROSTER_BYTES", "Roster", "new_token", "parse_roster", "token_digest"]

_log = logging.getLogger("gruppetto.security")

MAX_ROSTER_BYTES = 16 << 20
TOKEN_BYTES = 32
_SERIAL = re.compile(r"[0-9a-f]{1,40}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def new_token() -> str:
    """A secret that nobody guesses; letters, digits, ``-`` and ``_``."""
    return f"gt-{secrets.token_urlsafe(TOKEN_BYTES)}"


def token_digest(token: str) -> str:
    """What is kept of a token.

    >>> token_digest("gt-x")[:16], len(token_digest("gt-x"))
    ('659445a1eee51790', 64)
    """
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def parse_roster(text: str, *, serials: bool) -> dict[str, Identity]:
    """The identities in a roster by digest, or by serial number. Raises :class:`StateError` for a line that is none.

    >>> parse_roster("# nobody\\n0a1f learner b 2026-11-30\\n", serials=True)
    {'0a1f': Identity(role=<Role.LEARNER: 'learner'>, name='b')}
    """
    found: dict[str, Identity] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        good = len(words) >= 3 and (_SERIAL if serials else _DIGEST).fullmatch(words[0])
        if not good or words[1] not in set(Role) or not is_name(words[2]):
            raise StateError(f"line {number} is no entry", fix="write KEY ROLE NAME DATE, or # before a remark")
        found[words[0]] = Identity(role=Role(words[1]), name=words[2])
    return found


class Roster:
    """``tokens`` and ``revoked`` of ``directory``, as they were when :meth:`look` last could read them.

    Raises :class:`StateError` if they cannot be read at first. Later on what was read before goes on, which is said: a
    file that vanishes takes nobody back in.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._complaints = directory, Complaints(_log)
        self._seen: dict[str, tuple[int, int, int] | None] = {}
        self._tokens: dict[str, Identity] = {}
        self._revoked: dict[str, Identity] = {}
        self._look(first=True)

    def of_token(self, token: str) -> Identity | None:
        """Whose token it is. Found by its digest, so how long it takes says nothing of the token."""
        return self._tokens.get(token_digest(token))

    def knows_digest(self, digest: str) -> bool:
        return digest in self._tokens

    def is_revoked(self, serial: str) -> bool:
        return serial in self._revoked

    def look(self) -> bool:
        """Read what has changed; whether anything had."""
        return self._look(first=False)

    def _look(self, *, first: bool) -> bool:
        changed = False
        for name in (TOKENS, REVOKED):
            file = self._directory / name
            try:
                status = file.stat()
                stamp = status.st_mtime_ns, status.st_size, status.st_ino
            except OSError:
                stamp = None
            if name in self._seen and stamp == self._seen[name]:
                continue
            gone, self._seen[name] = stamp is None, stamp
            if gone and first:
                continue
            try:
                if gone or (stamp is not None and stamp[1] > MAX_ROSTER_BYTES):
                    raise StateError("is gone" if gone else "is too long")
                found = parse_roster(file.read_text(encoding="utf-8"), serials=name == REVOKED)
            except (OSError, UnicodeDecodeError, StateError) as wrong:
                if first:
                    raise StateError(str(wrong), where=str(file), fix="mend the file") from wrong
                self._complaints.note((name, str(wrong)), f"{file}: {wrong}; what was read before goes on")
                continue
            if name == TOKENS:
                self._tokens = found
            else:
                self._revoked = found
            changed = changed or not first
        return changed
