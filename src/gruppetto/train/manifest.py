"""What exactly was in a corpus: enough to know the same one again, in a small file of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from gruppetto.errors import DataError

__all__ = ["CORPUS", "Manifest", "check_same", "write_manifest"]

CORPUS = "corpus.json"
"""Its name in a run directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """``sha256`` is of names, lengths and contents of both parts: two corpora that differ in a byte differ in it."""

    source: str
    train_documents: int
    train_bytes: int
    held_out_documents: int
    held_out_bytes: int
    sha256: str

    file: str = ""
    """Of an archive: its name ..."""
    file_sha256: str = ""
    """... and its hash."""
    skipped: int = 0
    """Members that were asked for and are no text."""
    package: str = ""
    """Of a package: what its registry calls it ..."""
    version: str = ""
    """... and which one it is."""

    def to_json(self) -> str:
        """One object over some lines, without what is empty."""
        return json.dumps({key: value for key, value in asdict(self).items() if value != ""}, indent=1) + "\n"


def check_same(manifest: Manifest, directory: Path) -> None:
    """Raises :class:`DataError` if the run in a directory was begun on other bytes under the same name.

    Its ledger says which windows were trained on, and its losses are of what was held out: of other bytes neither is
    true. Nothing is said of a directory that has no manifest, or one of another source.
    """
    place = directory / CORPUS
    try:
        known = json.loads(place.read_bytes())
        source, sha256 = known["source"], known["sha256"]
    except FileNotFoundError:
        return
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError("is no manifest of a corpus", where=str(place), fix="delete it, to go on unchecked") from error
    if source == manifest.source and sha256 != manifest.sha256:
        raise DataError(
            f"is not what the run was begun on: its sha256 is {manifest.sha256}, and was {sha256}",
            where=manifest.source,
            fix=f"bring that back, or delete {place} to go on with what is there now",
        )


def write_manifest(manifest: Manifest, directory: Path) -> None:
    """Leave it in a run directory. Raises :class:`OSError`."""
    (directory / CORPUS).write_text(manifest.to_json(), encoding="utf-8")
