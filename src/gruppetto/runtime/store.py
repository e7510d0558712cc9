"""The durable state of a syncer, in one directory (section 9).

::

    DIR/
      lock              held by the living syncer, so that there is only one
      state.msgpack     the commit: who, which round, which files (a checksum line, then msgpack)
      layout.json       the model's tensors
      fragments/        p00007.v42.safetensors: "theta" and the outer optimizer's "state.0", … of fragment 7, version 42

A commit writes the new fragment files, then ``state.msgpack``, which names every file that belongs to it with size and
checksum; only then are the files of the commit before removed. So there is exactly one commit at every moment, and it
is complete. What does not check out is an error that names the file: a run never starts silently from nothing.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from gruppetto.errors import LayoutError, StateError
from gruppetto.numerics.codec import Buffer
from gruppetto.numerics.kernels import Float32
from gruppetto.numerics.layout import Layout
from gruppetto.numerics.outer import OuterState
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.units import Epoch, Fragment, Version
from gruppetto.runtime.durable import TEMPORARY, force_directory, write_durably
from gruppetto.runtime.tensorfile import tensors_header
from gruppetto.runtime.wire import checksum

__all__ = ["STORE_VERSION", "Identity", "Store", "cannot_write"]

STORE_VERSION = 1
_MAGIC = b"gruppetto state "

_FRAGMENT = re.compile(r"p\d{5,}\.v\d+\.safetensors(\.tmp)?")
"""Files that this module made, and may remove. It touches no other."""
_HALF_WRITTEN = frozenset(name + TEMPORARY for name in ("state.msgpack", "layout.json", "endpoint.json"))
_NOT_FOREIGN = _HALF_WRITTEN | {"lock", "fragments", "layout.json", "endpoint.json", "lost+found"}
_DIARIES = frozenset({".jsonl", ".log"})
"""Traces and logs may be written beside the state, and are opened before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What may not change between two lives of a run, because the files depend on it."""

    fragments_asked: int
    fragmenter: str
    merge: tuple[tuple[str, str], ...]
    optimizer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    name: str
    version: Version
    size_bytes: int
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commit:
    store: int
    run_id: str
    epoch: Epoch
    """The newest epoch that was claimed; at least that of ``state``."""
    identity: Identity
    state: SyncerState | None
    files: tuple[_File, ...]
    """One per fragment; empty until seeded."""


class Store:
    """One syncer's directory, open and locked.

    Raises :class:`StateError` when the directory is in use, belongs to another run, or is damaged.
    """

    def __init__(self, path: Path, *, identity: Identity | None, run_id: str = "") -> None:
        """Open ``path``, or begin it. ``run_id`` names the run; "" takes what is there, or makes a name up.

        Without an ``identity`` the directory is opened to be looked at, and begun by nobody.
        """
        self.path = path
        self._fragments = path / "fragments"
        self._lock = -1
        try:
            self._check_that_it_is_ours()
            self._fragments.mkdir(parents=True, exist_ok=True)
            for directory in (path, path.parent):
                force_directory(directory)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._take_lock()
            self._commit = self._open(identity, run_id)
            self._sweep()
        except OSError as wrong:
            self.close()
            raise StateError(
                f"cannot be used as a state directory ({wrong.strerror})", where=str(path), fix="name another"
            ) from wrong
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def run_id(self) -> str:
        return self._commit.run_id

    @property
    def identity(self) -> Identity:
        return self._commit.identity

    @property
    def epoch(self) -> Epoch:
        """The newest epoch claimed; 0 in a new directory."""
        return self._commit.epoch

    @property
    def state(self) -> SyncerState | None:
        """The last commit; None before the first."""
        return self._commit.state

    def claim_epoch(self) -> Epoch:
        """Begin a new life: its epoch is durable when this returns, and no other life will ever have it.

        Raises :class:`StateError` if it cannot be written.
        """
        commit = replace(self._commit, epoch=Epoch(self._commit.epoch + 1))
        try:
            self._write(commit)
        except OSError as wrong:
            raise cannot_write(self.path / "state.msgpack", wrong) from wrong
        return commit.epoch

    def commit(
        self, state: SyncerState, fragments: Mapping[Fragment, tuple[Float32, OuterState]], layout: Layout
    ) -> None:
        """Make ``state`` and these fragments durable, all or nothing. Those not given stay as they are.

        Raises OSError, and then the commit before is still the one that counts.
        """
        assert state.run_id == self.run_id and state.epoch <= self.epoch
        if self.state is None:
            self._write_layout(layout)
        files = dict(enumerate(self._commit.files))
        for p, (theta, outer_state) in sorted(fragments.items()):
            files[p] = self._write_fragment(p, state.versions[p], theta, outer_state)
        assert tuple(files[p].version for p in range(len(files))) == state.versions
        if fragments:
            force_directory(self._fragments)
        self._write(replace(self._commit, state=state, files=tuple(files[p] for p in range(len(files)))))
        self._sweep()

    def layout(self) -> Layout:
        """The run's layout. Only after a commit."""
        path = self.path / "layout.json"
        assert self.state is not None
        try:
            layout = Layout.from_dict(json.loads(path.read_bytes()))
        except RecursionError as wrong:
            raise _damaged(path, "it is nested too deeply") from wrong
        except (OSError, ValueError) as wrong:  # LayoutError is a ValueError
            raise _damaged(path, str(wrong) if not isinstance(wrong, LayoutError) else wrong.what) from wrong
        if layout.layout_hash != self.state.layout_hash:
            raise _damaged(path, "it is not the layout that the state belongs to")
        return layout

    def load(self) -> Iterator[tuple[Fragment, Float32, OuterState]]:
        """Every fragment of the last commit, checked."""
        for p, file in enumerate(self._commit.files):
            path = self._fragments / file.name
            try:
                data = path.read_bytes()
            except OSError as wrong:
                raise _damaged(path, wrong.strerror or "unreadable") from wrong
            if len(data) != file.size_bytes:
                raise _damaged(path, f"it has {len(data)} bytes instead of {file.size_bytes}")
            if checksum(data) != file.checksum:
                raise _damaged(path, "its checksum is wrong")
            yield Fragment(p), *_read_tensors(path, data)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_that_it_is_ours(self) -> None:
        """A directory full of something else is most likely a slip of the pen."""
        if not self.path.exists() or (self.path / "state.msgpack").exists():
            return
        found = [*self.path.iterdir(), *(self._fragments.iterdir() if self._fragments.is_dir() else ())]
        for path in sorted(found):
            if not (path.name in _NOT_FOREIGN or path.suffix in _DIARIES or _FRAGMENT.fullmatch(path.name)):
                raise StateError(
                    f"is not a state directory: it holds {str(path.relative_to(self.path))!r} and no state.msgpack",
                    where=str(self.path),
                    fix="name an empty or a new directory",
                )

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as wrong:
            if wrong.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise StateError(
                "another syncer is using this state directory", where=str(self.path), fix="stop it, or name another"
            ) from wrong

    def _open(self, identity: Identity | None, run_id: str) -> _Commit:
        path = self.path / "state.msgpack"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            if any(self._fragments.glob("*.safetensors")) or (self.path / "layout.json").exists():
                raise _damaged(path, "it is missing, though there are other parts of a run") from None
            if identity is None:
                raise StateError("holds no run", where=str(self.path), fix="name the directory of one") from None
            name = run_id or f"run-{secrets.token_hex(4)}"
            return _Commit(store=STORE_VERSION, run_id=name, epoch=Epoch(0), identity=identity, state=None, files=())
        except OSError as wrong:
            raise _damaged(path, wrong.strerror or "unreadable") from wrong
        commit = _decode(path, data)
        self._compare(commit, identity, run_id)
        return commit

    def _compare(self, commit: _Commit, identity: Identity | None, run_id: str) -> None:
        if run_id and run_id != commit.run_id:
            raise StateError(
                f"holds run {commit.run_id!r}, not {run_id!r}",
                where=str(self.path),
                fix="name the state directory of this run, or a new one",
            )
        for name in () if identity is None else Identity.__slots__:
            then, now = getattr(commit.identity, name), getattr(identity, name)
            if then != now:
                raise StateError(
                    f"this run was begun with {name} = {then!r}, now it is {now!r}",
                    where=str(self.path),
                    fix="take the old value, or a new state directory",
                )

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _write(self, commit: _Commit) -> None:
        write_durably(self.path / "state.msgpack", _encode(commit))
        force_directory(self.path)
        self._commit = commit

    def _write_layout(self, layout: Layout) -> None:
        write_durably(self.path / "layout.json", [json.dumps(layout.to_dict(), indent=1).encode()])
        force_directory(self.path)

    def _write_fragment(self, p: Fragment, version: Version, theta: Float32, outer_state: OuterState) -> _File:
        names = ["theta", *(f"state.{i}" for i in range(len(outer_state)))]
        header = tensors_header([(name, theta.shape) for name in names], {"fragment": str(p), "version": str(version)})
        name = f"p{p:05}.v{version}.safetensors"
        size, crc = write_durably(self._fragments / name, [header, *map(_raw, (theta, *outer_state))])
        return _File(name=name, version=version, size_bytes=size, checksum=crc)

    def _sweep(self) -> None:
        """Remove what no commit names: files of the commit before, and what a crash left half written. Only our own."""
        named = {file.name for file in self._commit.files}
        ours = [path for path in self._fragments.iterdir() if _FRAGMENT.fullmatch(path.name)]
        for path in (*ours, *(self.path / name for name in _HALF_WRITTEN)):
            if path.name not in named:
                with suppress(OSError):  # it is tried again at the next commit
                    path.unlink()


