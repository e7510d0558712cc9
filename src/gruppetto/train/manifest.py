"""What exactly was in a corpus: enough to know the same one again, in a small file of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["CORPUS", "Manifest", "write_manifest"]

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


def write_manifest(manifest: Manifest, directory: Path) -> None:
    """Leave it in a run directory. Raises :class:`OSError`."""
    (directory / CORPUS).write_text(manifest.to_json(), encoding="utf-8")
