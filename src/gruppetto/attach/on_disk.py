"""A checkpoint as files: written so that it is whole or not there, read with distrust. See
:mod:`gruppetto.attach.checkpoints` for what lies where."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from gruppetto.attach.shards import room_like
from gruppetto.errors import StateError
from gruppetto.files import content_of, open_file
from gruppetto.runtime.donation import digest_of
from gruppetto.runtime.durable import force_file

__all__ = [
    "FACTS_FILE",
    "FORMAT",
    "TEMPORARY",
    "Facts",
    "age_of",
    "check_files",
    "digest_of_facts",
    "facts_of",
    "file_digest",
    "is_checkpoint",
    "names_in",
    "read_tensors",
    "write_alone",
]

FORMAT = 2
"""1 had no digest of its facts; it is read, and what it holds is looked at as closely."""
FACTS_FILE = "learner.json"
TEMPORARY = ".writing"
READ_BYTES = 16 << 20


class Facts(msgspec.Struct, kw_only=True, frozen=True):
    """``learner.json``."""

    format: int
    optimizer: str
    numbers: list[tuple[str, str, int | float | bool | None]]
    learner: dict[str, int | float | str]
    tensors: dict[str, tuple[str, list[int]]]
    """dtype and shape of each, by key."""
    files: dict[str, tuple[int, str]]
    """Size and digest."""
    extra: dict[str, Any]
    digest: str = ""
    """Of all the rest of this file."""

    @classmethod
    def of_learner(cls, own: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Facts:
        """Of a learner without model and optimizer."""
        return cls(
            format=FORMAT,
            optimizer="",
            numbers=[],
            learner={key: value for key, value in own.items() if not isinstance(value, Tensor)},
            tensors={key: (str(t.dtype), list(t.shape)) for key, t in tensors.items()},
            files={},
            extra={},
        )


def is_checkpoint(place: Path) -> bool:
    """It is one of these, whole or not."""
    return (place / FACTS_FILE).is_file()


def write_alone(working: Path, tensors: dict[str, Tensor]) -> dict[str, tuple[int, str]]:
    """All of it, by one process; the files that came of it. Raises OSError."""
    shutil.rmtree(working, ignore_errors=True)
    _write_tensors(working, tensors)
    files = {}
    for path in sorted(working.iterdir()):
        force_file(path)
        files[path.name] = (path.stat().st_size, file_digest(path))
    return files


def _write_tensors(place: Path, tensors: dict[str, Tensor]) -> None:
    dcp = _distributed_checkpoint()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it is one process we know
        try:
            dcp.save(tensors, storage_writer=dcp.HuggingFaceStorageWriter(str(place)), no_dist=True)
        except dcp.CheckpointException as wrong:  # which is no Exception
            raise OSError(_first_line(wrong)) from wrong


def read_tensors(path: Path, facts: Facts, model: nn.Module) -> dict[str, Tensor]:
    """As ``model`` is placed: each rank reads its own blocks, however many have written them."""
    dcp = _distributed_checkpoint()
    try:
        tensors = {
            key: room_like(model, key, shape, getattr(torch, dtype.removeprefix("torch.")))
            for key, (dtype, shape) in facts.tensors.items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            dcp.load(tensors, storage_reader=dcp.HuggingFaceStorageReader(str(path)), no_dist=True)
    except (Exception, dcp.CheckpointException) as wrong:  # of many kinds, and none of them may end a learner
        raise StateError(f"cannot be read ({type(wrong).__name__}: {_first_line(wrong)})", where=str(path)) from wrong
    return tensors


def _first_line(wrong: BaseException) -> str:
    """A failure of distributed checkpoints carries one for each rank, with tracebacks."""
    each = getattr(wrong, "failures", {})
    inner = next((value[0] for value in each.values()), wrong)
    return str(inner).splitlines()[0] if str(inner) else type(inner).__name__


def _distributed_checkpoint() -> Any:
    """Seconds of imports: only when there is something to write or to read."""
    from torch.distributed import checkpoint

    if not hasattr(checkpoint, "HuggingFaceStorageWriter"):
        raise StateError(
            f"torch {torch.__version__} cannot write checkpoints as safetensors",
            where="Checkpoints",
            fix="use torch 2.8 or newer, or no checkpoints",
        )
    return checkpoint


def names_in(directory: Path) -> list[str]:
    """Of whole checkpoints, or what once was one."""
    try:
        return [e.name for e in directory.iterdir() if (e / FACTS_FILE).is_file() and not e.name.endswith(TEMPORARY)]
    except OSError:
        return []


def age_of(path: Path) -> tuple[int, str]:
    """By when it was written."""
    try:
        return (path / FACTS_FILE).stat().st_mtime_ns, path.name
    except OSError:
        return 0, path.name


def facts_of(path: Path) -> Facts:
    try:
        facts = msgspec.json.decode(content_of(path / FACTS_FILE), type=Facts)
    except OSError as wrong:
        raise StateError(f"is no whole checkpoint ({wrong.strerror})", where=str(path)) from wrong
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise StateError(f"is damaged ({wrong})", where=str(path)) from wrong
    if facts.format not in (1, FORMAT):
        raise StateError(f"has format {facts.format}, not {FORMAT}", where=str(path))
    if (facts.digest or facts.format != 1) and facts.digest != digest_of_facts(facts):
        raise StateError(f"{FACTS_FILE} is damaged", where=str(path))
    return facts


def digest_of_facts(facts: Facts) -> str:
    return digest_of(msgspec.json.encode(msgspec.structs.replace(facts, digest="")))


def check_files(path: Path, facts: Facts) -> None:
    for name, (size, digest) in facts.files.items():
        file = path / Path(name).name
        try:
            fine = file.stat().st_size == size and file_digest(file) == digest
        except OSError as wrong:
            raise StateError(f"lacks {name} ({wrong.strerror})", where=str(path)) from wrong
        if not fine:
            raise StateError(f"{name} is damaged", where=str(path))


def file_digest(path: Path) -> str:
    """Of a file, by its chunks: a digest of digests."""
    digests = []
    with open_file(path) as file:
        while chunk := file.read(READ_BYTES):
            digests.append(digest_of(chunk))
    return digest_of("".join(digests).encode())
