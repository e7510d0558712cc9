"""A checkpoint of the whole run on the syncer's disk, and how a run begins again from one.

::

    STATE/checkpoints/NAME/
      epochs/ commits/ layout.json    the syncer's part: a state directory in itself, of linked files
      manifest.json                   who is in it, and where the learners' parts lie; written last

A directory without a manifest is no checkpoint: something ended before it was complete. The learners' parts lie where
the learners keep them; the manifest says what they said.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gruppetto.errors import StateError
from gruppetto.files import content_of
from gruppetto.protocol.actions import Checkpoint, CheckpointClosed, CheckpointRefused
from gruppetto.protocol.events import CheckpointRecorded, SyncerEvent, TakeCheckpoint
from gruppetto.protocol.state import without_the_absent
from gruppetto.protocol.units import Epoch, Round
from gruppetto.runtime.authority import Authority
from gruppetto.runtime.checkpoint_timer import by_timer, name_by_timer, remove_old
from gruppetto.runtime.commits import COMMITS
from gruppetto.runtime.durable import force_directory, write_durably
from gruppetto.runtime.manifest import (
    BY_TIMER,
    CHECKPOINTS,
    MANIFEST,
    MANIFEST_VERSION,
    Manifest,
    PartOf,
    identity_of,
    read_manifest,
    write_manifest,
)
from gruppetto.runtime.plausible import is_name
from gruppetto.runtime.store import LAYOUTS, Store, holds_commits
from gruppetto.runtime.worker import Worker

__all__ = ["EPOCHS_APART", "RunCheckpoints", "goes_on_from", "install"]

_log = logging.getLogger("gruppetto.syncer")

BEGUN_FROM = "begun-from"
"""In a state directory: which checkpoint it was begun from."""

EPOCHS_APART = 1000
"""A run that is resumed in another directory cannot know which epochs were claimed after the cut. It begins so many
later, so that what was said in those lives is refused by its number."""
MOST_NUMBERED = 1_000_000


class RunCheckpoints:
    """Carries out what the core decides about checkpoints. ``feed`` takes the completions.

    ``report`` is what people see of the newest one.
    """

    def __init__(
        self,
        store: Store,
        disk: Worker,
        *,
        rounds: int | None,
        kept: int,
        feed: Callable[[SyncerEvent], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._store, self._disk, self._rounds, self._kept = store, disk, rounds, kept
        self._feed, self._fail = feed, fail
        self.report: dict[str, Any] | None = None

    def take(self, name: str) -> None:
        """Ask the core for a checkpoint called ``name`` (default: the next number).

        Raises :class:`StateError` for a name that cannot be used, and while another one is being taken.
        """
        if self.waiting:
            assert self.report is not None
            raise StateError(
                f"checkpoint {self.report['mark']} is being taken", where="checkpoint", fix="ask again when it is done"
            )
        if name.startswith(BY_TIMER):
            raise StateError(
                f"names with {BY_TIMER} are of checkpoints that go by themselves", where="checkpoint", fix="use another"
            )
        mark = name or self._next_name()
        if not is_name(mark):
            raise StateError(f"{mark[:40]!r} is no name", where="checkpoint", fix="use letters, digits or . _ -")
        if (self._place(mark) / MANIFEST).exists():
            raise StateError(f"there is a checkpoint {mark!r} already", where="checkpoint", fix="use another name")
        self._begin(mark)

    @property
    def waiting(self) -> bool:
        """One is being taken."""
        return self.report is not None and self.report["stage"] == "waiting"

    def take_by_timer(self, round: Round) -> None:
        """Take one of ``round``, unless it is there already or another one is being taken."""
        mark = name_by_timer(self._store.epoch, round)
        if not self.waiting and not (self._place(mark) / MANIFEST).exists():
            self._begin(mark)

    def _begin(self, mark: str) -> None:
        self.report = {"mark": mark, "stage": "waiting"}
        kept = tuple(place.name for place, _ in by_timer(self._store.path))
        self._feed(TakeCheckpoint(mark=mark, kept=kept))

    def perform(self, action: Checkpoint | CheckpointClosed | CheckpointRefused) -> None:
        """Write, or say what came of it."""
        match action:
            case Checkpoint():
                self._record(action)
            case CheckpointClosed(why=""):
                self._complete(action)
            case CheckpointClosed():
                self._say(action, "failed", why=action.why)
            case CheckpointRefused():
                _log.info("no checkpoint %s: %s", action.mark, action.why)
                self.report = {"mark": action.mark, "stage": "refused", "why": action.why}

    def _record(self, action: Checkpoint) -> None:
        place = self._place(action.mark)

        def write() -> None:
            shutil.rmtree(place, ignore_errors=True)  # of a checkpoint that was never complete
            self._store.copy_to(place, action.state, self._store.epoch)

        def failed(error: Exception) -> None:
            if not isinstance(error, OSError):
                self._fail(error)
                return
            self._feed(CheckpointRecorded(mark=action.mark, why=error.strerror or str(error)))

        self._disk.submit(write, lambda _: self._feed(CheckpointRecorded(mark=action.mark)), failed)

    def _complete(self, action: CheckpointClosed) -> None:
        manifest = Manifest(
            version=MANIFEST_VERSION,
            run_id=self._store.run_id,
            mark=action.mark,
            round=action.round,
            epoch=self._store.epoch,
            rounds=self._rounds,
            parts=tuple(PartOf(learner=name, incarnation=life, where=where) for name, life, where in action.parts),
            left_out=action.left_out,
        )

        def failed(error: Exception) -> None:
            if not isinstance(error, OSError):
                self._fail(error)
                return
            self._say(action, "failed", why=error.strerror or str(error))

        def write() -> None:
            write_manifest(self._place(action.mark), manifest)
            remove_old(self._store.path, self._kept)

        self._disk.submit(write, lambda _: self._say(action, "done"), failed)

    def _say(self, action: CheckpointClosed, stage: str, why: str = "") -> None:
        left_out = f", without {', '.join(name for name, _ in action.left_out)}" if action.left_out else ""
        _log.info("checkpoint %s of round %d: %s%s%s", action.mark, action.round, stage, left_out, why and f" ({why})")
        self.report = {
            "mark": action.mark,
            "stage": stage,
            "round": action.round,
            "path": str(self._place(action.mark).absolute()),
            "learners": {name: {"incarnation": life, "part": where} for name, life, where in action.parts},
            "left_out": dict(action.left_out),
            "why": why,
        }

    def _place(self, mark: str) -> Path:
        return self._store.path / CHECKPOINTS / mark

    def _next_name(self) -> str:
        names = (f"checkpoint-{number}" for number in range(1, MOST_NUMBERED))
        return next(name for name in names if not (self._place(name) / MANIFEST).exists())


def install(checkpoint: Path, state: Path) -> Manifest:
    """Make ``state`` the state directory of a run that goes on from ``checkpoint``; what is there is put aside.

    Accounts of learners without a part are closed. Raises :class:`StateError` if the directory is in use, belongs to
    another run, or the checkpoint is damaged.
    """
    manifest = read_manifest(checkpoint)
    lives = {part.learner: part.incarnation for part in manifest.parts}
    with Store(checkpoint, identity=None) as part:
        for _ in part.load():
            pass  # everything is checked before anything is moved
        if part.found:
            raise StateError(
                f"is damaged: {part.found[0]}", where=str(checkpoint), fix="resume from another checkpoint"
            )
        assert part.state is not None
        claimed = Authority(state).newest()
        epoch = Epoch(1 + max(claimed, manifest.epoch)) if claimed else Epoch(manifest.epoch + EPOCHS_APART)
        resumed = without_the_absent(part.state, lives, epoch)
        try:
            if holds_commits(state):
                with Store(state, identity=None, run_id=manifest.run_id):
                    _put_aside(state)
            state.mkdir(parents=True, exist_ok=True)
            write_durably(state / BEGUN_FROM, [identity_of(checkpoint)])
            part.copy_to(state, resumed, epoch)
        except OSError as wrong:
            raise StateError(
                f"cannot be written ({wrong.strerror})", where=str(state), fix="make room for it, or name another"
            ) from wrong
    return manifest


def goes_on_from(checkpoint: Path, state: Path) -> bool:
    """Whether the run in ``state`` was begun from this very checkpoint: then it is not to be put back again."""
    try:
        begun_from = content_of(state / BEGUN_FROM)
    except OSError:
        return False
    return holds_commits(state) and begun_from == identity_of(checkpoint)


def _put_aside(state: Path) -> None:
    """What the run had become after the cut is kept, out of the way. The fence stays where it is."""
    aside = next(
        state / f"before-resume-{n}" for n in range(1, MOST_NUMBERED) if not (state / f"before-resume-{n}").exists()
    )
    aside.mkdir()
    for name in (COMMITS, *LAYOUTS):
        with suppress(FileNotFoundError):
            (state / name).rename(aside / name)
    force_directory(state)
