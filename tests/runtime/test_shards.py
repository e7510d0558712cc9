"""A run that several syncers serve, in memory: the same values as from one; what does not belong to it is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from gruppetto.errors import ProtocolError, SettingError, StateError
from gruppetto.launch.ask import GlobalModel
from gruppetto.launch.ask_shards import assembled
from gruppetto.numerics.deal import Shard
from gruppetto.protocol.events import StepDone, StepStarted
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.report import write_report
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.address_book import Fixed
from gruppetto.runtime.setting import SyncerSetting
from gruppetto.runtime.shard_books import ShardBook, Shards
from gruppetto.runtime.shard_map import FRESH_S, Place, ShardDirectory, ShardMap, decode_map, decode_place, plan_of
from gruppetto.trace.metrics import measure
from gruppetto.trace.together import together

SIZES = (60, 33, 17, 9, 9, 5)
PROTOCOL = {"num_learners": 2, "min_quorum": 2, "num_fragments": 6, "sync_period": 6, "overlap_steps": 1}


def pulls(target):
    target = np.asarray(target, np.float32)
    return lambda theta, cursor: theta - np.float32(0.05 + 0.01 * (cursor % 3)) * (theta - target)


class SideBySide:
    """Learners of several worlds, one for each shard, with one model: each has the pieces of its own fragments."""

    def __init__(self, learners, inner_step):
        self.learners, self.inner_step = learners, inner_step

    def step(self):
        model = whole_of(self.learners)
        after = self.inner_step(model, self.learners[0].core.cursor).astype(np.float32)
        for learner in self.learners:
            learner.feed(StepStarted())
            learner.theta = after.copy()
        for learner in self.learners:
            learner.feed(StepDone(tokens=10, cursor=learner.core.cursor + 1))
            learner.beat()


def whole_of(learners):
    model = learners[0].theta.copy()
    for learner in learners[1:]:
        for spec in learner.parts.fragments:
            for piece in spec.pieces:
                at = learner._offsets[piece.name]
                model[at + piece.start : at + piece.stop] = learner.theta[at + piece.start : at + piece.stop]
    return model


@pytest.mark.parametrize("of", [2, 3])
def test_shards_make_of_a_model_what_one_syncer_does_bit_for_bit(world, tensors, of):
    layout, start = tensors(*SIZES), np.linspace(-1, 1, sum(SIZES), dtype=np.float32)
    steps = [pulls(np.cos(np.arange(sum(SIZES)) + i)) for i in range(2)]
    rules = {"merge": (("w[0-2]", "rda"), (".*", "mean")), "outer": "paper"}
    one = world(layout, setting=rules, **PROTOCOL)
    one.join(*(one.learner(f"l{i}", start, step) for i, step in enumerate(steps)))
    shards = []
    for k in range(1, of + 1):
        more = {"shard": Shard(number=k, of=of), "directory": "http://127.0.0.1:7171" if k > 1 else ""}
        shards.append(world(layout, setting={**rules, **more}, **PROTOCOL))
        shards[-1].join(*(shards[-1].learner(f"l{i}", start, step) for i, step in enumerate(steps)))
    riders = [SideBySide([w.learners[i] for w in shards], step) for i, step in enumerate(steps)]
    for _ in range(20):
        one.step_all()
        for w in shards:
            w.clock.advance(1.0)
        for rider in riders:
            rider.step()
        for w in shards:
            w.settle(w.learners)
    rounds = [w.service.status()["round"] for w in shards]
    assert rounds == [one.service.status()["round"]] * of == [20] * of
    for i, rider in enumerate(riders):
        assert np.array_equal(whole_of(rider.learners), one.learners[i].theta)
    parts = []
    for w in shards:
        stream = w.service.borrow_model()
        content = b"".join(bytes(piece) for piece in stream)
        assert len(content) == stream.length
        w.service.give_back(*stream.values)
        parts.append(GlobalModel(round=stream.round, content=content))
    whole = assembled(parts)
    header = int.from_bytes(whole.content[:8], "little")
    assert np.array_equal(np.frombuffer(whole.content[8 + header :], np.float32), one.theta())
    assert whole.round == 20
    merged = sum(w.service.status()["fragment_tokens"]["merged"] for w in shards)
    assert merged == one.service.status()["fragment_tokens"]["merged"] > 0
    the_traces_say_the_same(one, shards)


def the_traces_say_the_same(one, shards):
    """What one syncer and what several have recorded of the same run: nothing is missing, and nothing counts twice."""
    for w in (one, *shards):
        w.service.close()
    alone = measure(one.path / "trace.jsonl")
    traces = [measure(w.path / "trace.jsonl") for w in shards]
    whole = together([replace(found, shard=f"{k}/{len(shards)}") for k, found in enumerate(traces, start=1)])
    assert whole.tokens == alone.tokens and whole.tokens["consumed"] == 400
    assert whole.fragment_tokens == alone.fragment_tokens and whole.num_fragments == alone.num_fragments
    assert whole.consumed_by == alone.consumed_by == {"l0": 200, "l1": 200}
    assert whole.newest_round == alone.newest_round == 20
    assert whole.participation == alone.participation == 1.0
    assert whole.goodput == alone.goodput and whole.uptime == alone.uptime
    for name, learner in alone.learners.items():
        assert (learner.steps, learner.merged_rounds) == (20, 20)
        same = whole.learners[name]
        assert (same.steps, same.merged_rounds, same.lives) == (20, 20, learner.lives)
    assert sorted(r.round for r in whole.rounds.values() if r.due) == sorted(r.round for r in alone.rounds.values())
    assert whole.header["numel"] == alone.header["numel"] == sum(SIZES)
    # The bodies are the same; each shard has a control connection of its own, with its words about every step.
    assert whole.up_bytes == sum(found.up_bytes for found in traces) > alone.up_bytes > max(t.up_bytes for t in traces)


def test_while_a_shard_is_away_the_others_rounds_go_on_and_it_comes_back_from_its_state(world, tensors):
    layout, start = tensors(*SIZES), np.zeros(sum(SIZES), np.float32)
    shards = []
    for k in (1, 2):
        more = {"shard": Shard(number=k, of=2), "directory": "http://127.0.0.1:7171" if k > 1 else ""}
        shards.append(world(layout, setting=more, **PROTOCOL | {"num_learners": 1, "min_quorum": 1}))
        shards[-1].join(shards[-1].learner("l0", start, pulls(np.ones(sum(SIZES)))))
    rider = SideBySide([w.learners[0] for w in shards], pulls(np.ones(sum(SIZES))))

    def ride(rounds, reached):
        for _ in range(rounds):
            for w in shards:
                w.clock.advance(1.0)
            rider.step() if len(reached) == 2 else solo(rider, reached[0].learners[0])
            for w in reached:
                w.settle(w.learners)

    ride(6, shards)
    first, second = shards
    before = second.service.status()["round"]
    second.service.close()
    ride(6, [first])
    assert first.service.status()["round"] == 12
    second.restart()
    assert second.service.status()["round"] == before == 6
    second.learners[0].connect()
    second.settle(second.learners)
    ride(6, shards)
    assert (first.service.status()["round"], second.service.status()["round"]) == (18, 12)


class TwoShards:
    """Of a run with twelve rounds and one learner, whose name its processes take over from each other."""

    def __init__(self, world, tensors):
        self.layout, self.start = tensors(*SIZES), np.zeros(sum(SIZES), np.float32)
        self.shards, self.processes = [], 0
        for k in (1, 2):
            directory = "http://127.0.0.1:7171" if k > 1 else ""
            more = {"shard": Shard(number=k, of=2), "directory": directory, "run_id": "tour"}
            dials = PROTOCOL | {"num_learners": 1, "min_quorum": 1, "rounds": 12}
            self.shards.append(world(self.layout, setting=more, **dials))
        self.tell()
        self.begin()

    def tell(self):
        """What the announcements of the second shard bring, every two seconds."""
        first, second = (w.service for w in self.shards)
        first.directory.url, second.directory.url = "http://127.0.0.1:1", "http://127.0.0.1:2"
        second.look_at_shards()
        first.hear_of(second.directory.place, "")
        second.directory.learn(first.directory.map())
        second.look_at_shards()

    def begin(self):
        """A new process under the learner's name."""
        self.processes += 1
        for w in self.shards:
            w.learners.clear()
            session = f"l0-{self.processes}"
            w.join(w.learner("l0", self.start, pulls(np.ones(sum(SIZES))), session=session))
        self.rider = SideBySide([w.learners[0] for w in self.shards], pulls(np.ones(sum(SIZES))))

    def die(self):
        for w in self.shards:
            w.learners[0].control.close()
            w.learners.clear()

    def ride(self, rounds, reached=None):
        for _ in range(rounds):
            for w in self.shards:
                w.clock.advance(1.0)
            self.rider.step() if reached is None else solo(self.rider, reached.learners[0])
            for w in self.shards if reached is None else [reached]:
                w.settle(w.learners)

    @property
    def rounds(self):
        return [w.service.status()["round"] for w in self.shards]

    @property
    def cores(self):
        return [w.learners[0].core for w in self.shards]


