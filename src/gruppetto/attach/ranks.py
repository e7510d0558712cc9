"""The ranks of one learner, and what they say to each other: a few small collectives on a gloo group of their own.

At a step boundary every rank tells rank 0 how it stands (one ``reduce``) and hears what to do (one ``broadcast``); the
word is the same bytes everywhere, so all ranks do the same at the same step. A rank that has gone shows at once, as its
connections close; one that hangs after :data:`PATIENCE_S`. Either ends the learner with one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gruppetto.attach.holding import is_distributed
from gruppetto.errors import LayoutError, RunFailed

__all__ = ["Ranks", "ranks_of"]

PATIENCE_S = 600.0
"""For a rank that does not come to a boundary: rank 0 may evaluate or save meanwhile. As long as torch's own groups."""
WORD_BYTES = 4096
"""Of the one broadcast of a boundary; the rest of a longer word follows in a second one."""


class Ranks:
    """The processes with these ranks in the default group, in this order, as one learner. Making it is collective."""

    def __init__(self, members: Sequence[int], *, patience_s: float = PATIENCE_S) -> None:
        self.rank, self.size = list(members).index(dist.get_rank()), len(members)
        self._first = members[0]
        self._group: Any = dist.new_group(
            list(members),
            backend="gloo",
            timeout=timedelta(seconds=patience_s),
            use_local_synchronization=True,  # the others of the default group need not take part
        )
        self._room = torch.zeros(WORD_BYTES, dtype=torch.uint8)

    @property
    def leads(self) -> bool:
        """This is rank 0, which has the core."""
        return self.rank == 0

    def store(self) -> Any:
        """The group's key-value store, by a connection of its own; None if it cannot be had."""
        try:
            return self._group.get_group_store().clone()
        except Exception:  # not every kind of store can be shared between threads
            return None

    def lowest(self, numbers: list[int]) -> list[int]:
        """The lowest of what the ranks have at each place, at rank 0; elsewhere nothing that means anything."""
        tensor = torch.tensor(numbers, dtype=torch.int64)
        self._do(lambda: dist.reduce(tensor, self._first, op=dist.ReduceOp.MIN, group=self._group))
        return tensor.tolist()

    def tell(self, word: bytes) -> None:
        """From rank 0 to all; they call :meth:`hear`."""
        self._cast(self._room, len(word).to_bytes(8, "little") + word[: WORD_BYTES - 8])
        if len(word) > WORD_BYTES - 8:
            rest = word[WORD_BYTES - 8 :]
            self._cast(torch.zeros(len(rest), dtype=torch.uint8), rest)

    def hear(self) -> bytes:
        """What rank 0 tells."""
        head = self._cast(self._room)
        length = int.from_bytes(head[:8], "little")
        if length > WORD_BYTES - 8:
            return head[8:] + self._cast(torch.zeros(length - (WORD_BYTES - 8), dtype=torch.uint8))
        return head[8 : 8 + length]

    def everybody(self, own: bytes) -> list[bytes]:
        """What each rank gives, by rank."""
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._do(lambda: dist.all_gather(lengths, torch.tensor([len(own)]), group=self._group))
        longest = max(int(length) for length in lengths)
        rooms = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        mine = torch.frombuffer(bytearray(own.ljust(longest, b"\0")), dtype=torch.uint8)
        self._do(lambda: dist.all_gather(rooms, mine, group=self._group))
        return [_bytes(room)[: int(length)] for room, length in zip(rooms, lengths, strict=True)]

    def close(self) -> None:
        """Let go of the group: whoever still waits for this rank sees that it has gone. May be called twice."""
        group, self._group = self._group, None
        if group is not None:
            with suppress(Exception):
                dist.destroy_process_group(group)

    def _cast(self, room: Tensor, data: bytes | None = None) -> bytes:
        if data is not None:
            room[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._do(lambda: dist.broadcast(room, self._first, group=self._group))
        return b"" if data is not None else _bytes(room)

    def _do(self, collective: Any) -> None:
        if self._group is None:
            raise RunFailed("this learner's ranks have parted already")
        try:
            collective()
        except RuntimeError as wrong:
            self.close()
            raise RunFailed(
                f"another rank of this learner has gone, or did not come to a step boundary ({_short(wrong)}); all "
                "ranks end: start them again together (torchrun --max-restarts does)"
            ) from wrong


def ranks_of(model: nn.Module, process_group: Any) -> list[int] | None:
    """The ranks, in the default group, of the learner that ``model`` belongs to; None if this process is all of it.

    ``process_group`` if there is one; else that of DistributedDataParallel; else all that take part in
    ``torch.distributed``, which the meshes of distributed parameters must span. Raises :class:`LayoutError`.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    if process_group is not None:
        found = dist.get_process_group_ranks(process_group)
    elif isinstance(model, DistributedDataParallel):
        found = dist.get_process_group_ranks(model.process_group)
    else:
        found = list(range(dist.get_world_size()))
    if dist.get_rank() not in found:
        raise LayoutError(
            "does not hold this process", where="Learner.process_group", fix="name the learner's own ranks"
        )
    if any(is_distributed(parameter.detach()) for parameter in model.parameters()):
        from gruppetto.attach.blocks import meshes_of

        for mesh in meshes_of(model):
            if not set(mesh) <= set(found) or (process_group is None and set(mesh) != set(found)):
                raise LayoutError(
                    f"parameters are spread over ranks {_few(mesh)}, the learner has {_few(tuple(found))}",
                    where="Learner.process_group",
                    fix="name the group of all ranks that hold this model together",
                )
    return found if len(found) > 1 else None


def _bytes(tensor: Tensor) -> bytes:
    octets: bytes = tensor.numpy().tobytes()
    return octets


def _few(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")


def _short(wrong: Exception) -> str:
    return (str(wrong).splitlines() or [type(wrong).__name__])[0][:120]
