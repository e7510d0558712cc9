"""A learner's part of a checkpoint of the whole run, on its own disk: written in the background, without pickle.

::

    DIRECTORY/MARK/
      part.safetensors    every tensor: model, optimizer, bases, and what else the loop has to remember
      part.json           everything that is no tensor, and the checksum of the other file; written last

The ranks of a learner write one together, in the form of their own checkpoints (:mod:`gruppetto.attach.shards`): any
number of ranks goes on from it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from gruppetto.attach.checkpoints import Checkpoints, is_checkpoint
from gruppetto.attach.optimizers import Optimizers, as_one
from gruppetto.errors import StateError
from gruppetto.files import content_of, json_in
from gruppetto.runtime.durable import force_directory, write_durably
from gruppetto.runtime.manifest import BY_TIMER
from gruppetto.runtime.wire import checksum

if TYPE_CHECKING:
    from gruppetto.attach.learner import Learner

__all__ = ["Parts", "load_part", "put_together", "read_files", "remove_unneeded", "take_apart", "write_files"]

PART_VERSION = 1
TENSORS, REST = "part.safetensors", "part.json"
EXTRA = "extra"


class Parts:
    """Saves parts under ``directory``: give it to :class:`gruppetto.Learner` as ``on_checkpoint``.

    ``extra`` is asked at the moment of the cut for whatever else belongs to it: tensors, numbers and text by name.
    What has to be copied is copied before the call returns; writing goes on in a thread of its own. Of many ranks each
    gives one to its learner, for one directory that all of them see; ``extra`` is then rank 0's.
    """

    def __init__(
        self,
        directory: Path,
        model: nn.Module,
        optimizer: Optimizers,
        *,
        extra: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._directory, self._model, self._extra = directory, model, extra
        self._optimizer = as_one(optimizer)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gruppetto-part")
        self._together: Checkpoints | None = None

    def __call__(self, learner: Learner, mark: str) -> Future[str]:
        """Save the part of checkpoint ``mark``; where it lies, once it is durable."""
        kept = learner.marks_kept
        if learner.ranks is not None:
            if self._together is None:
                self._together = Checkpoints(self._directory)
            beside: dict[str, Tensor] = {}
            extra = take_apart(dict(self._extra()), EXTRA, beside)
            written = self._together.save_at(
                self._directory / mark, self._model, self._optimizer, learner, extra={EXTRA: extra}, beside=beside
            )
            if learner.ranks.rank == 0:
                written.add_done_callback(lambda _: remove_unneeded(self._directory, {mark, *kept}))
            return written
        tensors: dict[str, Tensor] = {}
        rest = {
            "model": take_apart(self._model.state_dict(), "model", tensors),
            "optimizer": take_apart(self._optimizer.state_dict(), "optimizer", tensors),
            "learner": take_apart(learner.state_dict(), "learner", tensors),
            "extra": take_apart(dict(self._extra()), "extra", tensors),
        }
        written = self._writer.submit(write_files, self._directory / mark, tensors, rest)
        written.add_done_callback(lambda _: remove_unneeded(self._directory, {mark, *kept}))
        return written

    def close(self) -> None:
        """Finish what was begun."""
        self._writer.shutdown(wait=True)
        if self._together is not None:
            self._together.wait()


def load_part(place: Path, model: nn.Module, optimizer: Optimizers, learner: Learner) -> dict[str, Any]:
    """Put the part in ``place`` into all three, which are made as they were then; what ``extra`` gave comes back.

    Before the learner's ``with`` block. It goes on in the life that it was saved in: for a run that is resumed as a
    whole. Raises :class:`StateError` for a part that is damaged, incomplete, or of another model.
    """
    if is_checkpoint(place):
        plain, beside = Checkpoints(place.parent).load_all(place, model, optimizer, learner, same_life=True)
        found: dict[str, Any] = put_together(plain.get(EXTRA, {"pairs": []}), beside)
        return found
    if learner.ranks is not None:
        raise StateError(
            "was written by a learner of one rank, this one has several",
            where=str(place),
            fix="go on with one, or begin without it",
        )
    tensors, rest = read_files(place)
    inner = as_one(optimizer)
    try:
        model.load_state_dict(put_together(rest["model"], tensors))
        inner.load_state_dict(put_together(rest["optimizer"], tensors))
        learner.load_state_dict(put_together(rest["learner"], tensors), same_life=True)
        extra: dict[str, Any] = put_together(rest["extra"], tensors)
    except StateError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError) as wrong:
        raise StateError(
            f"does not fit this model and optimizer ({str(wrong).splitlines()[0][:200]})",
            where=str(place),
            fix="build both as the run that was saved did",
        ) from wrong
    return extra


def take_apart(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """``value`` as JSON can say it; each tensor is copied into ``tensors``, and its name stands in its place."""
    match value:
        case Tensor():
            tensors[name] = value.detach().to("cpu", copy=True).contiguous()
            return {"tensor": name}
        case Mapping():
            return {"pairs": [[key, take_apart(item, f"{name}.{key}", tensors)] for key, item in value.items()]}
        case list() | tuple():
            items = [take_apart(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
            return {"tuple" if isinstance(value, tuple) else "list": items}
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise StateError(
                f"{name} is a {type(value).__name__}, which is no tensor, number or text", where="checkpoint"
            )


def put_together(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of :func:`take_apart`."""
    if not isinstance(plain, dict):
        return plain
    ((kind, content),) = plain.items()
    match kind:
        case "tensor":
            return tensors[content]
        case "pairs":
            return {key: put_together(item, tensors) for key, item in content}
        case "list":
            return [put_together(item, tensors) for item in content]
        case "tuple":
            return tuple(put_together(item, tensors) for item in content)
    raise ValueError(f"a {kind!r} is nothing that was written")