@pytest.mark.parametrize("ahead", [0, 1], ids=["the-first-has-finished", "the-second-has-finished"])
def test_whoever_comes_when_one_shard_has_finished_rides_for_the_other(world, tensors, tmp_path, ahead):
    run = TwoShards(world, tensors)
    early, late = run.shards[ahead], run.shards[1 - ahead]
    run.ride(4)
    run.ride(8, reached=early)  # the other one is away, and its first rounds are all it has
    run.tell()
    assert early.service.status()["phase"] == "finished" and late.service.status()["round"] == 4
    run.die()
    early.clock.advance(1000.0)
    early.service.tick()
    assert not early.service.over, "nobody is there, and it waits for the other shard all the same"
    assert early.service.status()["waiting_for"] == "the other shards to finish"

    run.begin()
    assert [core.refusal for core in run.cores] == [None, None] and all(core.ready for core in run.cores)
    assert [core.finished for core in run.cores] == [w is early for w in run.shards]
    assert [core.incarnation for core in run.cores] == [2, 2]
    assert run.cores[0].slot == 0 and run.cores[0].cursor == (12 if ahead == 0 else 4), "the first shard says where"
    run.ride(3)
    assert late.service.status()["round"] == 7

    early.restart()  # kill -9
    run.tell()
    early.learners[0].connect()
    run.ride(1)
    assert [core.incarnation for core in run.cores] == [2, 2], "the life goes on"
    cursors = dict(early.service.engine.core.cursors)
    assert ahead or cursors == {0: 16}, "what is trained for the other shard alone is not handed out again"
    early.service.stop()
    assert early.service.stopped
    early.restart()
    run.tell()
    assert early.service.engine.core.cursors == cursors
    early.learners[0].connect()
    run.ride(4)
    assert run.rounds == [12, 12] and all(core.finished for core in run.cores)
    assert not early.service.over
    run.tell()
    assert not any(w.service.over for w in run.shards), "the learner has not said goodbye"
    for w in run.shards:
        w.learners[0].goodbye()
    assert all(w.service.over for w in run.shards)
    assert all(w.service.status()["tokens"]["open"] == 0 for w in run.shards)
    run.begin()
    assert all(core.finished and core.ready and not core.incarnation for core in run.cores), "visitors of both"
    assert all(w.service.status()["tokens"]["open"] == 0 for w in run.shards)

    for w, name in zip(run.shards, ("trace.jsonl", "trace-2.jsonl"), strict=True):
        w.service.close()
        shutil.copy(w.path / "trace.jsonl", tmp_path / name)
    report = write_report(tmp_path).figures
    assert report["finished"] and report["rounds"] == 12 and set(report["checks"].values()) == {"ok"}
    assert report["learners"]["l0"] | {"step_s": None} == {
        "steps": 20,
        "tokens": 200,
        "merged_rounds": 12,
        "lives": 2,
        "step_s": None,
        "state": "left",
    }
    # Eight of the first life's steps were never told to the shard that was away: they are lost to its fragments.
    assert [each["tokens"]["consumed"] for each in report["shards"]] == ([200, 120] if ahead == 0 else [120, 200])
    tokens = report["tokens"]
    assert tokens["consumed"] == 200 == sum(tokens.values()) - 200 and tokens["lost"] >= 40
    assert report["bytes"]["up"] == sum(each["bytes"]["up"] for each in report["shards"])
    assert [recovery["cause"] for recovery in report["recoveries"]] == ["killed"]


