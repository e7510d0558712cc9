"""Whether there is anything to look at is seen without looking at every name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gruppetto.attach.watching import Glance
from gruppetto.errors import LayoutError


@pytest.mark.parametrize(
    ("change", "is_seen"),
    [
        (lambda m: setattr(m[0], "weight", nn.Parameter(m[0].weight.detach().clone())), True),
        (lambda m: m.__setitem__(0, nn.Linear(2, 2)), True),
        (lambda m: m.append(nn.Linear(2, 2)), True),
        (lambda m: m.pop(1), True),
        (lambda m: m.half(), True),
        (lambda m: m[1].requires_grad_(False), True),
        (lambda m: setattr(m[0].weight, "data", torch.zeros(3, 2)), True),
        (lambda m: nn.utils.prune.random_unstructured(m[0], "weight", 0.5), True),
        (lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}), False),
        (lambda m: m.eval(), False),
        (lambda m: m(torch.ones(1, 2)).sum().backward(), False),
    ],
)
def test_a_change_is_seen_once(change: Callable[[nn.Sequential], Any], is_seen: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model.register_module("tied", model[0])
    glance, looks = Glance(model), list[str]()
    change(model)
    for _ in range(2):
        glance.look(lambda: looks.append("closely"))
    assert len(looks) == is_seen


def test_what_is_wrong_is_looked_at_again() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    glance = Glance(model)
    model[0] = nn.Linear(2, 2)

    def refuses() -> None:
        raise LayoutError("has been replaced", where="model", fix="write in place")

    for _ in range(2):
        with pytest.raises(LayoutError):
            glance.look(refuses)
