"""The learner against a real syncer on loopback: how it behaves in a loop, and when things go wrong."""

from __future__ import annotations

import itertools
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.served import Quiet, served
from torch import nn

import gruppetto
from gruppetto.attach.boundaries import LOOK_STEPS
from gruppetto.errors import (
    AddressError,
    ConnectionLost,
    GruppettoError,
    LayoutError,
    Refused,
    SettingError,
    StateError,
)
from gruppetto.launch.ask import fetch_status

Make = Callable[..., Any]
Start = Callable[..., Any]
SMALL = {"num_fragments": 3, "sync_period": 3, "outer": "finetune", "uplink": "fp32"}


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model: Any, optimizer: torch.optim.Optimizer, index: int = 0) -> None:
    model(*model.batch(index)).backward()
    optimizer.step()
    optimizer.zero_grad()


def wait(learner: gruppetto.Learner, until: Callable[[], bool]) -> None:
    """Until the network has brought it about."""
    with learner._client.news:
        assert learner._client.news.wait_for(until, timeout=120.0)


class Attached:
    """A toy model, its optimizer and its learner."""

    def __init__(self, url: str, model: Any, **how: object) -> None:
        self.model, self.optimizer = model, adamw(model)
        how = {"tokens_per_step": 16, "quiet": True} | how
        self.learner = gruppetto.Learner(model, self.optimizer, syncer=url, **how)  # type: ignore[arg-type]

    def train(self, steps: int = 1) -> None:
        for index in range(steps):
            train(self.model, self.optimizer, index)


# ── in the loop ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_weights_are_pulled_before_the_first_step(syncer: Start, toy: Make) -> None:
    running = syncer(num_learners=2, start_learners=1, **SMALL)
    first, second = Attached(running.url, toy(0), name="a"), Attached(running.url, toy(1), name="b")
    with first.learner, second.learner:
        for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
            assert torch.equal(a, b)
        assert {first.learner.slot, second.learner.slot} == {0, 1}


def test_counting_by_hand(syncer: Start, toy: Make) -> None:
    running = syncer(run={"context": 64}, **SMALL)
    model = toy()
    optimizer = adamw(model)
    with gruppetto.Learner(model, None, hook=False, syncer=running.url, quiet=True) as learner:
        train(model, optimizer)
        assert learner.metrics()["gruppetto/steps"] == 0
        learner.step(tokens=7)
        learner.tokens(3)
        learner.step(tokens=2)
        assert learner.metrics()["gruppetto/tokens"] == 12
        assert learner.cursor == 2
        learner.cursor = 10
        learner.step(tokens=1)
        assert learner.cursor == 10
        learner.step(tokens=1)
        assert learner.cursor == 11
        assert learner.run == {"context": 64, "num_slots": 16}


