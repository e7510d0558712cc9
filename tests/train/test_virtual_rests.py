"""What a coarse uplink leaves unsaid, in virtual training."""

from __future__ import annotations

import numpy as np
import torch

from gruppetto.protocol.actions import Apply, KeepRest
from gruppetto.protocol.messages import Answer, ApplyMode
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.units import Epoch, Fragment, Incarnation, LearnerId, Round, Version
from gruppetto.train.data import Data
from gruppetto.train.setting import TrainSetting
from gruppetto.train.virtual import VirtualSetting, train_virtually
from gruppetto.train.virtual_learner import LearnerTensors, Recipe

P = Fragment(0)


def holding(tensors: LearnerTensors) -> dict[str, torch.Tensor]:
    """The vectors of the library, by name."""
    return {name: v for name, v in tensors._holdings.vectors().items() if name.startswith(("rest", "left"))}


def test_a_learner_says_its_rest_once_and_a_new_process_has_none(setting: TrainSetting, data: Data) -> None:
    recipe = Recipe(
        setting=setting,
        vocab_size=data.tokenizer.vocab_size,
        fragments_asked=1,
        fragmenter="balanced",
        merge=(),
        apply=ApplyMode.OVERWRITE,
        uplink="int4",
        downlink="fp32",
        feedback=True,
        rewarm_steps=0,
    )
    tensors = LearnerTensors(recipe)
    (theta,) = tensors.seed()
    value = theta.view(np.float32)

    def answer(round: int, factor: float = 1.0) -> np.ndarray:
        """A contribution of one step, all of it said as float32."""
        tensors.apply(Apply(fragment=P, version=Version(round - 1), mode=ApplyMode.OVERWRITE, blend_alpha=0.0), value)
        tensors.start(np.arange(2 * setting.model.context).reshape(2, -1) % recipe.vocab_size)
        tensors.train(0.01)
        tensors.snapshot([P])
        said = Answer(
            learner=LearnerId("a"),
            incarnation=Incarnation(1),
            epoch=Epoch(1),
            round=Round(round),
            fragment=P,
            base_version=Version(round - 1),
            steps=1,
            tokens=64,
            total_tokens=64 * round,
            cursor=round,
            layout_hash="",
        )
        return tensors._uplink.decode(tensors.contribution(said, factor)(), value.size)

    def meant() -> np.ndarray:
        return value - tensors._holdings.seed_part(P).values

    first = answer(1)
    assert set(holding(tensors)) == {"left.0.1.64"}
    tensors.keep_rest(KeepRest(fragment=P, round=Round(1), tokens=64))
    rest = holding(tensors)["rest.0"].numpy()
    assert rest.any()
    np.testing.assert_allclose(first + rest, meant(), atol=1e-7)

    tripled = answer(2, factor=3.0)  # a bent one leaves what is left of the bent one
    left = holding(tensors)["left.0.2.64"].numpy()
    np.testing.assert_allclose(tripled + left, 3 * meant() + rest, atol=1e-6)
    assert (holding(tensors)["rest.0"].numpy() == rest).all(), "it has not counted"

    said, octets = tensors.take_apart(vectors=False)
    tensors.begin()
    assert not holding(tensors), "a new process owes nothing"
    tensors.put_together(said, octets)
    assert set(holding(tensors)) == {"rest.0"} and (holding(tensors)["rest.0"].numpy() == rest).all()
    tensors.drop_rests()
    assert not holding(tensors)


def test_without_feedback_other_weights_come_of_it(setting: TrainSetting, data: Data) -> None:
    protocol = ProtocolSetting(num_learners=2, num_slots=4, num_fragments=3, sync_period=3, rounds=9)
    said, unsaid = (
        train_virtually(setting, data, protocol, VirtualSetting(uplink="fp4-e3m0", feedback=feedback)).loss
        for feedback in (True, False)
    )
    assert said != unsaid