def write_files(place: Path, tensors: dict[str, Tensor], rest: dict[str, Any]) -> str:
    """Make ``place`` a directory of both files, whole or not at all; where it is. Raises OSError."""
    shutil.rmtree(place, ignore_errors=True)  # of a checkpoint that was never complete
    place.mkdir(parents=True)
    data = safetensors.torch.save(tensors)
    write_durably(place / TENSORS, [data])
    head = {"version": PART_VERSION, "tensors": {"size_bytes": len(data), "checksum": checksum(data)}}
    write_durably(place / REST, [json.dumps({**head, **rest}).encode()])
    for directory in (place, place.parent):
        force_directory(directory)
    return str(place.absolute())


def remove_unneeded(directory: Path, needed: Collection[str]) -> None:
    """Remove parts of checkpoints by the syncer's timer that are not among ``needed``; those that people named stay."""
    for place in directory.glob(f"{BY_TIMER}*"):
        if place.name not in needed:
            shutil.rmtree(place, ignore_errors=True)


def read_files(place: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, the rest) of what :func:`write_files` wrote, checked. Raises :class:`StateError`."""
    try:
        rest: dict[str, Any] = json_in(place / REST)
        if rest["version"] != PART_VERSION:
            raise ValueError(f"it has format {rest['version']}, and {PART_VERSION} is read here")
        data = content_of(place / TENSORS)
        if (len(data), checksum(data)) != (rest["tensors"]["size_bytes"], rest["tensors"]["checksum"]):
            raise ValueError("the checksum of its tensors is wrong")
        return safetensors.torch.load(data), rest
    except OSError as wrong:
        raise StateError(
            f"holds no part of a checkpoint ({wrong.strerror})", where=str(place), fix="name what the manifest names"
        ) from wrong
    except (KeyError, TypeError, ValueError, SafetensorError) as wrong:
        raise StateError(f"is damaged ({wrong})", where=str(place), fix="resume from another checkpoint") from wrong
