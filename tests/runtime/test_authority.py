"""Two lives and one directory: every interleaving of a commit and a claim, step by step."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gruppetto.errors import SteppedDown
from gruppetto.numerics import Layout, TensorSpec
from gruppetto.protocol.ledger import Ledger
from gruppetto.protocol.recovery import republished
from gruppetto.protocol.schedule import Schedule
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.units import Epoch
from gruppetto.runtime.authority import EPOCHS, Authority
from gruppetto.runtime.clock import ManualClock
from gruppetto.runtime.commits import Identity
from gruppetto.runtime.standby import Standby
from gruppetto.runtime.store import Store, StoreInUse

LAYOUT = Layout(tensors=(TensorSpec(name="w", shape=(3,), dtype="float32"),))
IDENTITY = Identity(fragments_asked=1, fragmenter="balanced", merge=(), optimizer="nesterov")
SCHEDULE = Schedule(num_fragments=1, sync_period=1)


def open_store(path: Path, **more: object) -> Store:
    return Store(path, identity=IDENTITY, run_id="r", **more)  # type: ignore[arg-type]


class Life:
    """A syncer reduced to what it does with its store: one fragment, due every round. ``label`` marks its values."""

    def __init__(self, path: Path, published: dict[int, float], label: float, **more: object) -> None:
        self.published, self.label = published, label
        self.store = open_store(path, **more)
        self.store.claim_epoch()
        state = self.store.state
        if state is None:
            self.round, self.theta = -1, np.zeros(3, np.float32)
        else:
            round, again = republished(SCHEDULE, state.round, unseen=self.store.unseen, damaged=self.store.damaged)
            (_, _, theta, _), *_ = self.store.load()
            self.round, self.theta = state.round, theta.copy()
            if again:
                self.commit(round, self.theta)
                self.publish()

    def state(self, round: int) -> SyncerState:
        return SyncerState(
            run_id="r",
            layout_hash=LAYOUT.layout_hash,
            epoch=self.store.epoch,
            round=round,
            versions=(round,),
            members=(),
            cursors=(),
            ledger=Ledger(num_fragments=1),
        )

    def merge_and_commit(self) -> None:
        self.commit(self.round + 1, self.theta + np.float32(self.label))

    def commit(self, round: int, theta: np.ndarray) -> None:
        self.store.commit(self.state(round), {0: (theta, ())}, LAYOUT)
        self.round, self.theta = round, theta

    def publish(self) -> None:
        """No version is ever published with two values."""
        value = float(self.theta[0])
        assert self.published.setdefault(self.round, value) == value, f"version {self.round} has two values"

    def round_or_end(self) -> None:
        self.merge_and_commit()
        self.store.check_authority()
        self.publish()


STEPS_OF_A_COMMIT = ("before", "written", "looked", "named", "committed", "published")
"""Where the old life is stopped: before its commit; with the bytes written; after its look at the fence, before the
name; named; forced; and after its last look, before it publishes (which it then does, whatever happened meanwhile)."""


class Stopped(Exception):
    """SIGSTOP: what comes after happens later."""


@pytest.mark.parametrize("stopped_at", STEPS_OF_A_COMMIT)
@pytest.mark.parametrize("rounds", [0, 1, 2])
@pytest.mark.parametrize("taker_dies", [False, True])
@pytest.mark.parametrize("tidy", [False, True])
def test_no_interleaving_of_a_commit_and_a_claim_gives_a_version_two_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_at: str, rounds: int, taker_dies: bool, tidy: bool
) -> None:
    """``tidy``: whoever takes over sweeps away what is half written, in time; else the commit under way can land."""
    published: dict[int, float] = {}
    old = Life(tmp_path, published, 1.0)
    for _ in range(3):
        old.round_or_end()
    lives: list[Life] = []

    def somebody_takes_over() -> None:
        with monkeypatch.context() as untidy:
            if not tidy:
                untidy.setattr(Store, "_sweep", lambda *_: None)
            new = Life(tmp_path, published, 100.0, over=True)
        lives.append(new)
        for _ in range(rounds):
            new.round_or_end()
        if taker_dies:
            new.store.close()
            third = Life(tmp_path, published, 10_000.0)
            lives.append(third)
            third.round_or_end()

    take_over_once = iter([somebody_takes_over])

    def meanwhile() -> None:
        next(take_over_once, lambda: None)()

    if stopped_at == "before":
        meanwhile()
    import gruppetto.runtime.durable as durable
    import gruppetto.runtime.store as store_module

    with monkeypatch.context() as patched:
        write, replace_file, force = store_module.write_durably, durable.os.replace, store_module.force_directory

        def slow_write(path, chunks, look=lambda: None, **how):  # type: ignore[no-untyped-def]
            def slow_look() -> None:
                if stopped_at == "written":
                    unpatched(meanwhile)
                look()
                if stopped_at == "looked":
                    unpatched(meanwhile)

            write(path, chunks, look=slow_look, **how)
            if stopped_at == "named":
                unpatched(meanwhile)

        def unpatched(do) -> None:  # type: ignore[no-untyped-def]
            """The other process has an unpatched store."""
            store_module.write_durably = write
            do()

        patched.setattr(store_module, "write_durably", slow_write)
        deposed = False
        try:
            old.merge_and_commit()
            if stopped_at == "committed":
                unpatched(meanwhile)
                old.store.check_authority()
            if stopped_at == "published":
                old.store.check_authority()
                unpatched(meanwhile)
            # Stopped behind its last look, it would publish: it must not be able to do harm even then.
            old.publish()
        except SteppedDown:
            deposed = True
        except FileNotFoundError:  # what it has written is gone; it would try again, and look at the fence
            assert (tidy or taker_dies) and stopped_at == "looked"
        assert (replace_file, force) == (durable.os.replace, store_module.force_directory)
    assert deposed == (stopped_at in ("before", "written", "committed"))
    with pytest.raises(SteppedDown, match="another syncer has taken over"):
        old.round_or_end()
    for life in lives[-1:]:
        for _ in range(2):
            life.round_or_end()
        life.store.close()
    last = Life(tmp_path, published, 1_000_000.0)
    last.round_or_end()
    assert last.store.found == []
    lost = {3} if stopped_at == "looked" else set()  # the round that landed late is published, and lost
    values = [published[version] for version in sorted(published) if version not in lost]
    assert all(b >= a for a, b in itertools.pairwise(values)), "every life went on from what the one before had"


def test_of_two_that_take_over_at_once_one_does(tmp_path: Path) -> None:
    published: dict[int, float] = {}
    Life(tmp_path, published, 1.0).round_or_end()
    one, other = (open_store(tmp_path, over=True) for _ in range(2))
    newest = Authority(tmp_path).newest

    assert one.claim_epoch() == 2
    # The other has read the epochs before: it finds its number taken.
    seat = other._seat
    seat.newest = lambda: newest() - 1  # type: ignore[method-assign]
    with pytest.raises(StoreInUse):
        other.claim_epoch()
    one.check_authority()


def test_a_run_without_weights_is_not_taken_over_from_one_who_may_live(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.claim_epoch()
    with pytest.raises(StoreInUse):
        open_store(tmp_path, over=True)
    store.close()
    assert open_store(tmp_path).claim_epoch() == 2


def test_an_epoch_file_that_cannot_be_read_counts_by_its_name(tmp_path: Path) -> None:
    published: dict[int, float] = {}
    life = Life(tmp_path, published, 1.0)
    life.round_or_end()
    life.store.close()
    (tmp_path / EPOCHS / "00001").write_bytes(b"")
    store = open_store(tmp_path)
    assert store.claim_epoch() == 2 and store.unseen == 1, "it may have published one more"
    assert store.found == ["epochs/00001 cannot be read: one more commit may have been published"]
    store.close()
    again = open_store(tmp_path)
    assert again.claim_epoch() == 3 and again.unseen == 1 and again.found == [], "said once"


def test_an_epoch_file_of_an_older_version_is_called_that_and_not_damaged(tmp_path: Path) -> None:
    life = Life(tmp_path, {}, 1.0)
    life.round_or_end()
    life.store.close()
    file = tmp_path / EPOCHS / "00001"
    file.write_bytes(file.read_bytes().partition(b" check ")[0] + b"\n")
    store = open_store(tmp_path)
    assert store.claim_epoch() == 2 and store.unseen == 1, "nobody vouches for what it says"
    assert store.found == []
    assert store.notices == [
        "epochs/00001 was written by an older version, once: one more commit may have been published"
    ]
    store.close()


def test_every_flipped_digit_of_an_epoch_file_makes_it_unreadable_and_the_run_leaps_no_further_than_a_reserve(
    tmp_path: Path,
) -> None:
    life = Life(tmp_path, {}, 1.0)
    life.round_or_end()
    life.store.close()
    file = tmp_path / EPOCHS / "00001"
    good = file.read_bytes()
    assert Authority(tmp_path).lease(Epoch(1)) is not None
    for at, bit in itertools.product(range(len(good)), (1, 4)):
        file.write_bytes(good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :])
        assert Authority(tmp_path).lease(Epoch(1)) is None
    store = open_store(tmp_path, reserve=1)
    store.claim_epoch()
    assert store.unseen == 2, "the setting's; of the life itself nothing can be read"
    # A word that is whole, under another life's name, is not that life's.
    (tmp_path / EPOCHS / "00007").write_bytes(good)
    assert Authority(tmp_path).lease(Epoch(7)) is None


@pytest.mark.parametrize("how", ["unreadable", "file is gone", "directory is gone"])
def test_without_the_word_of_the_newest_life_no_lost_commit_gives_a_version_two_values(
    tmp_path: Path, how: str
) -> None:
    published: dict[int, float] = {}
    for label in (1.0, 10.0):
        life = Life(tmp_path, published, label)
        for _ in range(3):
            life.round_or_end()
        life.store.close()
    newest = max((tmp_path / "commits").iterdir())
    newest.unlink()
    match how:
        case "unreadable":
            (tmp_path / EPOCHS / "00002").write_bytes(bytes(90))
        case "file is gone":
            (tmp_path / EPOCHS / "00002").unlink()
        case _:
            shutil.rmtree(tmp_path / EPOCHS)
    last = Life(tmp_path, published, 100.0)
    assert last.store.epoch == 3, "above the names of the commits"
    assert any(text.startswith("epochs/00002 ") for text in last.store.found)
    assert last.round > max(version for version in published if version != last.round)
    last.round_or_end()


def test_a_life_that_died_at_once_does_not_hide_what_the_one_before_has_said(tmp_path: Path) -> None:
    life = Life(tmp_path, {}, 1.0)
    for _ in range(3):
        life.round_or_end()
    life.store.close()
    seat = Authority(tmp_path)
    assert seat.claim(0) == 2
    seat.close()
    max((tmp_path / "commits").iterdir()).unlink()
    store = open_store(tmp_path)
    assert any(text.endswith("is missing") for text in store.found)
    store.claim_epoch()
    assert store.state is not None and store.state.round + store.unseen >= life.round


@pytest.mark.parametrize("what", ["file", "directory"])
def test_an_epoch_file_removed_under_a_syncer_is_put_back_and_nobody_has_taken_over(tmp_path: Path, what: str) -> None:
    published: dict[int, float] = {}
    Life(tmp_path, published, 1.0).store.close()
    life = Life(tmp_path, published, 1.0)
    life.round_or_end()
    (tmp_path / EPOCHS / "00002").unlink() if what == "file" else shutil.rmtree(tmp_path / EPOCHS)
    life.store.beat()
    life.round_or_end()
    with pytest.raises(StoreInUse):
        open_store(tmp_path)
    lease = Authority(tmp_path).lease(Epoch(2))
    assert lease is not None and lease.until == life.round
    life.store.close()
    last = Life(tmp_path, published, 100.0)
    assert last.store.epoch == 3 and last.store.found == [] and last.store.unseen == 0


def test_who_began_while_the_file_was_gone_is_a_successor(tmp_path: Path) -> None:
    published: dict[int, float] = {}
    old = Life(tmp_path, published, 1.0)
    old.round_or_end()
    (tmp_path / EPOCHS / "00001").unlink()
    early = open_store(tmp_path)  # has looked for a lock, and found none
    old.round_or_end()
    with pytest.raises(StoreInUse):
        early.claim_epoch()
    early.close()
    old.round_or_end()
    (tmp_path / EPOCHS / "00001").unlink()
    new = Life(tmp_path, published, 100.0)
    with pytest.raises(SteppedDown, match="another syncer has taken over"):
        old.round_or_end()
    new.round_or_end()


def test_a_directory_removed_under_a_syncer_is_not_told_as_a_successor(tmp_path: Path) -> None:
    life = Life(tmp_path / "run", {}, 1.0)
    life.round_or_end()
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(SteppedDown, match=r"epochs/00001: was removed .* cannot be put back \(No such file"):
        life.store.check_authority()


@pytest.mark.parametrize(
    "name",
    [
        "epochs/9999999999999999999999",
        "epochs/000001",
        "epochs/99999999999",
        "commits/e99999999999999999999-c000000001-t000000000001.commit",
        "commits/e00001-c99999999999999999999-t000000000001.commit",
        "commits/e00001-c000000009-t99999999999999999999999.commit",
        "commits/e00001-c000000009-t999999999999.commit",
    ],
)
def test_an_absurd_name_is_passed_over_and_said(tmp_path: Path, name: str) -> None:
    published: dict[int, float] = {}
    life = Life(tmp_path, published, 1.0)
    life.round_or_end()
    life.store.close()
    (tmp_path / name).write_bytes(b"junk")
    last = Life(tmp_path, published, 100.0)
    assert last.store.epoch == 2 and last.store.unseen == 0
    assert last.store.found == [f"{name} is passed over: no syncer gives a number like this"]
    last.round_or_end()
    assert (tmp_path / name).exists()


# ── the standby ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_standby_waits_for_somebody_to_begin_and_takes_over_when_he_ends(tmp_path: Path) -> None:
    clock, published = ManualClock(), dict[int, float]()
    standby = Standby(tmp_path, clock=clock, lease_s=10.0)
    assert standby.look() is None, "nobody has begun"
    life = Life(tmp_path, published, 1.0)
    life.round_or_end()
    clock.advance(9.0)
    assert standby.look() is None
    life.store.close()
    found = standby.look()
    assert found is not None and not found.over and "has ended" in found.why
    (theta, _) = next(iter(found.known.values()))
    assert np.array_equal(theta, life.theta)


def test_a_lease_is_judged_by_the_clock_of_the_standby_alone(tmp_path: Path) -> None:
    clock, published = ManualClock(), dict[int, float]()
    life = Life(tmp_path, published, 1.0)
    life.round_or_end()
    standby = Standby(tmp_path, clock=clock, lease_s=10.0)
    for _ in range(5):
        assert standby.look() is None
        clock.advance(9.0)
        life.store.beat()
    assert standby.look() is None
    clock.advance(9.9)
    assert standby.look() is None
    clock.advance(0.2)
    found = standby.look()
    assert found is not None and found.over and "has not renewed its lease for 10 s" in found.why
    taker = Life(tmp_path, published, 100.0, over=True, known=found.known)
    with pytest.raises(SteppedDown):
        life.store.beat()
    clock.advance(100.0)
    assert standby.look() is None, "there is a new lease"
    taker.store.close()
    again = standby.look()
    assert again is not None and not again.over


def test_what_a_standby_has_read_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published: dict[int, float] = {}
    life = Life(tmp_path, published, 1.0)
    for _ in range(3):
        life.round_or_end()
    standby = Standby(tmp_path, clock=ManualClock(), lease_s=1.0)
    standby.look()
    life.store.close()
    found = standby.look()
    assert found is not None
    with monkeypatch.context() as patched:
        patched.setattr("gruppetto.runtime.commits.Place.read", lambda *_: pytest.fail("read from the disk"))
        store = open_store(tmp_path, known=found.known)
        store.claim_epoch()
        ((_, version, theta, _),) = store.load()
    assert version == life.round and np.array_equal(theta, life.theta)


def test_the_state_a_commit_left_is_what_the_next_life_gets(tmp_path: Path) -> None:
    published: dict[int, float] = {}
    life = Life(tmp_path, published, 1.0)
    life.round_or_end()
    expected = life.state(life.round)
    life.store.close()
    again = open_store(tmp_path)
    again.claim_epoch()
    assert again.state == replace(expected, reserve=0)
