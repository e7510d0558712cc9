"""The ranks of one learner, and what they say to each other: a few small collectives on a gloo group of their own.

At a step boundary every rank tells rank 0 how it stands (one ``reduce``) and hears what to do (one ``broadcast``); the
word is the same bytes everywhere, so all ranks do the same at the same step. A rank that has gone shows at once, as its
connections close; one that hangs after :data:`PATIENCE_S`. Either ends the learner with one line.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gruppetto.attach.holding import is_distributed
from gruppetto.errors import LayoutError, RunFailed

__all__ = ["Ranks", "ranks_of"]

log = logging.getLogger("gruppetto.learner")

PATIENCE_S = 600.0
"""For a rank that does not come to a boundary: rank 0 may evaluate or save meanwhile. As long as torch's own groups."""
SAYS_AFTER_S = 10.0
"""A rank that has left its loop says that it waits for the others, if they do not leave theirs soon."""
WORD_BYTES = 4096
"""Of the one broadcast of a boundary; the rest of a longer word follows in a second one."""


class Ranks:
    """The processes of ``group``, in its order, as one learner. Making it is collective, and raises
    :class:`RunFailed` if one of them has gone.

    Its own group is made under a name that is new every time, and not by ``new_group``: after a restart under
    ``torchrun`` the store may still hold what the processes before have left under the old names. ``device``: where
    collectives of ``group`` take their tensors.
    """

    def __init__(self, group: Any, *, device: torch.device | None = None, patience_s: float = PATIENCE_S) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        name = torch.tensor([secrets.randbits(62)], dtype=torch.int64, device=device)
        try:
            dist.broadcast(name, dist.get_process_group_ranks(group)[0], group=group)
            store = dist.PrefixStore(f"gruppetto/{int(name)}", group.get_group_store())  # type: ignore[attr-defined]
            self._store: Any = store
            self._group: Any = dist.ProcessGroupGloo(store, self.rank, self.size, timedelta(seconds=patience_s))
        except RuntimeError as wrong:
            raise _gone(wrong) from wrong
        self._room = torch.zeros(WORD_BYTES, dtype=torch.uint8)

    @property
    def leads(self) -> bool:
        """This is rank 0, which has the core."""
        return self.rank == 0

    def store(self) -> Any:
        """The group's key-value store, by a connection of its own; None if it cannot be had."""
        try:
            return self._store.clone()
        except Exception:  # not every kind of store can be shared between threads
            return None

    def lowest(self, numbers: list[int]) -> list[int]:
        """The lowest of what the ranks have at each place, at rank 0; elsewhere nothing that means anything."""
        tensor = torch.tensor(numbers, dtype=torch.int64)
        self._do(lambda group: group.reduce(tensor, 0, dist.ReduceOp.MIN))
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
        self._do(lambda group: group.allgather(lengths, torch.tensor([len(own)])))
        longest = max(int(length) for length in lengths)
        rooms = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        mine = torch.frombuffer(bytearray(own.ljust(longest, b"\0")), dtype=torch.uint8)
        self._do(lambda group: group.allgather(rooms, mine))
        return [_bytes(room)[: int(length)] for room, length in zip(rooms, lengths, strict=True)]

    @contextmanager
    def waiting_to_leave(self, learner: str, *, says_after_s: float = SAYS_AFTER_S) -> Iterator[None]:
        """Around what a rank does behind its loop. In the others the loop's own collectives may wait for this one:
        neither can end then, which is said."""

        def say() -> None:
            log.warning(
                "%s: rank %d has left its loop and waits for the other ranks, which still train, %g s at most; "
                "all ranks of a learner have to take equally many steps: give them equally much data",
                learner,
                self.rank,
                PATIENCE_S,
            )

        timer = threading.Timer(says_after_s, say)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def close(self) -> None:
        """Let go of the group: whoever still waits for this rank sees that it has gone. May be called twice."""
        self._group = None  # whose connections end with it

    def _cast(self, room: Tensor, data: bytes | None = None) -> bytes:
        if data is not None:
            room[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._do(lambda group: group.broadcast(room, 0))
        return b"" if data is not None else _bytes(room)

    def _do(self, collective: Callable[[Any], Any]) -> None:
        if self._group is None:
            raise RunFailed("this learner's ranks have parted already")
        try:
            collective(self._group).wait()
        except RuntimeError as wrong:
            self.close()
            raise _gone(wrong) from wrong


def _gone(wrong: Exception) -> RunFailed:
    return RunFailed(
        f"another rank of this learner has gone, or did not come to a step boundary ({_short(wrong)}); its own output "
        "says why, and all ranks end: start them again together (torchrun --max-restarts does)"
    )


def ranks_of(model: nn.Module, process_group: Any) -> Any:
    """The process group of the learner that ``model`` belongs to; None if this process is all of it.

    ``process_group`` if there is one; else that of DistributedDataParallel; else all that take part in
    ``torch.distributed``, which the meshes of distributed parameters must span. Raises :class:`LayoutError`.
    """
    begun = dist.is_available() and dist.is_initialized()
    if process_group is not None and not (begun and isinstance(process_group, dist.ProcessGroup)):
        if begun and process_group == dist.GroupMember.NON_GROUP_MEMBER:
            what = "does not hold this process"
        elif begun:
            what = f"is {process_group!r:.80}, which is no process group"
        else:
            what = f"is {process_group!r:.80}, but torch.distributed has not begun in this process"
        raise LayoutError(
            what, where="Learner.process_group", fix="pass what torch.distributed.new_group gave, or nothing"
        )
    if not begun:
        return None
    group = process_group
    if group is None:
        group = model.process_group if isinstance(model, DistributedDataParallel) else dist.group.WORLD
    found = dist.get_process_group_ranks(group)
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
    return group if len(found) > 1 else None


def _bytes(tensor: Tensor) -> bytes:
    octets: bytes = tensor.numpy().tobytes()
    return octets


def _few(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")


def _short(wrong: Exception) -> str:
    return (str(wrong).splitlines() or [type(wrong).__name__])[0][:120]