def _encode(commit: _Commit) -> list[Buffer]:
    payload = msgspec.msgpack.encode(commit)
    return [_MAGIC + f"{checksum(payload):08x}\n".encode(), payload]


def _decode(path: Path, data: bytes) -> _Commit:
    head, _, payload = data.partition(b"\n")
    if head != _MAGIC + f"{checksum(payload):08x}".encode():
        raise _damaged(path, "its checksum is wrong")
    try:
        version: Any = msgspec.msgpack.decode(payload)["store"]
        if version != STORE_VERSION:
            raise StateError(
                f"was written in format {version}, this version of Gruppetto reads format {STORE_VERSION}",
                where=str(path),
                fix="use the version that wrote it",
            )
        return msgspec.msgpack.decode(payload, type=_Commit)
    except (msgspec.MsgspecError, KeyError, TypeError, RecursionError) as wrong:
        raise _damaged(path, str(wrong)) from wrong


def _read_tensors(path: Path, data: bytes) -> tuple[Float32, OuterState]:
    try:
        tensors = safetensors.numpy.load(data)
        theta = tensors.pop("theta")
        state = tuple(tensors.pop(f"state.{i}") for i in range(len(tensors)))
    except (SafetensorError, KeyError) as wrong:
        raise _damaged(path, str(wrong)) from wrong
    return theta, state


def _raw(values: Float32) -> Buffer:
    assert values.dtype == np.dtype("<f4")
    return np.ascontiguousarray(values).view(np.uint8)


def cannot_write(path: Path, why: OSError) -> StateError:
    """Something of the state cannot be written at all; not for what passes by itself while a run goes on."""
    return StateError(
        f"cannot be written ({why.strerror})", where=str(path), fix="make room for it, or name another state directory"
    )


def _damaged(path: Path, how: str) -> StateError:
    return StateError(
        f"is damaged: {how}", where=str(path), fix="restore the state directory from a copy, or start a new one"
    )
