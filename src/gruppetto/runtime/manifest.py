"""What a checkpoint of the whole run consists of, in a file that is written last: without it there is no checkpoint."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gruppetto.errors import StateError
from gruppetto.files import content_of
from gruppetto.protocol.units import Epoch, Incarnation, LearnerId, Round
from gruppetto.runtime.durable import force_directory, write_durably
from gruppetto.runtime.wire import checksum

__all__ = [
    "BY_TIMER",
    "CHECKPOINTS",
    "MANIFEST",
    "MANIFEST_VERSION",
    "Manifest",
    "PartOf",
    "complete_checkpoints",
    "identity_of",
    "read_manifest",
    "write_manifest",
]

CHECKPOINTS, MANIFEST = "checkpoints", "manifest.json"
BY_TIMER = "auto-"
"""How the names of those begin that nobody has asked for. Only these are ever removed by themselves."""
MANIFEST_VERSION = 1
_MAGIC = b"gruppetto checkpoint "


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOf:
    """A learner's part, where it was put by its own word."""

    learner: LearnerId
    incarnation: Incarnation
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint consists of."""

    version: int
    run_id: str
    mark: str
    round: Round
    epoch: Epoch
    rounds: int | None
    """The last round of the run; None if it has no end."""
    parts: tuple[PartOf, ...]
    left_out: tuple[tuple[LearnerId, str], ...]
    """Whose work since its bases is lost when the run is resumed, and why."""

    @property
    def finished(self) -> bool:
        """Nothing is left to be resumed."""
        return self.rounds is not None and self.round >= self.rounds


def read_manifest(place: Path) -> Manifest:
    """The manifest of the checkpoint in ``place``. Raises :class:`StateError` if there is none, or a damaged one."""
    try:
        data = content_of(place / MANIFEST)
    except FileNotFoundError as wrong:
        raise StateError(
            "is no complete checkpoint", where=str(place), fix="name one that `gruppetto checkpoint` printed"
        ) from wrong
    except OSError as wrong:
        raise StateError(f"cannot be read ({wrong.strerror})", where=str(place)) from wrong
    head, _, payload = data.partition(b"\n")
    try:
        if head != _MAGIC + f"{checksum(payload):08x}".encode():
            raise ValueError("its checksum is wrong")
        manifest = msgspec.json.decode(payload, type=Manifest)
        if manifest.version != MANIFEST_VERSION:
            raise ValueError(f"it has format {manifest.version}, and {MANIFEST_VERSION} is read here")
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        raise StateError(
            f"the manifest is damaged: {wrong}", where=str(place), fix="take another checkpoint"
        ) from wrong
    return manifest


def complete_checkpoints(state: Path, named: str = "*") -> list[tuple[Path, Manifest]]:
    """Those of a state directory that can be resumed from, the oldest first. Damaged ones are passed over, and names
    that the pattern ``named`` does not fit are not even looked at.

    Older is who was taken in an earlier life of the run, or in the same at an earlier round: a run that went back has
    fewer rounds than what it gave up."""
    found = []
    for place in sorted((state / CHECKPOINTS).glob(named)):
        with suppress(StateError):
            written_at = (place / MANIFEST).stat().st_mtime_ns if (place / MANIFEST).exists() else 0
            found.append((written_at, place, read_manifest(place)))
    return [
        (place, manifest)
        for _, place, manifest in sorted(found, key=lambda each: (each[2].epoch, each[2].round, each[0]))
    ]


def identity_of(checkpoint: Path) -> bytes:
    """What tells a checkpoint from every other: the first line of its manifest, which has the checksum of the rest."""
    read_manifest(checkpoint)
    return (checkpoint / MANIFEST).read_bytes().partition(b"\n")[0] + b"\n"


def write_manifest(place: Path, manifest: Manifest) -> None:
    """Durable when this returns: from then on the checkpoint counts. Raises OSError."""
    payload = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    write_durably(place / MANIFEST, [_MAGIC + f"{checksum(payload):08x}\n".encode(), payload])
    force_directory(place)
    force_directory(place.parent)