def test_tokens_that_nobody_told_count_one_with_a_warning(
    syncer: Start, toy: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one = Attached(syncer(**SMALL).url, toy(), tokens_per_step=None)
    with caplog.at_level(logging.WARNING, "gruppetto.learner"), one.learner:
        one.train(3)
        assert one.learner.metrics()["gruppetto/tokens"] == 3
    assert sum("tokens of a step" in r.message for r in caplog.records) == 1


def test_the_cursor_may_come_from_a_function(syncer: Start, toy: Make) -> None:
    one = Attached(syncer(**SMALL).url, toy(), cursor=lambda: 42)
    with one.learner:
        one.train()
        assert one.learner.cursor == 42


@pytest.mark.parametrize("wrong", [8.0, -100, 2**70])
def test_a_count_that_is_none_is_refused_in_the_loop_and_costs_nothing(syncer: Start, toy: Make, wrong: Any) -> None:
    one = Attached(syncer(**SMALL).url, toy(), max_run_ahead=0)
    with one.learner as learner:
        one.train(2)
        for say in (learner.tokens, learner.step, lambda n: setattr(learner, "cursor", n)):
            with pytest.raises(SettingError):
                say(wrong)
        with pytest.raises(SettingError, match=r"Learner\.report"):
            learner.report(loss="low")  # type: ignore[arg-type]
        one.train(3)
        assert learner.metrics()["gruppetto/tokens"] == 5 * 16
        assert (learner.round, learner.connected, learner.metrics()["gruppetto/reconnects"]) == (5, True, 0)


def test_a_replaced_parameter_is_not_passed_over(syncer: Start, toy: Make) -> None:
    one = Attached(syncer(**SMALL).url, toy())
    with pytest.raises(LayoutError, match="'matrix': has been replaced"), one.learner as learner:
        one.train(LOOK_STEPS - 1)
        one.model.matrix = nn.Parameter(one.model.matrix.detach().clone())
        one.train()
        assert learner.metrics()["gruppetto/steps"] == LOOK_STEPS
        one.train()


def test_a_parameter_replaced_in_the_last_steps_is_told_at_the_end(
    syncer: Start, toy: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one = Attached(syncer(**SMALL).url, toy(), name="a")
    with caplog.at_level(logging.WARNING, "gruppetto.learner"), one.learner:
        one.train(3)
        one.model.matrix = nn.Parameter(one.model.matrix.detach().clone())
        one.train(3)
    assert [r.message.split(" since")[0] for r in caplog.records if " since the model" in r.message] == [
        "a: parameter 'matrix': has been replaced or removed"
    ]


def test_frozen_parameters_are_left_alone(syncer: Start, toy: Make) -> None:
    running = syncer(num_learners=2, start_learners=1, **SMALL)
    models = [toy(0), toy(1)]
    for model in models:
        model.matrix.requires_grad_(False)
    first, second = (Attached(running.url, model, name=f"l{i}") for i, model in enumerate(models))
    with first.learner, second.learner:
        assert torch.equal(models[0].wte, models[1].wte)
        assert torch.equal(models[1].matrix, toy(1).matrix)


def test_a_stamp_that_went_stale_in_an_evaluation_is_renewed(syncer: Start, toy: Make) -> None:
    running = syncer(num_learners=2, start_learners=1, **SMALL)
    fast, slow = Attached(running.url, toy(), name="fast", max_run_ahead=0), Attached(running.url, toy(), name="slow")
    with fast.learner, slow.learner:
        fast.train(5)
        wait(slow.learner, lambda: slow.learner.round >= 5)
        assert slow.learner.clock == 1, "stamped when it entered"
        slow.model.eval()
        slow.model(*slow.model.batch(0))
        assert slow.learner.clock == 1, "an evaluation is no step"
        slow.model.train()
        newest = slow.learner.round
        slow.model(*slow.model.batch(0)).backward()
        assert slow.learner.clock == newest + 1
        clock = slow.learner.clock
        slow.model(*slow.model.batch(1)).backward()
        assert slow.learner.clock == clock, "one step, however many passes"
        slow.optimizer.step()
        assert slow.learner.metrics()["gruppetto/steps"] == 1


def test_one_learner_that_is_due_every_round_waits_for_no_round_that_waits_for_it(
    syncer: Start, toy: Make, caplog: pytest.LogCaptureFixture
) -> None:
    running = syncer(num_fragments=2, sync_period=1, overlap_steps=0, outer="finetune", uplink="fp32")
    one = Attached(running.url, toy(), max_run_ahead=1)
    with caplog.at_level(logging.WARNING, "gruppetto"), one.learner as learner:
        one.train(12)
        assert learner.metrics()["gruppetto/rejected"] == 0
        assert learner.round >= 11
    assert not [r for r in caplog.records if "no round has closed" in r.message or "answers-short" in r.message]


def test_running_ahead_waits_but_not_for_a_dead_syncer(
    syncer: Start, toy: Make, caplog: pytest.LogCaptureFixture
) -> None:
    running = syncer(**SMALL)
    one = Attached(running.url, toy(), max_run_ahead=0, run_ahead_timeout_s=120.0)
    with caplog.at_level(logging.WARNING, "gruppetto.learner"), one.learner as learner:
        one.train(3)
        assert learner.round == 3
        running.stop()
        learner._run_ahead._timeout_s = 0.3
        one.train(20)
        assert learner.metrics()["gruppetto/run_ahead"] >= 20
        assert learner.metrics()["gruppetto/waited_s"] >= 0.3
    assert sum("no round has closed" in record.message for record in caplog.records) == 1


def test_leaving_restores_the_optimizer_and_ends_all_threads(syncer: Start, toy: Make) -> None:
    one = Attached(syncer(**SMALL).url, toy())
    with one.learner:
        one.train()
    steps = one.learner.metrics()["gruppetto/steps"]
    one.train()
    assert one.learner.metrics()["gruppetto/steps"] == steps
    one.learner.close()
    with pytest.raises(StateError, match="entered before"), one.learner:
        pass


@pytest.mark.parametrize(
    ("error", "why"), [(ValueError("mine\nand yours"), "ValueError: mine and yours"), (KeyboardInterrupt(), "goodbye")]
)
def test_an_exception_in_the_loop_comes_out_as_it_is(
    syncer: Start, toy: Make, error: BaseException, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="gruppetto.syncer")
    running = syncer(**SMALL)
    one = Attached(running.url, toy(), name="a")
    with pytest.raises(type(error)) as caught, one.learner:
        one.train(2)
        raise error
    assert caught.value is error
    with Attached(running.url, toy(), name="b").learner as after:
        assert after.slot == 0, "the slot was given back with a goodbye"
    assert any(m.startswith("a is left: ") and m.endswith(why) for m in caplog.messages), "the syncer says what failed"


# ── a syncer that comes and goes ─────────────────────────────────────────────────────────────────────────────────


def test_a_lost_syncer_stops_nobody_and_is_found_again(syncer: Start, toy: Make) -> None:
    running = syncer(**SMALL)
    one = Attached(running.url, toy())
    with one.learner as learner:
        one.train(10)
        running.stop()
        wait(learner, lambda: not learner.connected)
        one.train(50)
        before = learner.round
        running.start()
        wait(learner, lambda: learner.connected)
        while learner.round <= before:
            one.train()
        assert learner.metrics()["gruppetto/reconnects"] == 1
        assert learner.waiting_for == ""


def test_strict_use_raises_when_the_link_is_lost(syncer: Start, toy: Make) -> None:
    running = syncer(**SMALL)
    one = Attached(running.url, toy(), on_disconnect="raise")
    with pytest.raises(ConnectionLost, match=running.url), one.learner as learner:
        one.train()
        running.stop()
        wait(learner, lambda: not learner.connected)
        one.train()


def test_a_name_that_was_taken_over_trains_on_alone(syncer: Start, toy: Make, caplog: pytest.LogCaptureFixture) -> None:
    running = syncer(**SMALL)
    old, new = Attached(running.url, toy(), name="a"), Attached(running.url, toy(), name="a")
    with caplog.at_level(logging.WARNING, "gruppetto.learner"), old.learner, new.learner:
        wait(old.learner, lambda: old.learner._client.failure is not None)
        old.train(5)
        new.train(5)
        assert old.learner.metrics()["gruppetto/steps"] == 5
        assert new.learner.connected
    assert sum("superseded" in record.message for record in caplog.records) == 1


def test_a_checkpoint_resumes_without_pulling_what_is_unchanged(syncer: Start, toy: Make) -> None:
    running = syncer(**SMALL)
    model = toy()
    one = Attached(running.url, model, name="a", max_run_ahead=0)
    with one.learner as learner:
        one.train(7)
        saved = learner.state_dict()
        clock, versions = learner.clock, [f.version for f in learner._core.fragments]
    again = Attached(running.url, model, name="a", max_run_ahead=0)
    again.learner.load_state_dict(saved)
    with again.learner as learner:
        assert learner.metrics()["gruppetto/bytes_down"] == 0
        assert [f.version for f in learner._core.fragments] == versions
        assert learner.clock >= clock
        bases = learner.state_dict()
        for name in (key for key in saved if key.startswith("base.")):
            assert torch.equal(saved[name], bases[name]), name
        again.train(6)
        assert learner.round > 7


def test_a_distributed_checkpoint_takes_the_state(syncer: Start, toy: Make, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    running = syncer(**SMALL)
    one = Attached(running.url, toy(), name="a", max_run_ahead=0)
    with one.learner as learner:
        one.train(4)
        saved = learner.state_dict()
        dcp.save({"learner": saved}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    fresh = Attached(running.url, toy(), name="a")
    loaded = {"learner": fresh.learner.state_dict()}
    dcp.load(loaded, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert loaded["learner"].keys() == saved.keys()
    assert loaded["learner"]["core"] == saved["core"]
    assert all(torch.equal(loaded["learner"][k], v) for k, v in saved.items() if isinstance(v, torch.Tensor))
    fresh.learner.load_state_dict(loaded["learner"])


def test_a_checkpoint_of_another_run_is_refused(syncer: Start, toy: Make) -> None:
    one = Attached(syncer(**SMALL).url, toy())
    with one.learner as learner:
        saved = learner.state_dict()
        with pytest.raises(StateError, match="already attached"):
            learner.load_state_dict(saved)
    running = syncer(**SMALL)
    other = Attached(running.url, toy())
    other.learner.load_state_dict(saved)
    with Attached(running.url, toy()).learner, pytest.raises(Refused) as caught, other.learner:
        pass
    assert caught.value.reason == "wrong-run"


def test_a_checkpoint_that_fits_no_cut_of_the_run_is_told_in_one_line(
    syncer: Start, toy: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut another way, or by its own account of another number of fragments: no defect, and never in the loop."""
    url = syncer(**SMALL).url
    with Attached(url, toy(), name="a").learner as learner:
        saved = learner.state_dict()
    core = json.loads(saved["core"])
    for damage in ({"cut_hash": "another"}, {"core": json.dumps(core | {"fragments": core["fragments"][:1]})}):
        caplog.clear()
        again = Attached(url, toy(), name="a").learner
        again.load_state_dict(saved | damage)
        with pytest.raises(StateError, match="was cut into other fragments than the run is now"), again:
            pass
        assert "defect" not in caplog.text


def test_an_optimizer_of_other_parameters_is_told_once(
    syncer: Start, toy: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that was made before the model was sharded or moved. It may be right: it may keep copies."""
    url, model = syncer(**SMALL).url, toy()
    for optimizer, told in ((adamw(toy()), 1), (adamw(model), 0), ([adamw(toy()), adamw(model)], 0)):
        caplog.clear()
        gruppetto.Learner(model, optimizer, syncer=url, name="a", tokens_per_step=16)
        assert sum("none of the model's parameters" in record.message for record in caplog.records) == told


def test_who_cannot_give_the_first_weights_leaves_it_to_the_next(syncer: Start, toy: Make) -> None:
    running = syncer(num_learners=2, start_learners=1, **SMALL)
    broken, sound = toy(0), toy(1)
    with torch.no_grad():
        broken.matrix[1, 2] = float("nan")
    first, second = Attached(running.url, broken, name="a"), Attached(running.url, sound, name="b")
    first.learner._client.start()  # as entering does; it is asked for its weights, and then looks at them
    wait(first.learner, lambda: first.learner._client.seed_wanted)
    began = sound.matrix.detach().clone()
    entered = threading.Thread(target=second.learner.__enter__)
    entered.start()
    wait(second.learner, lambda: second.learner.connected)
    with pytest.raises(SettingError, match="'matrix': holds NaN"):
        first.learner._enter()
    first.learner._leave(5.0)
    entered.join(120.0)
    assert not entered.is_alive()
    assert torch.equal(sound.matrix, began)
    assert second.learner.metrics()["gruppetto/reconnects"] == 0
    second.train(3)
    second.learner.close()


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────


def test_another_model_is_refused_by_name(syncer: Start, toy: Make) -> None:
    running = syncer(**SMALL)
    with Attached(running.url, toy()).learner:
        stranger = nn.Linear(3, 3)
        with pytest.raises(Refused, match="'weight' float32") as caught, Attached(running.url, stranger).learner:
            pass
    assert caught.value.reason == "layout"


def test_who_comes_to_a_finished_run_leaves_with_its_weights(
    syncer: Start, toy: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running = syncer(rounds=4, **SMALL)
    one = Attached(running.url, toy(), name="a", checkpoints=gruppetto.Checkpoints(tmp_path, every_steps=1))
    with one.learner as learner:
        for _ in learner.until_finished(itertools.count()):
            one.train()
        learner._checkpoints.wait()
        with Attached(running.url, toy(4), name="a").learner as twin:
            assert twin.finished
        assert learner.connected and learner.metrics()["gruppetto/reconnects"] == 0, "a visitor takes nobody's name"
    final = torch.nn.utils.parameters_to_vector(one.model.parameters())
    before = fetch_status(running.url)
    saved = Attached(running.url, toy(2), name="a", checkpoints=gruppetto.Checkpoints(tmp_path))
    restored = Attached(running.url, toy(3), name="c")
    restored.learner.load_state_dict(one.learner.state_dict())
    for late in (Attached(running.url, toy(1), name="b"), saved, restored):
        with late.learner as learner:
            assert learner.finished and learner.refusal is None and learner.round == learner.rounds == 4
            assert not list(learner.until_finished(itertools.count()))
            assert (late is restored or not learner.began_from) and learner.lr_factor == 1.0, "nothing is looked for"
            late.train()  # a loop of somebody's that looks too late
        assert torch.equal(torch.nn.utils.parameters_to_vector(late.model.parameters()), final)
    assert sum("has reached its last round, 4; nothing is left" in record.message for record in caplog.records) == 4
    after = fetch_status(running.url)
    assert after["learners"] == before["learners"] and after["tokens"] == before["tokens"]
    stranger = nn.Linear(3, 3)
    with pytest.raises(Refused, match="'weight' float32"), Attached(running.url, stranger).learner:
        pass


def test_a_wrong_token_is_refused_and_never_shown(syncer: Start, toy: Make) -> None:
    running = syncer(token="sesame", **SMALL)
    for token in (None, "wrong-and-secret"):
        stranger = Attached(running.url, toy(), token=token).learner
        with pytest.raises(AddressError, match="refuses the token") as caught, stranger:
            pass
        assert "secret" not in str(caught.value)
    right = Attached(running.url, toy(), token="sesame")
    assert "sesame" not in repr(vars(right.learner))
    with right.learner:
        right.train()


def test_nobody_there(toy: Make) -> None:
    lonely = Attached("http://127.0.0.1:9", toy(), connect_timeout_s=0.2).learner
    with pytest.raises(ConnectionLost, match=r"for the syncer at http://127\.0\.0\.1:9 \(cannot be.*refused"), lonely:
        pass


def test_somebody_else_there(toy: Make) -> None:
    class Nothing(Quiet):
        def do_GET(self) -> None:
            self.send_error(404)

    with served(Nothing) as address:
        misled = Attached(address, toy()).learner
        with pytest.raises(AddressError, match="no syncer answers there"), misled:
            pass


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ({"name": "a b"}, SettingError, "Learner.name"),
        ({"tokens_per_step": 0}, SettingError, "1 or more"),
        ({"tokens_per_step": 1.5}, SettingError, "whole number"),
        ({"max_run_ahead": -1}, SettingError, "0 or more"),
        ({"on_disconnect": "shrug"}, SettingError, "keep-training"),
        ({"connect_timeout_s": 0}, SettingError, "above 0"),
        ({"stall_s": float("nan")}, SettingError, "above 0"),
        ({"stall_s": None}, SettingError, "Learner.stall_s"),
        ({"max_bytes_per_s": 100}, SettingError, "Learner.max_bytes_per_s is|65536 or more"),
        ({"connect_timeout_s": "5"}, SettingError, "Learner.connect_timeout_s"),
        ({"connect_timeout_s": True}, SettingError, "Learner.connect_timeout_s"),
        ({"connect_timeout_s": 1e300}, SettingError, "1e\\+06 at most"),
        ({"tokens_per_step": "8"}, SettingError, "Learner.tokens_per_step"),
        ({"max_run_ahead": 2**70}, SettingError, "Learner.max_run_ahead"),
        ({"name": 5}, SettingError, "Learner.name"),
        ({"token": 5}, SettingError, "Learner.token"),
        ({"token": "a\nb"}, SettingError, "line ends"),
        ({"token": "secret\n"}, SettingError, r"^(?!.*secret)Learner\.token"),
        ({"token": "é"}, SettingError, "printable ASCII"),
        ({"token": ""}, SettingError, "Learner.token"),
        ({"cursor": 7}, SettingError, "Learner.cursor"),
        ({"checkpoints": 3}, SettingError, "Learner.checkpoints"),
        ({"url": None}, AddressError, "None is not an address"),
        ({"url": "https://127.0.0.1:9", "ca_file": 5}, SettingError, "^5: cannot be used"),
        ({"url": "https://127.0.0.1:9", "key_file": "k.pem"}, SettingError, "give cert_file too"),
        ({"url": "ftp://x"}, AddressError, "use http"),
        (
            {"ca_file": "ca.pem"},
            SettingError,
            "Learner.ca_file.* plain http.* write https://127.0.0.1:9, or leave ca_file",
        ),
        ({"cert_file": "c", "key_file": "k"}, SettingError, "leave cert_file and key_file out"),
        ({"quiet": "x"}, SettingError, "quiet is 'x'; use True or False"),
        ({"hook": "no"}, SettingError, "Learner.hook"),
        ({"recover": "x"}, SettingError, "Learner.recover"),
        ({"trainable_only": 1}, SettingError, "Learner.trainable_only"),
        ({"allow_plaintext": "yes"}, SettingError, "Learner.allow_plaintext"),
        ({"leave_on_sigterm": None}, SettingError, "Learner.leave_on_sigterm"),
    ],
)
def test_impossible_settings(toy: Make, how: dict[str, object], error: type[GruppettoError], says: str) -> None:
    url: Any = how.get("url", "http://127.0.0.1:9")
    how = {key: value for key, value in how.items() if key != "url"}
    with pytest.raises(error, match=says):
        Attached(url, toy(), **how)


def test_a_model_that_is_none() -> None:
    with pytest.raises(SettingError, match="model is a dict"):
        gruppetto.Learner({}, None, hook=False, syncer="localhost")  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers(toy: Make) -> None:
    given = {"tokens_per_step": np.int64(8), "max_run_ahead": np.int32(3), "stall_s": np.float64(5)}
    learner = Attached("localhost", toy(), **given).learner
    assert (learner._counts._tokens_per_step, learner._run_ahead._most, learner._client._http.stall_s) == (8, 3, 5.0)


def test_no_optimizer_without_saying_so(toy: Make) -> None:
    with pytest.raises(SettingError, match="hook=False"):
        gruppetto.Learner(toy(), None, syncer="localhost")


@pytest.mark.parametrize("given", ["adam", {"a": 1}, 3, [3], object(), (one for one in ())])
def test_an_optimizer_that_is_none(toy: Make, given: Any) -> None:
    with pytest.raises(SettingError, match=r"^Learner\.optimizer: .* no optimizer; pass the torch optimizer"):
        gruppetto.Learner(toy(), given, syncer="localhost")


def test_a_scheduler_is_no_optimizer(toy: Make) -> None:
    model = toy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    # It keeps its optimizer under the name that wrappers use, and that one it is then.
    learner = gruppetto.Learner(model, scheduler, syncer="localhost")  # type: ignore[arg-type]
    assert learner._optimizer is optimizer


def test_a_model_without_anything_to_train() -> None:
    model = nn.Linear(1, 1)
    optimizer = adamw(model)
    model.requires_grad_(False)
    with pytest.raises(LayoutError):
        gruppetto.Learner(model, optimizer, syncer="localhost")


def test_a_model_of_shapes_without_elements() -> None:
    model = nn.ParameterList([torch.empty(0, 3), torch.empty(2, 0)])
    with pytest.raises(LayoutError, match="model: its trainable parameters have no elements; give them a shape"):
        gruppetto.Learner(model, adamw(model), syncer="localhost")


# ── the package ──────────────────────────────────────────────────────────────────────────────────────────────────


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_package_loads_torch_only_when_a_learner_is_asked_for() -> None:
    code = "import sys, gruppetto; print('torch' in sys.modules, dir(gruppetto))"
    assert python(code).strip() == "False ['Checkpoints', 'GruppettoError', 'Learner', '__version__', 'data']"


def test_without_torch_the_fix_is_named() -> None:
    code = "import sys; sys.modules['torch'] = None\n"
    code += "try:\n    from gruppetto import Learner\nexcept ImportError as e: print(e)"
    assert "pip install 'gruppetto[torch]'" in python(code)
