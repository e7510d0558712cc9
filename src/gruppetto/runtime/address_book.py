"""Where a learner looks for its syncer: at addresses that stay, or where the syncer itself says it is."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from gruppetto.errors import AddressError
from gruppetto.files import json_in
from gruppetto.home import at_home
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.mailbox.address import SCHEME, MailboxAddress

__all__ = ["AddressBook", "Directory", "Fixed", "address_book", "is_directory"]

ENDPOINT_FILE = "endpoint.json"


class AddressBook(Protocol):
    """Looked at before every dialling."""

    def addresses(self) -> tuple[SyncerAddress, ...]:
        """One, or several to be tried in turn; never none."""
        ...


class Fixed:
    """Addresses that somebody has typed in."""

    def __init__(self, *addresses: SyncerAddress) -> None:
        self._addresses = addresses

    def addresses(self) -> tuple[SyncerAddress, ...]:
        return self._addresses


class Directory:
    """A state directory, or a run directory, on this machine: a syncer that is started again may have another port.

    While no syncer has said anything new there, the last address stays. Raises :class:`AddressError` if there is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: tuple[SyncerAddress, ...] = ()
        if not self.addresses():
            raise AddressError("no syncer has said where it listens", where=str(path), fix="start one")

    def addresses(self) -> tuple[SyncerAddress, ...]:
        for place in (self._path / ENDPOINT_FILE, self._path / "syncer" / ENDPOINT_FILE):
            try:
                self._last = (SyncerAddress.parse(json_in(place)["url"]),)
                break
            except (OSError, ValueError, KeyError, TypeError):  # an AddressError is a ValueError
                continue
        return self._last


def is_directory(text: str) -> bool:
    """Whether this names a directory, and no address.

    >>> is_directory("http://a:7171"), is_directory("a:7171"), is_directory("runs/tour/syncer")
    (False, False, True)
    """
    return "://" not in text and ("/" in text or at_home(text).is_dir())


def address_book(text: str | Path) -> AddressBook:
    """``URL[,URL...]``, a mailbox, or a directory. Raises :class:`AddressError`."""
    if isinstance(text, str) and text.strip().startswith(SCHEME):
        return Fixed(MailboxAddress.parse(text.strip()))
    if isinstance(text, Path) or (isinstance(text, str) and is_directory(text)):
        return Directory(at_home(text))
    return Fixed(*SyncerAddress.parse_all(text))