def solo(rider, reached):
    """One shard's syncer is away: its core goes on, and says what nobody hears."""
    model = whole_of(rider.learners)
    after = rider.inner_step(model, reached.core.cursor).astype(np.float32)
    for learner in rider.learners:
        learner.theta = after.copy()
    reached.feed(StepStarted())
    reached.feed(StepDone(tokens=10, cursor=reached.core.cursor + 1))
    reached.beat()


def test_a_state_is_of_one_shard(world, tensors):
    w = world(tensors(*SIZES), setting={"shard": Shard(number=1, of=2)}, **PROTOCOL | {"min_quorum": 1})
    w.join(w.learner("l0", np.zeros(sum(SIZES)), pulls(np.ones(sum(SIZES)))))
    w.step_all(2)
    w.service.close()
    w.setting["shard"] = Shard(number=1, of=3)
    with pytest.raises(StateError, match=r"this run was begun with shard = '1/2', now it is '1/3'; take the old value"):
        w.open()
    w.setting["shard"] = Shard(number=1, of=2)
    w.service = w.open()


def test_more_shards_than_fragments_come_of_no_model(world, tensors):
    rules = {"shard": Shard(number=1, of=3), "merge": ((".*", "rda"),)}
    w = world(tensors(3, 3), setting=rules, **PROTOCOL)
    lonely = w.learner("l0", np.zeros(6), pulls(np.ones(6)))
    lonely.connect()
    lonely.pump()
    assert "3 shards for 2 fragments" in lonely.core.refusal.text


