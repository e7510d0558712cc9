from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from gruppetto.attach.hooks import StepHooks, check_free
from gruppetto.errors import SettingError


class Recorder:
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self.heard: list[str] = []
        self.hooks = StepHooks(
            model,
            optimizer,
            forward=lambda training: self.heard.append("train" if training else "evaluate"),
            before=lambda: self.heard.append("before"),
            after=lambda: self.heard.append("after"),
        )


def test_the_moments_of_a_loop() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(model, optimizer)
    for _ in range(2):  # accumulated: one step for two passes
        model(torch.ones(2)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model(torch.ones(2))
    model.eval()
    model(torch.ones(2))
    assert recorder.heard == ["train", "train", "before", "after", "evaluate", "evaluate"]
    recorder.hooks.remove()
    model(torch.ones(2))
    optimizer.step()
    assert len(recorder.heard) == 6, "nothing is left behind"


def test_a_step_that_the_scaler_skips_is_none() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    recorder = Recorder(model, optimizer)
    for scale in (float("inf"), 1.0):
        loss = scaler.scale(model(torch.ones(2)).sum() * scale)
        loss.backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert recorder.heard == ["train", "train", "before", "after"]


def test_without_an_optimizer_only_forward_passes_are_heard() -> None:
    model = nn.Linear(2, 1)
    recorder = Recorder(model, None)
    model(torch.ones(2))
    assert recorder.heard == ["train"]


def test_something_that_is_no_torch_optimizer() -> None:
    with pytest.raises(SettingError, match="object has no step hooks"):
        Recorder(nn.Linear(2, 1), object())  # type: ignore[arg-type]


def test_a_copy_of_an_attached_model_is_nobodys() -> None:
    """As an average of weights keeps one, or a file: what is trained in it is not this learner's."""
    model = nn.Sequential(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(model, optimizer)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for other in (copy.deepcopy(model), saved, averaged):
        assert torch.equal(other(torch.ones(2)), model(torch.ones(2)))
        check_free(other, None)
    assert recorder.heard == ["train"] * 3, "of the model itself"
    copy.deepcopy(optimizer).step()
    assert recorder.heard == ["train"] * 3


def test_two_learners_of_one_model_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    check_free(model, optimizer)
    hooks = Recorder(model, optimizer).hooks
    for again, its in ((model, None), (nn.Sequential(model), None), (model[0], optimizer)):
        with pytest.raises(SettingError, match="another learner is attached"):
            check_free(again, its)
    hooks.remove()
    check_free(model, optimizer)
