"""A checkpoint of the whole run on the syncer's disk: taken while it goes on, gone on from, damaged, refused."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import numpy as np
import pytest

from gruppetto.errors import ProtocolError, StateError
from gruppetto.protocol import ProtocolSetting
from gruppetto.protocol.messages import Announcement, Marker, Refusal
from gruppetto.protocol.units import Epoch, Fragment, LearnerId, Round, Version
from gruppetto.runtime.connection import Connection
from gruppetto.runtime.manifest import complete_checkpoints, read_manifest
from gruppetto.runtime.run_checkpoint import EPOCHS_APART, goes_on_from, install
from gruppetto.runtime.serving import serve
from gruppetto.runtime.setting import SyncerSetting
from gruppetto.runtime.store import Store
from gruppetto.runtime.wire import decode_frame

TARGETS = ([1.0, -2.0, 3.0, 0.5, 7.0], [0.25, 4.0, -1.0, 2.0, -3.0])


def towards(target: Any) -> Any:
    goal = np.asarray(target, np.float32)
    return lambda theta, _: theta - np.float32(0.1) * (theta - goal)


def two(world: Any, tensors: Any) -> Any:
    """Two learners in lock-step, three rounds along."""
    w = world(tensors(3, 2), num_learners=2, min_quorum=2, num_fragments=2, sync_period=2, overlap_steps=1, rounds=40)
    learners = [w.learner(name, np.zeros(5), towards(t)) for name, t in zip("ab", TARGETS, strict=True)]
    w.join(*learners)
    w.step_all(3)
    return w


def taken(w: Any, name: str = "") -> Any:
    """A checkpoint, complete after the next step; its directory."""
    assert w.service.take_checkpoint(name)["stage"] == "waiting"
    w.step_all()
    report = w.service.checkpoint_report()
    assert report["stage"] == "done", report
    return w.path / "syncer" / "checkpoints" / report["mark"]


def go_on(w: Any, place: Any) -> Any:
    """Everything dies; the same world begins again from ``place``."""
    saved = {learner.core.learner: learner.saved[-1] for learner in w.learners}
    w.service.close()
    manifest = install(place, w.path / "syncer")
    w.service = w.open()
    w.learners = []
    for name, target in zip("ab", TARGETS, strict=True):
        state, theta, bases = saved[name]
        if name not in {part.learner for part in manifest.parts}:
            continue
        learner = w.learner(name, theta, towards(target), session=f"{name}-2")
        learner.core.restore(state, same_life=True)
        learner.bases = dict(bases)
        w.join(learner)
    return w


def test_a_run_goes_on_from_its_checkpoint_as_if_uninterrupted(world: Any, tensors: Any) -> None:
    """In lock-step, to the last bit."""
    whole, cut = two(world, tensors), two(world, tensors)
    whole.step_all(11)
    place = taken(cut, "half")
    cut.step_all(5)  # what comes after the cut is given up
    assert cut.service.engine.core.round > read_manifest(place).round
    go_on(cut, place)
    core = cut.service.engine.core
    assert core.round in (3, 4) and all(m.incarnation == 1 for m in core.members)
    while core.round < whole.service.engine.core.round:
        cut.step_all()
    while whole.service.engine.core.round < core.round:
        whole.step_all()
    assert np.array_equal(cut.theta(), whole.theta())
    assert core.ledger.balances() and core.ledger.totals.lost == 0
    assert core.ledger.totals.merged == whole.service.engine.core.ledger.totals.merged
    assert core.cursors == whole.service.engine.core.cursors


def test_what_a_checkpoint_says_of_itself(world: Any, tensors: Any) -> None:
    w = two(world, tensors)
    place = taken(w)
    manifest = read_manifest(place)
    assert (manifest.mark, manifest.rounds, manifest.finished) == ("checkpoint-1", 40, False)
    assert [(p.learner, p.incarnation, p.where) for p in manifest.parts] == [
        ("a", 1, "disk of a"),
        ("b", 1, "disk of b"),
    ]
    assert taken(w).name == "checkpoint-2"
    found = complete_checkpoints(w.path / "syncer")
    assert [p.name for p, _ in found] == ["checkpoint-1", "checkpoint-2"]
    # The parts of the two that have not changed share their bytes on the disk.
    with Store(place, identity=None) as part:
        assert part.state is not None and part.state.round == manifest.round
    for name in ("checkpoint-1", "no name", "../up"):
        with pytest.raises(StateError):
            w.service.take_checkpoint(name)


def test_a_learner_without_a_part_begins_a_new_life(world: Any, tensors: Any) -> None:
    w = two(world, tensors)
    w.service.take_checkpoint("m")
    w.learners[1].goodbye()
    w.learners = w.learners[:1]
    w.step_all()
    report = w.service.checkpoint_report()
    assert report["stage"] == "done" and set(report["left_out"]) == {"b"}, report
    w.service.close()
    install(w.path / "syncer" / "checkpoints" / "m", w.path / "syncer")
    with Store(w.path / "syncer", identity=None) as store:
        assert store.state is not None
        members = {m.learner: (m.gone, m.awaited) for m in store.state.members}
        assert members == {"a": (False, True), "b": (True, False)} and store.state.ledger.balances()
    w.service = w.open()


def test_epochs_are_never_used_twice(world: Any, tensors: Any, tmp_path: Any) -> None:
    w = two(world, tensors)
    place = taken(w)
    w.service.close()
    for _ in range(3):
        with Store(w.path / "syncer", identity=None) as store:
            claimed = store.claim_epoch()
    assert claimed == 4
    install(place, w.path / "syncer")
    with Store(w.path / "syncer", identity=None) as store:
        assert store.claim_epoch() == 6
    install(place, tmp_path / "elsewhere")
    with Store(tmp_path / "elsewhere", identity=None) as store:
        assert store.claim_epoch() == 1 + EPOCHS_APART + 1
    w.service = w.open()


def test_a_service_file_may_keep_its_from(world: Any, tensors: Any) -> None:
    """The second start goes on from what the first one made, and is not put back."""
    w = two(world, tensors)
    place, other = taken(w, "one"), taken(w, "two")
    state = w.path / "syncer"
    assert not goes_on_from(place, state)
    w.service.close()
    install(place, state)
    assert goes_on_from(place, state) and not goes_on_from(other, state)
    assert (state / "before-resume-1" / "commits").exists()
    install(other, state)
    assert goes_on_from(other, state) and (state / "before-resume-2").is_dir()
    w.service = w.open()


def test_what_is_damaged_or_in_use_is_named_and_nothing_is_moved(world: Any, tensors: Any) -> None:
    w = two(world, tensors)
    place, state = taken(w), w.path / "syncer"
    with pytest.raises(StateError, match="another syncer is using this state directory"):
        install(place, state)
    w.service.close()
    with pytest.raises(StateError, match="is no complete checkpoint"):
        install(w.path / "nowhere", state)
    with Store(place, identity=None) as part:
        fragment = place / "commits" / part._commit.places[0][0].file
    good = fragment.read_bytes()
    fragment.unlink()
    fragment.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    with pytest.raises(StateError, match="is damaged"):
        install(place, state)
    fragment.write_bytes(good)
    manifest = (place / "manifest.json").read_bytes()
    (place / "manifest.json").write_bytes(manifest.replace(b'"disk of a"', b'"disk of c"'))
    with pytest.raises(StateError, match="the manifest is damaged: its checksum is wrong"):
        install(place, state)
    assert complete_checkpoints(state) == []
    assert not (state / "before-resume-1").exists()
    (place / "manifest.json").write_bytes(manifest)
    w.service = w.open()


def test_a_disk_that_refuses_costs_the_checkpoint_and_not_the_run(
    world: Any, tensors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = two(world, tensors)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gruppetto.runtime.store._link", refuse)
    w.service.take_checkpoint("m")
    w.step_all(2)
    report = w.service.checkpoint_report()
    assert (report["stage"], report["why"]) == ("failed", "No space left on device")
    assert not complete_checkpoints(w.path / "syncer")
    before = w.service.engine.core.round
    w.step_all(2)
    assert w.service.engine.core.round > before
    monkeypatch.undo()
    taken(w, "m")  # the name is free, and what was half written is gone


def test_only_one_at_a_time_and_none_before_there_are_weights(world: Any, tensors: Any) -> None:
    fresh = world(tensors(3, 2), num_learners=2)
    assert "no weights yet" in fresh.service.take_checkpoint("m")["why"]
    w = two(world, tensors)
    w.service.take_checkpoint("one")
    for name in ("two", "one", ""):
        with pytest.raises(StateError, match="checkpoint one is being taken; ask again when it is done"):
            w.service.take_checkpoint(name)
    assert "a, b" in w.service.checkpoint_report()["waiting_for"]
    w.step_all()
    assert w.service.checkpoint_report()["mark"] == "one"


def test_a_learner_from_after_the_cut_is_refused(world: Any, tensors: Any) -> None:
    """It has survived what everything else went back from; its weights never were."""
    w = two(world, tensors)
    place = taken(w)
    w.step_all(6)
    survivor = w.learners[1]
    w.service.close()
    install(place, w.path / "syncer")
    w.service = w.open()
    w.restart()
    survivor.connect()
    survivor.pump()
    refusal = next(frame for frame in survivor.frames if isinstance(frame, Refusal))
    assert refusal.reason == "ahead"


def test_no_announcement_is_merged_past_a_marker() -> None:
    """What was announced behind it would seem to have been announced before."""
    link = Connection(learner=LearnerId("a"), session="s", peer="memory")

    def announce(round: int, fragment: int) -> None:
        versions = ((Fragment(fragment), Version(round)),)
        link.put(Announcement(epoch=Epoch(1), round=Round(round), versions=versions))

    announce(1, 0)
    announce(2, 1)
    link.put(Marker(epoch=Epoch(1), mark="m", round=Round(2)))
    announce(3, 0)
    announce(4, 1)
    frames = [decode_frame(data, {"Announcement", "Marker"}) for data in link.take()]
    assert [getattr(f, "round", None) for f in frames] == [2, 2, 4]
    assert isinstance(frames[1], Marker)
    assert [dict(f.versions) for f in (frames[0], frames[2])] == [{0: 1, 1: 2}, {0: 3, 1: 4}]  # type: ignore[union-attr]


@pytest.mark.parametrize("token", [None, "sesame"])
def test_control_takes_an_identity_in_any_case(tmp_path: Any, token: str | None) -> None:
    """The run's token, or what only the owner of the state directory can read."""

    async def test() -> None:
        stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
        setting = SyncerSetting(state=tmp_path / "state", listen="127.0.0.1:0", token=token)
        task = asyncio.create_task(serve(ProtocolSetting(), setting, on_ready=ready.set_result, stop=stop))
        endpoint = await ready
        assert endpoint.control not in repr(endpoint)
        assert (tmp_path / "state" / "endpoint.json").stat().st_mode & 0o077 == 0
        url = f"{endpoint.url}/v1/checkpoint"
        async with aiohttp.ClientSession() as http:
            for secret, status in ((None, 401), ("wrong", 401), (endpoint.control, 409), (token, 409)):
                if secret is None and status == 409:
                    continue
                headers = {"Authorization": f"Bearer {secret}"} if secret else {}
                async with http.post(url, headers=headers) as reply:
                    assert reply.status == status, (secret, await reply.text())
            good = {"Authorization": f"Bearer {endpoint.control}"}
            async with http.get(url, headers=good) as reply:
                assert reply.status == 404
            async with http.post(url, headers=good, params={"name": "x" * 200}) as reply:
                assert reply.status == 400
            async with http.get(f"{endpoint.url}/v1/status", headers=good) as reply:
                assert reply.status == (200 if token is None else 401)  # it opens nothing else
        stop.set()
        await task

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_marker_may_not_come_from_a_learner() -> None:
    from gruppetto.runtime.wire import FROM_LEARNER, encode_frame

    with pytest.raises(ProtocolError, match="a Marker may not come here"):
        decode_frame(encode_frame(Marker(epoch=Epoch(1), mark="m", round=Round(2))), FROM_LEARNER)