# ── the directory ────────────────────────────────────────────────────────────────────────────────────────────────────

SETTING = SyncerSetting(state="state", shard=Shard(of=2))
PLAN = plan_of(ProtocolSetting(), SETTING)


def directory():
    first = ShardDirectory(Shard(of=2), run_id="tour", plan=PLAN)
    first.url, first.epoch, first.layout_hash = "http://127.0.0.1:1", 1, "aa"
    return first


PLACE = Place(shard="2/2", url="http://0.0.0.0:2", epoch=1, run_id="tour", layout_hash="aa", plan=PLAN)


def test_the_first_shard_tells_where_all_are_and_every_other_one_passes_it_on():
    first = directory()
    assert first.map().missing == (2,)
    first.hear(replace(PLACE, url=""), 0.0)
    assert first.map().missing == (2,), "it has only asked"
    first.hear(PLACE, 0.0, "10.0.0.7")
    second = ShardDirectory(Shard(number=2, of=2), run_id="tour", plan=PLAN)
    second.learn(first.map())
    assert second.map().addresses == {1: "http://127.0.0.1:1", 2: "http://10.0.0.7:2"}
    first.hear(replace(PLACE, url="http://10.0.0.8:2", epoch=2), 1.0)
    assert first.map().addresses[2] == "http://10.0.0.8:2", "a later life is believed at once"
    first.hear(replace(PLACE, url="http://10.0.0.9:2", epoch=2), 1.0 + FRESH_S)
    assert first.map().addresses[2] == "http://10.0.0.9:2", "and the same one when it has been silent"


