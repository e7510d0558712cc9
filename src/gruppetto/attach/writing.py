"""Writing a checkpoint while training goes on.

The copy to host memory and the writing are ours and not ``async_save``'s: a checkpoint is written under a temporary
name, forced to the disk and then renamed, so that a directory with a name is complete, and at most one is being
written. The ranks of a learner write one together (:mod:`gruppetto.attach.shards`).
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

from gruppetto.attach.on_disk import FACTS_FILE, TEMPORARY, Facts, digest_of_facts, file_digest, write_alone
from gruppetto.attach.shards import blocks_of, gather_files, write_blocks
from gruppetto.runtime.durable import force_directory, write_durably

if TYPE_CHECKING:
    from gruppetto.attach.learner import Learner

__all__ = ["Taken", "Writer"]

log = logging.getLogger("gruppetto.learner")


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What this rank is to write, as it was at one moment. Where there are ranks, blocks, with their ``offsets``."""

    tensors: dict[str, Tensor]
    facts: Facts
    offsets: dict[str, tuple[int, ...]]
    rank: int
    size: int
    session: str
    """Of this life of the learner: files of an earlier one are no part of it."""


class Writer:
    """Writes one checkpoint at a time, on a thread of its own. What goes wrong is said in the log."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._host: dict[str, Tensor] = {}

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Until what was begun is on the disk."""
        if self._thread is not None:
            self._thread.join()

    def copied(self, tensors: dict[str, Tensor], facts: Facts, learner: Learner) -> Taken:
        """What this rank is to write of these, as it is now; the one before is on the disk by then."""
        ranks, offsets = learner.ranks, dict[str, tuple[int, ...]]()
        if ranks is not None:
            blocks = blocks_of(tensors, leads=ranks.leads)
            tensors = {key: block for key, (block, _) in blocks.items()}
            offsets = {key: place for key, (_, place) in blocks.items()}
        self._copy(tensors)
        rank, size = (0, 1) if ranks is None else (ranks.rank, ranks.size)
        return Taken(
            tensors=dict(self._host), facts=facts, offsets=offsets, rank=rank, size=size, session=learner.session
        )

    def begin(self, place: Path, taken: Taken, *, then: Callable[[], None] = lambda: None) -> Future[str]:
        """Write it there; where it is, once it is durable. ``then`` is called before that is said."""
        written: Future[str] = Future()
        self._thread = threading.Thread(
            target=self._write, args=(place, taken, written, then), name="gruppetto-checkpoint", daemon=True
        )
        self._thread.start()
        return written

    @torch.no_grad()
    def _copy(self, tensors: Mapping[str, Tensor]) -> None:
        """Into host memory that is used again: first touch of fresh memory costs several times as much."""
        for key, tensor in tensors.items():
            room = self._host.get(key)
            if room is None or room.shape != tensor.shape or room.dtype != tensor.dtype:
                self._host[key] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        for key in self._host.keys() - tensors.keys():
            del self._host[key]
        for key, tensor in tensors.items():
            self._host[key].copy_(tensor.detach())

    def _write(self, place: Path, taken: Taken, written: Future[str], then: Callable[[], None]) -> None:
        working = place.with_name(place.name + TEMPORARY)
        try:
            if taken.size == 1:
                files = write_alone(working, taken.tensors)
            else:
                blocks = {key: (tensor, taken.offsets[key]) for key, tensor in taken.tensors.items()}
                write_blocks(working, blocks, rank=taken.rank, session=taken.session, digest=file_digest)
                if taken.rank > 0:
                    written.set_result(str(place))
                    return
                files = gather_files(working, size=taken.size, session=taken.session)
            facts = msgspec.structs.replace(taken.facts, files=files)
            facts = msgspec.structs.replace(facts, digest=digest_of_facts(facts))
            write_durably(working / FACTS_FILE, [msgspec.json.encode(facts)])
            force_directory(working)
            if place.exists():
                shutil.rmtree(place)
            working.rename(place)
            force_directory(place.parent)
            then()
            written.set_result(str(place))
        except Exception as wrong:
            log.warning("the checkpoint %s could not be written (%s); training goes on", place, wrong)
            if taken.rank == 0:
                shutil.rmtree(working, ignore_errors=True)
            written.set_exception(wrong)
