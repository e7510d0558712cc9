"""A model that others have pre-trained is tuned by decoupled learners and by data parallel, whole or by adapters."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from gruppetto.errors import DataError
from gruppetto.experiments.experiment import Scale
from gruppetto.experiments.posttraining import POSTTRAINING
from gruppetto.experiments.pretrained import PRETRAINED, find_pretrained, maker, open_text
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.riding import ride
from gruppetto.train.export import export
from gruppetto.train.model import build
from gruppetto.train.setting import ModelSetting
from gruppetto.train.tokens import ByteTokenizer

SMALL = ModelSetting(dim=32, layers=1, heads=2, ffn_dim=48, context=64)
FEW = {"rounds": 8, "batch": 1, "eval_windows": 8, "sync_period": 2, "fragments": 2}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pretrained")
    export(build(SMALL, 256), SMALL, ByteTokenizer(), place / PRETRAINED)
    return place


def tuned(cache: Path) -> dict[str, Ride]:
    arms = POSTTRAINING.arms(Scale(quick=True, cache=cache))
    return {arm.name: arm.ride.but(**FEW) for arm in arms if arm.ride.model == PRETRAINED}


def test_all_four_learn_from_the_same_beginning(cache: Path) -> None:
    found = {name: ride(asked, cache) for name, asked in tuned(cache).items()}
    assert len(found) == 4
    before = {result["before tuning"] for result in found.values()}
    assert len(before) == 1 and abs(before.pop() - math.log(256)) < 0.5
    assert len({result["after tuning"] for result in found.values()}) == 4
    assert all(result["after tuning"] < result["before tuning"] for result in found.values())
    assert {result["tokens"] for name, result in found.items() if "parallel" in name} == {8 * 2 * 64}


def test_adapters_alone_are_trained_and_begin_alike(cache: Path) -> None:
    asked = next(one for one in tuned(cache).values() if one.lora)

    def made(seed: int) -> nn.Module:
        return maker(asked, cache)(ModelSetting(seed=seed), 256)

    state = torch.get_rng_state()
    one, again, other = made(1), made(1), made(2)
    assert torch.equal(torch.get_rng_state(), state)
    named = dict(one.named_parameters())
    trained = {name for name, p in named.items() if p.requires_grad}
    assert trained == {name for name in named if "lora_" in name} and len(trained) == 2 * 7
    assert all(torch.equal(p, named[name]) for name, p in again.named_parameters())
    assert not all(torch.equal(p, named[name]) for name, p in other.named_parameters())


def test_text_is_in_the_tokens_of_the_model(cache: Path) -> None:
    data = open_text("documentation", cache)
    assert data.tokenizer.vocab_size == 256 and len(data.held_out) > 20_000
    assert "statement" in data.tokenizer.decode(data.held_out[:4000].tolist())


def test_without_it_nothing_is_asked_and_a_ride_says_what_is_missing(tmp_path: Path) -> None:
    assert find_pretrained(tmp_path) is None
    assert not [arm for arm in POSTTRAINING.arms(Scale(cache=tmp_path)) if arm.ride.model == PRETRAINED]
    with pytest.raises(DataError, match="not there"):
        maker(Ride(model=PRETRAINED), tmp_path)


@pytest.mark.parametrize("damaged", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_damaged_model_is_said(damaged: str, cache: Path, tmp_path: Path) -> None:
    shutil.copytree(cache / PRETRAINED, tmp_path / PRETRAINED)
    (tmp_path / PRETRAINED / damaged).write_bytes(b"{")
    with pytest.raises(DataError, match="cannot be loaded"):
        ride(next(iter(tuned(cache).values())), tmp_path)
