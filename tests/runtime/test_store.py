"""The store against crashes: the process is killed, or the power fails, between any two system calls."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gruppetto.errors import StateError
from gruppetto.numerics import Layout, TensorSpec
from gruppetto.protocol.ledger import Ledger
from gruppetto.protocol.state import SyncerState
from gruppetto.runtime.store import Identity, Store

LAYOUT = Layout(tensors=tuple(TensorSpec(name=f"w{i}", shape=(3,), dtype="float32") for i in range(2)))
IDENTITY = Identity(fragments_asked=2, fragmenter="balanced", merge=(), optimizer="nesterov")


def state(round, versions, epoch=1, run_id="r"):
    return SyncerState(
        run_id=run_id,
        layout_hash=LAYOUT.layout_hash,
        epoch=epoch,
        round=round,
        versions=versions,
        members=(),
        cursors=((0, round),),
        ledger=Ledger(num_fragments=2),
    )


def values(p, version):
    theta = np.full(3, 10 * p + version, np.float32)
    return theta, (theta + 0.5,)


def open_store(path, run_id="r", identity=IDENTITY):
    return Store(path, identity=identity, run_id=run_id)


def commit(store, round, versions, fragments):
    store.commit(state(round, versions, store.epoch), {p: values(p, versions[p]) for p in fragments}, LAYOUT)


def check(store):
    """Whatever the last commit is: it is whole."""
    found = {p: (theta, rest) for p, theta, rest in store.load()}
    assert len(found) == len(store.state.versions)
    for p, version in enumerate(store.state.versions):
        theta, (momentum,) = found[p]
        assert np.array_equal(theta, values(p, version)[0]) and np.array_equal(momentum, values(p, version)[1][0])
    assert store.layout() == LAYOUT


@pytest.fixture
def seeded(tmp_path):
    """A directory with the commit of round 1."""
    path = tmp_path / "seeded"
    with open_store(path) as store:
        store.claim_epoch()
        commit(store, 0, (0, 0), (0, 1))
        commit(store, 1, (1, 0), (0,))
    return path


def test_a_commit_comes_back_whole(seeded):
    with open_store(seeded) as store:
        assert (store.state.round, store.epoch, store.run_id) == (1, 1, "r")
        check(store)
    assert sorted(f.name for f in (seeded / "fragments").iterdir()) == [
        "p00000.v1.safetensors",
        "p00001.v0.safetensors",
    ]


def test_every_life_has_an_epoch_of_its_own(seeded):
    epochs = []
    for _ in range(3):
        with open_store(seeded) as store:
            epochs.append(store.claim_epoch())
    assert epochs == [2, 3, 4]


# ── crashes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Crash(BaseException):
    """The process ends here. No handler of ours may tidy up after it."""


class Disk:
    """Remembers what a disk is bound to keep: bytes that were forced, and names whose directory was.

    ``crash_at`` ends everything before the system call of that number.
    """

    def __init__(self, root: Path, monkeypatch, crash_at: int | None) -> None:
        self.root, self.crash_at, self.calls = root, crash_at, 0
        self._held: list[int] = []
        self.forced: dict[int, bytes] = {}
        self.names: dict[Path, dict[str, int]] = {}
        for directory in (root, *(d for d in root.rglob("*") if d.is_dir())):
            self._force_names(directory)
            for file in self._files(directory):
                self.forced[file.stat().st_ino] = file.read_bytes()
        for name in ("write", "fsync", "replace", "unlink"):
            monkeypatch.setattr(os, name, self._watched(getattr(os, name), name))

    def _watched(self, call, name):
        def watched(*args, **more):
            if self.calls == self.crash_at:
                raise Crash
            self.calls += 1
            self._hold()
            result = call(*args, **more)
            if name == "fsync":
                target = Path(f"/proc/self/fd/{args[0]}").readlink()
                if target.is_dir():
                    self._force_names(target)
                else:
                    self.forced[target.stat().st_ino] = target.read_bytes()
            return result

        return watched

    def after_the_crash(self, into: Path, *, names_survive: bool) -> None:
        """What is on the disk when the power is back: only what was bound to be there, or all names, too."""
        for directory, forced in self.names.items():
            target = into / directory.relative_to(self.root)
            target.mkdir(parents=True, exist_ok=True)
            names = {f.name: f.stat().st_ino for f in self._files(directory)} if names_survive else forced
            for name, inode in names.items():
                (target / name).write_bytes(self.forced.get(inode, b""))

    def close(self) -> None:
        for file in self._held:
            os.close(file)

    def _hold(self) -> None:
        """Keep every file open, so that no number is used for two."""
        self._held += [
            os.open(file, os.O_RDONLY) for d in (self.root, self.root / "fragments") for file in self._files(d)
        ]

    def _force_names(self, directory: Path) -> None:
        if directory.is_relative_to(self.root):
            self.names[directory] = {file.name: file.stat().st_ino for file in self._files(directory)}

    @staticmethod
    def _files(directory: Path) -> list[Path]:
        return [file for file in directory.iterdir() if file.is_file()]


def second_round(path, done):
    with open_store(path) as store:
        done["epoch"] = store.claim_epoch()
        commit(store, 2, (1, 2), (1,))
        done["round"] = 2


def first_life(path, done):
    with open_store(path) as store:
        done["epoch"] = store.claim_epoch()
        commit(store, 0, (0, 0), (0, 1))
        done["round"] = 0


@pytest.mark.parametrize("how", ["killed", "power cut", "power cut, names survive"])
@pytest.mark.parametrize("work", [first_life, second_round])
def test_after_a_crash_anywhere_the_last_commit_is_there(tmp_path, seeded, work, how):
    crash_at, crashed = 0, True
    while crashed:
        path, back = tmp_path / f"{crash_at}", tmp_path / f"{crash_at}-back"
        if work is second_round:
            shutil.copytree(seeded, path)
        else:
            (path / "fragments").mkdir(parents=True)
        done = {"epoch": 1 if work is second_round else 0, "round": 1 if work is second_round else None}
        with pytest.MonkeyPatch.context() as monkeypatch:
            disk = Disk(path, monkeypatch, crash_at)
            try:
                work(path, done)
                crashed = False
            except Crash:
                pass
        if how == "killed":
            back = path
        else:
            disk.after_the_crash(back, names_survive="survive" in how)
        disk.close()
        with open_store(back) as store:
            assert store.epoch >= done["epoch"], "a claimed epoch is never forgotten"
            if done["round"] is not None:
                assert store.state.round >= done["round"], "a commit that returned is never lost"
            if store.state is not None:
                check(store)
            assert store.claim_epoch() > done["epoch"]
            commit(store, 3, (3, 3), (0, 1))
            check(store)
        assert len(list((back / "fragments").iterdir())) == 2
        crash_at += 1
    assert crash_at > 10


def test_a_full_disk_leaves_the_commit_before_and_the_next_try_succeeds(seeded, monkeypatch):
    with open_store(seeded) as store:
        store.claim_epoch()
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(OSError, match="No space"):
                commit(store, 2, (1, 2), (1,))
        assert store.state.round == 1
        check(store)
        commit(store, 2, (1, 2), (1,))
        check(store)


# ── what does not check out ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["state.msgpack", "layout.json", "fragments/p00001.v0.safetensors"])
@pytest.mark.parametrize("how", ["cut", "flipped", "empty", "gone"])
def test_damage_is_named_and_nothing_starts_from_nothing(seeded, name, how):
    path = seeded / name
    data = path.read_bytes()
    match how:
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "flipped":
            middle = data.index(b"w1") if name == "layout.json" else len(data) // 2
            path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        case "empty":
            path.write_bytes(b"")
        case "gone":
            path.unlink()
    with pytest.raises(StateError, match=path.name), open_store(seeded) as store:
        store.layout()
        list(store.load())


def test_a_directory_of_another_run_or_setting_is_refused_with_the_fix(seeded):
    with pytest.raises(StateError, match="holds run 'r', not 'other'"):
        open_store(seeded, run_id="other")
    with pytest.raises(StateError, match="begun with fragments_asked = 2, now it is 5; take the old value"):
        open_store(seeded, identity=replace(IDENTITY, fragments_asked=5))
    with pytest.raises(StateError, match="fragmenter"):
        open_store(seeded, identity=replace(IDENTITY, fragmenter="layer"))
    with open_store(seeded, run_id="") as store:
        assert store.run_id == "r"


def test_two_syncers_never_share_a_directory(seeded):
    with open_store(seeded):
        program = (
            "import sys; from pathlib import Path; from gruppetto.runtime.store import Store\n"
            "Store(Path(sys.argv[1]), identity=None)"
        )
        other = subprocess.run(
            [sys.executable, "-c", program, str(seeded)], capture_output=True, text=True, check=False
        )
    assert "another syncer is using this state directory" in other.stderr
    open_store(seeded).close()


def test_a_place_that_cannot_hold_state_is_said(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(StateError, match="cannot be used as a state directory"):
        open_store(file)


def test_a_newer_format_is_not_guessed_at(seeded, monkeypatch):
    monkeypatch.setattr("gruppetto.runtime.store.STORE_VERSION", 2)
    with pytest.raises(StateError, match="format 1, this version of Gruppetto reads format 2"):
        open_store(seeded)


@pytest.mark.parametrize("name", ["notes.txt", "draft.tmp", "fragments/notes.txt", "fragments/p.safetensors.txt"])
def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path, name):
    mine = tmp_path / "mine" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(StateError, match=f"is not a state directory: it holds '{name}'"):
        open_store(tmp_path / "mine")
    assert [path for path in (tmp_path / "mine").rglob("*") if path.is_file()] == [mine]
    assert mine.read_text() == "mine"


def test_what_others_put_beside_the_state_is_never_swept_away(seeded):
    foreign = [seeded / name for name in ("draft.tmp", "run.toml", "fragments/notes.txt", "fragments/old.safetensors")]
    for path in foreign:
        path.write_text("mine")
    stale = [seeded / name for name in ("state.msgpack.tmp", "fragments/p00001.v7.safetensors.tmp")]
    for path in stale:
        path.write_text("half")
    with open_store(seeded) as store:
        store.claim_epoch()
        commit(store, 2, (1, 2), (1,))
    assert all(path.read_text() == "mine" for path in foreign)
    assert not any(path.exists() for path in stale)


def test_a_new_directory_may_hold_a_trace_and_the_marks_of_a_first_life(tmp_path):
    (tmp_path / "fragments").mkdir()
    for name in ("lock", "trace.jsonl", "syncer.log", "state.msgpack.tmp"):
        (tmp_path / name).write_text("")
    with open_store(tmp_path) as store:
        assert store.claim_epoch() == 1


def test_a_state_that_cannot_be_written_is_said_at_the_start(seeded, monkeypatch):
    with open_store(seeded) as store:
        (seeded / "state.msgpack.tmp").mkdir()
        with pytest.raises(StateError, match=r"state.msgpack: cannot be written \(Is a directory\)"):
            store.claim_epoch()
        (seeded / "state.msgpack.tmp").rmdir()
        with monkeypatch.context() as broken:
            broken.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(StateError, match=r"No space left on device.*make room"):
                store.claim_epoch()
        assert store.epoch == 1


def test_a_layout_file_nested_without_end_is_damage(seeded):
    (seeded / "layout.json").write_text("[" * 100_000)
    with open_store(seeded) as store, pytest.raises(StateError, match=r"layout.json: is damaged: .* too deeply"):
        store.layout()
