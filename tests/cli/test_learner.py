"""The reference learner as a verb."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import pytest
import torch
from tests.attach.conftest import SyncerThread

import gruppetto
from gruppetto.cli.__main__ import main
from gruppetto.config import load_run
from gruppetto.protocol import ProtocolSetting
from gruppetto.train.data import open_data
from gruppetto.train.model import build

RUN = """
[run]
rounds = 3
num_fragments = 2
sync_period = 2
overlap_steps = 0
[model]
dim = 32
layers = 1
heads = 2
ffn_dim = 48
context = 32
[data]
corpus = "text:{text}"
"""


def test_who_comes_after_the_last_round_has_not_failed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (text := tmp_path / "text.txt").write_text("the rider follows a climber.\n" * 400, encoding="utf-8")
    (file := tmp_path / "RUN.toml").write_text(RUN.format(text=text), encoding="utf-8")
    config = load_run(file)
    model = build(config.train.model, open_data(config.train, tmp_path / "cache").tokenizer.vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    syncer = SyncerThread(
        tmp_path / "state", ProtocolSetting(rounds=3, num_fragments=2, sync_period=2, overlap_steps=0), {}
    )
    syncer.start()
    try:
        arguments = ["learner", str(file), "--syncer", syncer.url, "--cache", str(tmp_path / "cache"), "--name"]
        with gruppetto.Learner(model, optimizer, syncer=syncer.url, name="anna", tokens_per_step=1, quiet=True) as anna:
            for _ in anna.until_finished(itertools.count()):
                optimizer.zero_grad()
                sum(parameter.square().sum() for parameter in model.parameters()).backward()
                optimizer.step()
            with caplog.at_level(logging.INFO, "gruppetto"):
                assert main([*arguments, "ben"]) == 0
            assert "ben: the run has reached its last round, 3; nothing is left to train" in caplog.text
            assert main([*arguments, "ben", "--set", "model.ffn_dim=64"]) == 2, "another model stays a mistake"
    finally:
        syncer.end()
