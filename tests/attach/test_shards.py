"""One learner of a run that two syncers serve: real loopback, a small model."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch

import gruppetto
from gruppetto.errors import SettingError
from gruppetto.launch.ask import fetch_status
from gruppetto.launch.ask_shards import fetch_whole_model
from gruppetto.numerics.deal import Shard
from gruppetto.runtime import announcing, at_its_address

DIALS = {"num_fragments": 4, "sync_period": 4, "overlap_steps": 1, "rounds": 12, "apply": "carry"}


def attach(model, url, **how):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    learner = gruppetto.Learner(model, optimizer, syncer=url, tokens_per_step=16, quiet=True, **how)
    return optimizer, learner


def steps(model, optimizer, learner, most=10_000):
    for index in learner.until_finished(range(most)):
        ids, labels = model.batch(index)
        model(ids, labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_learner_rides_with_two_syncers_leaves_comes_back_when_one_has_finished_and_has_the_last_weights(toy, syncer):
    first = syncer(shard=Shard(of=2), downlink="delta", **DIALS)
    second = syncer(shard=Shard(number=2, of=2), directory=first.url, downlink="delta", **DIALS)
    model = toy()
    optimizer, learner = attach(model, second.url, name="rider")
    with learner:
        steps(model, optimizer, learner, most=6)
        numbers, saved = learner.metrics(), learner.state_dict()
        assert numbers["gruppetto/connected"] == 1.0 and numbers["gruppetto/steps"] == 6
        # The bases of both shards' fragments: every parameter has one.
        assert all(saved[f"base.{name}"].abs().sum() > 0 for name in ("wte", "matrix", "gain"))
        learner.leave()
        steps(model, optimizer, learner)
    assert learner.left and not learner.finished
    for one, shard in zip(learner._hands.everybody, (first, second), strict=True):
        assert fetch_status(shard.url)["learners"]["rider"]["state"] == "left"
        # Of two fragments one may be on its way up when notice comes, and the other one down: then none is given ahead.
        left = {p for p in range(len(one.core.fragments)) if one.core.c_steps(p) and p not in one.core._sent}
        assert not left, "each shard was given all work of its own fragments"
    assert any(one.client.given for one in learner._hands.everybody)

    model = toy(1)
    optimizer, learner = attach(model, first.url, name="rider", max_bytes_per_s=1e7)
    learner.load_state_dict(saved)
    with learner:
        paces = [one.client.pace for one in learner._hands.everybody]
        assert len(paces) == 2 and paces[0] is paces[1] is not None, "one link, one rate"
        assert learner.place.cursor >= 6, "the first shard leases the slot, and knows its cursor"
        second.stop()
        while fetch_status(first.url)["phase"] != "finished":
            steps(model, optimizer, learner, most=1)
        assert not learner.finished, "the other shard is behind"
    second.start()

    model = toy(2)
    optimizer, learner = attach(model, first.url, name="rider")
    with learner:
        assert fetch_status(second.url)["round"] < 12 == fetch_status(first.url)["round"]
        steps(model, optimizer, learner)
    assert learner.finished and learner.round == 12
    whole = fetch_whole_model(first.url)
    assert whole is not None and whole.round == 12
    for name, values in safetensors.torch.load(whole.content).items():
        assert torch.equal(values, dict(model.named_parameters())[name]), name


def test_a_learner_of_several_ranks_is_refused_by_name(toy, syncer):
    first = syncer(shard=Shard(of=2), **DIALS)
    syncer(shard=Shard(number=2, of=2), directory=first.url, **DIALS)
    _, learner = attach(toy(), first.url, name="many")
    learner._client._leads = True  # what its ranks would make of it
    with pytest.raises(SettingError, match=r"is served by 2 shards, and this learner has several ranks; serve the"):
        learner.__enter__()


def test_syncers_that_end_with_the_run_end_when_all_have_heard_that_it_is_over(toy, syncer, monkeypatch):
    """Whoever hears last of the others' end hears it from the first, which stays for that long."""
    monkeypatch.setattr(announcing, "ANNOUNCE_S", 0.02)
    monkeypatch.setattr(at_its_address, "FRESH_S", 5.0)
    first = syncer(shard=Shard(of=2), exit_when_finished=True, **DIALS | {"rounds": 3})
    second = syncer(shard=Shard(number=2, of=2), directory=first.url, exit_when_finished=True, **DIALS | {"rounds": 3})
    model = toy()
    optimizer, learner = attach(model, second.url, name="rider")
    with learner:
        steps(model, optimizer, learner)
    for each in (second, first):
        each._thread.join(60.0)
        assert not each._thread.is_alive() and each.failure is None
