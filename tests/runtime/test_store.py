"""The store against crashes: the process is killed, or the power fails, between any two system calls."""

from __future__ import annotations

import itertools
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
from gruppetto.runtime import store as store_module
from gruppetto.runtime.commits import Commit, CommitName
from gruppetto.runtime.store import Identity, Store

ROOT = Path(__file__).resolve().parents[2]
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
    """Θ, momentum, and of one of the fragments what its steps have left unsaid."""
    theta = np.full(3, 10 * p + version, np.float32)
    return theta, (theta + 0.5,) if p == 0 else (theta + 0.5, np.full(7, version % 256, np.uint8))


def open_store(path, run_id="r", identity=IDENTITY, **more):
    return Store(path, identity=identity, run_id=run_id, **more)


def files(path):
    """The commits, oldest first."""
    return [
        path / "commits" / name.file for name in sorted(CommitName.parse(f.name) for f in (path / "commits").iterdir())
    ]


def commit(store, round, versions, fragments):
    store.commit(state(round, versions, store.epoch), {p: values(p, versions[p]) for p in fragments}, LAYOUT)


def check(store):
    """Whatever the last commit is: it is whole."""
    found = {p: (theta, rest) for p, _, theta, rest in store.load()}
    assert len(found) == len(store.state.versions)
    for p, version in enumerate(store.state.versions):
        (theta, kept), (right, right_kept) = found[p], values(p, version)
        for one, other in zip((theta, *kept), (right, *right_kept), strict=True):
            assert one.dtype == other.dtype and np.array_equal(one, other)
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


def live(path, rounds, *, apart=2, first=0, **more):
    """A life of so many rounds, one fragment each; what it leaves behind."""
    with open_store(path, apart=apart, **more) as store:
        store.claim_epoch()
        versions = [0, 0] if store.state is None else list(store.state.versions)
        for t in range(first, first + rounds):
            if t:
                versions[t % 2] = t
            commit(store, t, tuple(versions), (0, 1) if t == 0 else (t % 2,))


