"""Learners that weigh little, one at each of several hosts, in one process: what they do costs hardly more than sleep.

    python -m gruppetto.chaos.hosts.light SETTING.json

Each is a whole :class:`gruppetto.Learner` around a model of one matrix, on a thread that has entered its namespace. A
step is a pause of ``step_s`` and one of a small optimizer; what is beyond the pause is what the step costs. One line of
``steps.jsonl`` for each step: who, when it ended (seconds of a clock that all processes of the machine share), how long
it took; and one of its metrics at the end. Lines on standard input are orders: ``end``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gruppetto.chaos.hosts.hosts import enter
from gruppetto.runtime.clock import MonotonicClock, wall_time_s

__all__ = ["Light", "main"]

BLOCKS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Light:
    """One learner. ``syncer``: as it finds it. ``papers``: keyword arguments of :class:`gruppetto.Learner`."""

    name: str
    namespace: str
    syncer: str
    step_s: float
    papers: dict[str, Any]


def main(arguments: list[str]) -> None:
    setting = json.loads(Path(arguments[0]).read_bytes())
    steps = os.open(setting["steps"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    over, width = threading.Event(), int(setting["width"])
    riders = [
        threading.Thread(target=_at_its_host, args=(Light(**each), width, steps, over), name=each["name"])
        for each in setting["learners"]
    ]
    for rider in riders:
        rider.start()
    for order in sys.stdin:
        if order.strip() == "end":
            break
    over.set()
    for rider in riders:
        rider.join()


def _at_its_host(light: Light, width: int, steps: int, over: threading.Event) -> None:
    with enter(light.namespace):
        _ride(light, width, steps, over)


def _ride(light: Light, width: int, steps: int, over: threading.Event) -> None:
    """``width``² · 24 parameters in 24 tensors."""
    # By name: whoever only makes hosts and looks at runs needs no torch.
    torch, gruppetto = map(importlib.import_module, ("torch", "gruppetto"))
    torch.set_num_threads(1)
    chance = torch.Generator().manual_seed(sum(light.name.encode()))
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(width, width)) for _ in range(BLOCKS)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.randn(width, width, generator=chance)
    learner = gruppetto.Learner(
        model,
        optimizer,
        syncer=light.syncer,
        name=light.name,
        tokens_per_step=100,
        quiet=True,
        donate=None,
        recover=False,
        **light.papers,
    )
    with learner:
        clock = MonotonicClock()
        began = clock.now()
        while not over.wait(light.step_s):
            optimizer.step()
            ended = clock.now()
            line = {"who": light.name, "at": round(wall_time_s(), 4), "took_s": round(ended - began, 6)}
            os.write(steps, json.dumps(line).encode() + b"\n")
            began = ended
        line = {"who": light.name, "metrics": learner.metrics()}
        os.write(steps, json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
