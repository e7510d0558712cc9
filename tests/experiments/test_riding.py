"""Every dial of a ride does something, the same ride comes to the same, and what is looked at is what it is called."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppetto.experiments.coarse import COARSE
from gruppetto.experiments.directions import Directions
from gruppetto.experiments.guests import visits
from gruppetto.experiments.material import DOMAINS, open_material
from gruppetto.experiments.processes import settings_of
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.riding import ride
from gruppetto.experiments.settings import training_of
from gruppetto.experiments.store import Result
from gruppetto.train.batches import Batches
from gruppetto.train.corpus import open_corpus


@pytest.fixture(scope="module")
def plain(short: Ride, cache: Path) -> Result:
    return ride(short, cache)


def test_the_same_ride_comes_to_the_same(short: Ride, cache: Path, plain: Result) -> None:
    assert ride(short, cache) == plain
    assert plain["tokens"] == plain["curve"][-1][1] and plain["loss"] == plain["curve"][-1][2]


def test_another_corpus_is_said_and_taken_everywhere(short: Ride, cache: Path, plain: Result) -> None:
    assert plain["corpus"] == open_corpus(short.data).manifest.sha256
    for data in ("python-stdlib", "documentation"):  # which are others in every Python
        told = ride(short.but(system="lockstep", data=data, rounds=1), cache)["corpus"]
        assert told == open_material(data, training_of(short.but(data=data)), cache).data.manifest.sha256
    assert settings_of(short)["data.corpus"] == short.data and "data.corpus" not in settings_of(Ride())


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"batch": 2},
        {"batches": (4, 2)},
        {"inner_rate": 1e-3},
        {"merge": "median"},
        {"outer": (1.0, 0.0)},
        {"outer_shares": (0.5, 1.5)},
        {"uplink": "int4"},
        {"uplink": "sign"},
        {"apply": "carry"},
        {"step_s": (1.0, 2.0)},
        {"fragmenter": "layer"},
        {"weighting": "equal", "step_s": (1.0, 2.0)},
        {"weighting": "tokens", "batches": (4, 2)},
        {"kills_per_hour": 3000.0},
        {"guests": 1, "guests_share": 0.5, "guests_of_rounds": 8},
        {"system": "lockstep"},
        {"system": "diloco"},
    ],
    ids=str,
)
def test_every_dial_does_something(short: Ride, cache: Path, plain: Result, change: dict[str, object]) -> None:
    assert ride(short.but(**change), cache)["loss"] != plain["loss"]


def test_the_mean_of_the_last_values_is_another_model(short: Ride, cache: Path) -> None:
    often = short.but(sync_period=2, fragments=2, overlap_steps=1)
    assert ride(often.but(outer_average=0.5), cache)["loss"] != ride(often, cache)["loss"]


def test_weighings_differ_where_learners_do(short: Ride, cache: Path) -> None:
    unequal = short.but(step_s=(1.0, 2.0), batches=(4, 2))
    losses = {ride(unequal.but(weighting=weighting), cache)["loss"] for weighting in ("", "tokens", "equal")}
    assert len(losses) == 3


def test_books_and_directions_are_there_when_asked_for(short: Ride, cache: Path, plain: Result) -> None:
    found = ride(short.but(books=True, directions=True), cache)
    assert found["loss"] == plain["loss"]  # looking changes nothing
    assert 0.9 < found["goodput"] <= 1.0 and found["books"]["consumed"] == found["tokens"]
    # Two learners, not weighed alike in every round.
    assert 0.0 < found["cosine"] < 1.0
    assert math.sqrt(1 / 2) <= found["mean_norm_if_orthogonal"] < found["mean_norm"] < 1.0


def test_a_model_is_tuned_on_other_material(short: Ride, cache: Path, plain: Result) -> None:
    found = ride(short.but(tuned_on="documentation", tuned_steps=10), cache)
    assert found["loss"] == plain["loss"] and found["after tuning"] < found["before tuning"]


def test_domains_are_dealt_apart(cache: Path) -> None:
    asked = Ride(data="domains, apart", batch=2)
    setting = training_of(asked)
    data = open_material(asked.data, setting, cache).data
    assert len(data.domains) == len(DOMAINS) and len({len(domain) for domain in data.domains}) == 1
    for slot in range(6):
        windows, _ = next(Batches.of(data, setting, slot=slot))
        domain = data.domains[slot % 3].astype(np.int64)
        for window in windows.numpy():
            starts = np.flatnonzero(domain[:: setting.context] == window[0]) * setting.context
            assert any(np.array_equal(domain[s : s + setting.context], window) for s in starts)
    together = np.concatenate(data.domains)
    assert np.array_equal(together, data.train)


def test_nothing_held_out_is_trained_on(cache: Path) -> None:
    data = open_material("domains, alike", training_of(Ride()), cache).data
    blocks = {bytes(block) for block in np.split(data.train, len(data.train) // 4096)}
    assert not blocks & {bytes(block) for block in np.split(data.held_out, len(data.held_out) // 4096)}


@pytest.mark.parametrize("guests", [1, 4])
def test_guests_are_there_for_their_share_of_the_time(guests: int) -> None:
    asked = Ride(guests=guests, guests_share=0.25, guests_of_rounds=400)
    there = visits(asked)
    assert len({guest.name for guest in there}) == 3 * guests
    stays_s = sum(guest.leaves_s - guest.joins_s for guest in there if guest.leaves_s is not None)
    assert stays_s == pytest.approx(guests * 0.25 * 400)
    ends_s = 400 * (1 - 0.25 * guests / 4)
    assert all(0 < guest.joins_s < guest.leaves_s < ends_s for guest in there if guest.leaves_s is not None)


@settings(max_examples=25, deadline=None)
@given(m=st.integers(2, 6), seed=st.integers(0, 99))
def test_directions_against_every_pair(m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    deltas = [rng.normal(size=50).astype(np.float32) * rng.uniform(0.1, 9) for _ in range(m)]
    weights = rng.uniform(0.1, 3, m).tolist()
    seen = Directions()
    seen.take(deltas, weights)
    found = seen.found()
    pairs = [(a, b) for i, a in enumerate(deltas) for b in deltas[i + 1 :]]
    cosines = [float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in pairs]
    mean = sum(w * d.astype(np.float64) for w, d in zip(weights, deltas, strict=True)) / sum(weights)
    usual = sum(w * float(np.linalg.norm(d)) for w, d in zip(weights, deltas, strict=True)) / sum(weights)
    assert found["cosine"] == pytest.approx(np.mean(cosines), abs=1e-5)
    assert found["mean_norm"] == pytest.approx(np.linalg.norm(mean) / usual, rel=1e-4)


def test_experts_and_images_are_looked_at(cache: Path) -> None:
    few = {"learners": 2, "rounds": 4, "sync_period": 2, "fragments": 2, "overlap_steps": 1, "eval_windows": 64}
    images = ride(Ride(model="vit", data="shapes", batch=8).but(**few), cache)
    assert 0.05 < images["accuracy"] < 1.0 and 1.0 < images["loss"] < 3.0
    experts = ride(Ride(model="moe").but(**few), cache)
    assert 1.0 <= experts["balance"] < 4.0
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("uplink", COARSE)
def test_what_a_coarse_encoding_leaves_unsaid_is_said_later(short: Ride, cache: Path, uplink: str) -> None:
    plain, said, lost = (
        ride(short.but(uplink=name, feedback=feedback), cache)["loss"]
        for name, feedback in (("fp32", True), (uplink, True), (uplink, False))
    )
    assert len({plain, said, lost}) == 3 and max(said, lost) < 1.5 * plain