def test_a_commit_comes_back_whole(seeded):
    with open_store(seeded) as store:
        assert (store.state.round, store.run_id, store.found) == (1, "r", [])
        check(store)
    assert [file.name for file in files(seeded)] == [
        "e00001-c000000001-t000000000000.commit",
        "e00001-c000000002-t000000000001.commit",
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
            os.open(file, os.O_RDONLY)
            for d in (self.root, self.root / "commits", self.root / "epochs")
            for file in (self._files(d) if d.exists() else ())
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


def check_unseen(store, done):
    """Nothing was damaged, and at most one round may have been published that nobody knows of."""
    assert not store.damaged and store.unseen <= 1


@pytest.mark.parametrize("how", ["killed", "power cut", "power cut, names survive"])
@pytest.mark.parametrize("work", [first_life, second_round])
def test_after_a_crash_anywhere_the_last_commit_is_there(tmp_path, seeded, work, how):
    crash_at, crashed = 0, True
    while crashed:
        path, back = tmp_path / f"{crash_at}", tmp_path / f"{crash_at}-back"
        if work is second_round:
            shutil.copytree(seeded, path)
        else:
            (path / "commits").mkdir(parents=True)
        done = {"epoch": 1 if work is second_round else 0, "round": 1 if work is second_round else None}
        with pytest.MonkeyPatch.context() as monkeypatch:
            if work is second_round:  # whichever way the bytes go
                monkeypatch.setattr(store_module, "PAST_CACHE_BYTES", 0)
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
            if done["round"] is not None:
                assert store.state.round >= done["round"], "a commit that returned is never lost"
            if store.state is not None:
                check(store)
            assert store.claim_epoch() > done["epoch"], "a claimed epoch is never forgotten"
            check_unseen(store, done)
            commit(store, 3, (3, 3), (0, 1))
            check(store)
        assert len(files(back)) <= 6
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


def spoil(path, how, at=None):
    data = path.read_bytes()
    match how:
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "flipped":
            at = len(data) // 2 if at is None else at
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        case "empty":
            path.write_bytes(b"")
        case "gone":
            path.unlink()


HOWS = ["cut", "flipped", "empty", "gone"]


def values_of(store):
    return {p: (version, float(theta[0])) for p, version, theta, _ in store.load()}


@pytest.mark.parametrize("how", HOWS)
def test_without_the_newest_commit_the_one_before_counts_and_its_round_is_not_used_again(tmp_path, how):
    live(tmp_path, 6)
    spoil(files(tmp_path)[-1], how, at=-60)
    with open_store(tmp_path) as store:
        assert store.state.round == 4
        store.claim_epoch()
        assert store.unseen == 1 and any(files(tmp_path)[-2].name or how in text for text in store.found)
        # Round 5 was published with fragment 1; what is at hand is what it was before.
        assert values_of(store) == {0: (4, 4.0), 1: (3, 13.0)} and not store.damaged
        commit(store, 6, (6, 6), (0, 1))
        check(store)
    with open_store(tmp_path) as store:
        store.claim_epoch()
        assert (store.state.round, store.unseen, store.found) == (6, 0, [])


@pytest.mark.parametrize("reserve", [0, 3])
def test_what_may_have_been_published_under_a_lost_commit_is_read_off_its_name(tmp_path, reserve):
    with open_store(tmp_path, reserve=reserve) as store:
        store.claim_epoch()
        for t in (0, 1 + reserve):
            there = replace(state(t, (t, t)), reserve=reserve)
            store.commit(there, {p: values(p, t) for p in (0, 1)}, LAYOUT)
    files(tmp_path)[-1].write_bytes(b"nothing")
    with open_store(tmp_path, reserve=reserve) as store:
        store.claim_epoch()
        assert store.state.round + store.unseen == 1 + reserve + reserve


def test_what_a_dead_life_had_in_reserve_may_have_been_published(tmp_path):
    with open_store(tmp_path, reserve=3) as store:
        store.claim_epoch()
        store.commit(replace(state(0, (0, 0)), reserve=3), {p: values(p, 0) for p in (0, 1)}, LAYOUT)
    for _ in range(2):  # the second life makes no commit of its own
        with open_store(tmp_path) as store:
            store.claim_epoch()
            assert store.unseen == 3 and not store.found


def offset_of(file, p):
    """Of a byte of the newest value of a fragment in the commit that holds it."""
    (place,) = (q[0] for i, q in enumerate(Commit.read(file).places) if i == p and q[0].file == file.name)
    return place.offset + 5


def test_a_damaged_value_falls_back_to_the_one_before(tmp_path):
    live(tmp_path, 6)
    newest = files(tmp_path)[-1]
    spoil(newest, "flipped", at=offset_of(newest, 1))
    with open_store(tmp_path) as store:
        store.claim_epoch()
        assert (store.state.round, store.unseen) == (5, 0)
        (older,) = store.damaged
        assert (older.fragment, older.version) == (1, 3)
        assert values_of(store) == {0: (4, 4.0), 1: (3, 13.0)}
        assert "fragment 1, version 5, is damaged: its checksum is wrong" in store.found[0]
    with open_store(tmp_path) as store:  # that life died before it could republish: the next one knows the same
        store.claim_epoch()
        assert [(v.fragment, v.version) for v in store.damaged] == [(1, 3)] and store.unseen == 0
        commit(store, 6, (4, 6), (1,))
        check(store)
    with open_store(tmp_path) as store:
        store.claim_epoch()
        assert not store.damaged


def test_with_both_copies_bad_a_snapshot_still_has_one(tmp_path):
    live(tmp_path, 12)
    for version in (11, 9):
        (file,) = (f for f in files(tmp_path) if Commit.read(f).state.round == version)
        spoil(file, "flipped", at=offset_of(file, 1))
    with open_store(tmp_path) as store:
        store.claim_epoch()
        version, _ = values_of(store)[1]
        assert version < 9 and [v.version for v in store.damaged] == [version]


@pytest.mark.parametrize("how", HOWS)
def test_for_every_single_file_there_is_something_older_or_it_is_said_that_there_is_not(tmp_path, how):
    live(tmp_path / "run", 12)
    for number in range(len(files(tmp_path / "run"))):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(tmp_path / "run", copy)
        spoil(files(copy)[number], how)
        with open_store(copy) as store:
            assert store.state.round >= 10
            store.claim_epoch()
            assert all(version >= 8 for version, _ in values_of(store).values())
            assert store.state.round + store.unseen >= 11, "no published round is used again"


def test_snapshots_are_apart_and_as_many_as_asked_for(tmp_path):
    for kept in (0, 1, 3):
        path = tmp_path / f"{kept}"
        live(path, 20, apart=3, snapshots_kept=kept)
        with open_store(path, apart=3, snapshots_kept=kept) as store:
            rounds = [commit.state.round for commit in store._snapshots]
        assert len(rounds) == 1 + kept
        assert all(a - b >= 3 for a, b in itertools.pairwise(rounds))


@pytest.mark.parametrize("how", HOWS)
def test_where_nothing_good_is_left_nothing_starts(tmp_path, how):
    live(tmp_path, 6)
    for file in files(tmp_path):
        spoil(file, how)
    with pytest.raises(StateError, match=r"commits: is damaged: .*restore the state directory from a copy"):
        open_store(tmp_path)


def test_a_fragment_without_any_good_value_is_named(tmp_path):
    live(tmp_path, 6)
    for file in files(tmp_path):
        for p, of_fragment in enumerate(Commit.read(file).places):
            if p == 1 and of_fragment[0].file == file.name:
                spoil(file, "flipped", at=of_fragment[0].offset)
    with open_store(tmp_path) as store, pytest.raises(StateError, match="no good value of fragment 1 is left"):
        store.claim_epoch()


@pytest.mark.parametrize("how", HOWS)
def test_the_layout_has_a_copy(seeded, how):
    path = seeded / "layout.json"
    at = path.read_bytes().index(b"w1")
    spoil(path, how, at=at)
    with open_store(seeded) as store:
        assert store.layout() == LAYOUT and "layout.json" in store.found[0]
        spoil(seeded / "layout.copy.json", how, at=at)
        with pytest.raises(StateError, match=r"layout.json: is damaged"):
            store.layout()


def test_a_directory_of_another_run_or_setting_is_refused_with_the_fix(seeded):
    with pytest.raises(StateError, match="holds run 'r', not 'other'"):
        open_store(seeded, run_id="other")
    with pytest.raises(StateError, match="begun with fragments_asked = 2, now it is 5; take the old value"):
        open_store(seeded, identity=replace(IDENTITY, fragments_asked=5))
    changed = {"fragments_asked": 5, "fragmenter": "layer", "merge": (("w", "mean"),), "optimizer": "x", "shard": "1/2"}
    assert set(changed) == set(Identity.__slots__)
    said_by = ("run.num_fragments", "fragments.how", "merge.rules", "outer.average_share", "--shard")
    for (name, value), key in zip(changed.items(), said_by, strict=True):
        with pytest.raises(StateError, match=rf"begun with {name} = .*; take the old value \(.*{key}"):
            open_store(seeded, identity=replace(IDENTITY, **{name: value}))
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
    newest = Commit.read(files(seeded)[-1])
    with open_store(seeded) as store:
        store.claim_epoch()
        there = replace(newest, store=3, epoch=store.epoch, number=1)
        monkeypatch.setattr("gruppetto.runtime.store.replace", lambda *_, **__: there)
        store._write(newest, {})
    monkeypatch.undo()
    with pytest.raises(StateError, match="format 3, this version of Gruppetto reads format 2"):
        open_store(seeded)


def test_a_directory_of_the_first_format_is_not_taken_for_an_empty_one(tmp_path):
    (tmp_path / "state.msgpack").write_bytes(b"gruppetto state ...")
    with pytest.raises(StateError, match="format 1, this version of Gruppetto reads format 2"):
        open_store(tmp_path)


@pytest.mark.parametrize("name", ["notes.txt", "draft.tmp", "commits/notes.txt", "commits/e1.commit.txt"])
def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path, name):
    mine = tmp_path / "mine" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(StateError, match=f"is not a state directory: it holds '{name}'"):
        open_store(tmp_path / "mine")
    assert [path for path in (tmp_path / "mine").rglob("*") if path.is_file()] == [mine]
    assert mine.read_text() == "mine"


