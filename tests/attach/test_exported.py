"""The global weights that ``gruppetto export`` takes from a syncer: real loopback, a small model."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

import gruppetto
from gruppetto.cli.__main__ import main


def test_a_file_that_the_syncer_gives_is_passed_on_as_it_is(
    syncer: Callable[..., Any], toy: Callable[..., Any], tmp_path: Path
) -> None:
    running, model, out = syncer(rounds=3, num_fragments=3, sync_period=3), toy(), tmp_path / "a.safetensors"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with gruppetto.Learner(model, optimizer, syncer=running.url, tokens_per_step=16, quiet=True):
        assert main(["export", running.url, "--format", "safetensors", "--out", str(out)]) == 0
        with urllib.request.urlopen(f"{running.url}/v1/model") as reply:
            assert out.read_bytes() == reply.read()
    found = safetensors.numpy.load_file(out)
    assert sorted(found) == sorted(name for name, _ in model.named_parameters())
    assert {values.dtype for values in found.values()} == {np.dtype(np.float32)}