def test_a_run_goes_on_until_every_shard_has_said_that_it_has_finished():
    first, second = directory(), ShardDirectory(Shard(number=2, of=2), run_id="tour", plan=PLAN)
    second.url = "http://0.0.0.0:2"
    assert first.goes_on_elsewhere and second.goes_on_elsewhere, "nobody has said anything"
    first.finished = True
    first.hear(PLACE, 0.0, "10.0.0.7")
    second.learn(first.map())
    assert first.goes_on_elsewhere and not second.goes_on_elsewhere
    second.finished, second.layout_hash = True, "aa"
    first.hear(second.place, 2.0, "10.0.0.7")
    assert not first.goes_on_elsewhere and first.map().finished == (1, 2)
    assert not ShardDirectory(Shard(), run_id="tour", plan=PLAN).goes_on_elsewhere, "there is no other"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"shard": "2/3"}, "shard 2/3: this run is served by 2 shards, not 3; start it as NUMBER/2"),
        ({"shard": "1/2"}, "the first shard is at http://127.0.0.1:1 already; give each its own number"),
        ({"run_id": "other"}, "its state belongs to run 'other', the others serve 'tour'"),
        ({"layout_hash": "bb"}, "it serves a model of another layout"),
        (
            {"plan": {**PLAN, "run.num_fragments": "12"}},
            "run.num_fragments is 12, at the first shard it is 24; start all",
        ),
        ({"plan": {}}, "is unknown, at the first shard it is"),
        ({"url": "http://10.0.0.8:2"}, "the one at http://10.0.0.7:2 has its number, in epoch 1; give each"),
    ],
)
def test_a_shard_that_does_not_belong_is_refused_in_one_line(wrong, said):
    first = directory()
    first.hear(PLACE, 0.0, "10.0.0.7")
    with pytest.raises(SettingError) as found:
        first.hear(replace(PLACE, **wrong), 1.0, "10.0.0.7")
    assert said in str(found.value) and "\n" not in str(found.value)
    with pytest.raises(SettingError, match=r"shard 2/2 is not the directory"):
        ShardDirectory(Shard(number=2, of=2), run_id="tour", plan=PLAN).hear(PLACE, 0.0)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"shard":"9/2"}', b'{"shard":"1/2","url":"ftp://x"}', b"\xff", b"[" * 5000]
)
def test_what_is_no_place_and_no_map_is_refused(data):
    for decode in (decode_place, decode_map):
        with pytest.raises(ProtocolError, match="not "):
            decode(data)
    for wrong in (b'"addresses":{"3":"http://a"}', b'"addresses":{},"finished":[3]'):
        with pytest.raises(ProtocolError, match="not a map"):
            decode_map(b'{"run_id":"a","shards":2,%s}' % wrong)


@pytest.mark.parametrize(("number", "address"), [(1, "http://a"), (2, "")])
def test_all_shards_but_the_first_know_where_it_is(number, address):
    with pytest.raises(SettingError, match=r"syncer.directory"):
        SyncerSetting(state="state", shard=Shard(number=number, of=2), directory=address)


def test_a_book_that_leads_to_the_first_shard_goes_on_doing_so():
    here, there, third = (SyncerAddress.parse(f"http://{host}:1") for host in ("here", "there", "third"))
    told = ShardMap(run_id="tour", shards=2, addresses={1: str(here), 2: str(there)})
    by_the_first = Shards(told, Fixed(here, third))
    assert by_the_first.addresses(1) == (here, third), "its standbys"
    assert by_the_first.addresses(2) == ShardBook(by_the_first, 2).addresses() == (there,)
    assert Shards(told, Fixed(there)).addresses(1) == (here,)