def test_what_others_put_beside_the_state_is_never_swept_away(seeded):
    foreign = [seeded / name for name in ("draft.tmp", "run.toml", "commits/notes.txt", "commits/old.commit")]
    for path in foreign:
        path.write_text("mine")
    stale = [
        seeded / "commits" / name
        for name in ("e00001-c000000003-t000000000002.commit.tmp", "e00000-c000000001-t000000000000.commit")
    ]
    for path in stale:
        path.write_text("half")
    with open_store(seeded) as store:
        store.claim_epoch()
        commit(store, 2, (1, 2), (1,))
    assert all(path.read_text() == "mine" for path in foreign)
    assert not any(path.exists() for path in stale)


def test_a_new_directory_may_hold_a_trace_and_the_marks_of_a_first_life(tmp_path):
    (tmp_path / "commits").mkdir()
    for name in ("trace.jsonl", "syncer.log", "layout.json.tmp", "commits/e00001-c000000000-t000000000000.commit.tmp"):
        (tmp_path / name).write_text("")
    with open_store(tmp_path) as store:
        assert store.claim_epoch() == 1


def test_a_state_that_cannot_be_written_is_said_at_the_start(seeded, monkeypatch):
    with open_store(seeded) as store, monkeypatch.context() as broken:
        broken.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(StateError, match=r"No space left on device.*make room"):
            store.claim_epoch()
    with open_store(seeded) as store:
        assert store.claim_epoch() == 2
        check(store)


