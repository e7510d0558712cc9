"""An example ends with one line and exit code 2 when a person has to mend something, and not with a traceback."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gruppetto

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def last_words(example: Path, flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> str:
    monkeypatch.setattr(sys, "argv", [str(example), *flags])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(example), run_name="__main__")
    assert ended.value.code == 2
    said = [line for line in capsys.readouterr().err.splitlines() if ": waiting for " not in line]
    assert len(said) == 1, said
    return said[0]


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_ends_so(example: Path) -> None:
    assert "GruppettoError as error:\n        error.exit()" in example.read_text()


def test_a_wrong_token_another_model_and_a_wrong_address(
    syncer: Callable[..., Any], toy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    example = EXAMPLES / "plain_loop.py"
    url, model = syncer(token="sesame").url, toy()
    flags = ["--syncer", url, "--name", "b"]
    assert "token" in last_words(example, [*flags, "--token", "wrong"], monkeypatch, capsys)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gruppetto.Learner(model, optimizer, syncer=url, token="sesame", name="a", tokens_per_step=16, quiet=True):
        said = last_words(example, [*flags, "--token", "sesame"], monkeypatch, capsys)
    assert "refused by the syncer (layout): the learner's model" in said and "tensor 0 is" in said
    assert "is not an address" in last_words(example, ["--syncer", "ftp://x", "--name", "b"], monkeypatch, capsys)