def test_a_file_that_may_not_grow_any_further(tmp_path):
    """A real refusal by the kernel, in the middle of a commit."""
    program = (
        "import resource, signal, sys; from pathlib import Path; import numpy as np\n"
        "import tests.runtime.test_store as t\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "store = t.open_store(Path(sys.argv[1])); store.claim_epoch()\n"
        "t.commit(store, 0, (0, 0), (0, 1))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))\n"
        "try: t.commit(store, 1, (1, 0), (0,))\n"
        "except OSError as error: print(error.strerror)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "t.check(store); t.commit(store, 1, (1, 0), (0,)); t.check(store); print(store.state.round)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.stdout.split("\n")[:2] == ["File too large", "1"], done.stderr


def test_a_layout_file_nested_without_end_is_damage(seeded):
    for name in ("layout.json", "layout.copy.json"):
        (seeded / name).write_text("[" * 100_000)
    with open_store(seeded) as store, pytest.raises(StateError, match=r"layout.json: is damaged: .* too deeply"):
        store.layout()


def test_an_unreadable_word_counts_with_the_reserve_that_the_commits_know(tmp_path):
    with open_store(tmp_path, reserve=3) as store:
        store.claim_epoch()
        store.commit(replace(state(0, (0, 0)), reserve=3), {p: values(p, 0) for p in (0, 1)}, LAYOUT)
    (tmp_path / "epochs" / "00001").write_bytes(b"")
    with open_store(tmp_path) as store:
        store.claim_epoch()
        assert store.unseen == 3 + 1 + 3, "under that commit, and under one more"


def test_first_weights_that_vanish_with_the_word_about_them_are_missed(tmp_path):
    with open_store(tmp_path) as store:
        store.claim_epoch()
        commit(store, 0, (0, 0), (0, 1))
    first, weights = files(tmp_path)
    weights.unlink()
    (tmp_path / "epochs" / "00001").write_bytes(b"")
    assert Commit.read(first).state is None
    with pytest.raises(StateError, match=r"epochs/00001 cannot be read.*the first weights are missing"):
        open_store(tmp_path)
