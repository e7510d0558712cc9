"""A scorer of multiple choice against logits written by hand, and questions that have one right answer."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gruppetto.errors import DataError
from gruppetto.experiments.riddles import CHOICES, KINDS, riddles
from gruppetto.experiments.scoring import Question, judge, log_likelihoods, read_rendered, score
from gruppetto.train.llama import CausalOutput
from gruppetto.train.model import build
from gruppetto.train.setting import PRESETS
from gruppetto.train.tokens import ByteTokenizer


class ByHand(nn.Module):
    """After byte a comes byte b with weight table[a, b], whatever was before."""

    def __init__(self, table: dict[str, dict[str, float]]) -> None:
        super().__init__()
        weights = torch.full((256, 256), 1.0)
        for before, after in table.items():
            for byte, weight in after.items():
                weights[ord(before), ord(byte)] = weight
        self.logits = nn.Parameter(weights.log())

    def forward(self, input_ids: Tensor) -> CausalOutput:
        return CausalOutput(loss=None, logits=self.logits[input_ids])


def encode(text: str) -> list[int]:
    return ByteTokenizer().encode(text)


def test_sums_of_hand_made_logits() -> None:
    model = ByHand({"a": {"b": 745.0}, "b": {"c": 1793.0}})  # p(b | a) = 745/1000, p(c | b) = 1793/2048
    model.train()
    questions = [
        Question(context="a", choices=("b", "bc", "x"), right=1),
        Question(context="zzzzzzzz a", choices=("b",), right=0),
        Question(context="", choices=("abc",), right=0),
    ]
    found = log_likelihoods(model, encode, questions, context=8)
    b, c, any_of_a = math.log(745 / 1000), math.log(1793 / 2048), math.log(1 / 1000)
    assert found[0] == pytest.approx([b, b + c, any_of_a], rel=1e-5)
    assert found[1] == pytest.approx([b], rel=1e-5)  # only the last eight tokens are seen
    assert found[2] == pytest.approx([b + c], rel=1e-5)  # nothing comes before the first token of all
    assert model.training


def test_plain_and_by_length_differ_where_they_should() -> None:
    long = Question(context="q", choices=(" ab", " abcdefgh"), right=1)
    assert judge(long, [-3.0, -4.0]).plain == 0
    assert judge(long, [-3.0, -4.0]).by_length == 1  # −1.5 against −0.5 a character, without the space
    tie = judge(long, [-2.0, -2.0])
    assert (tie.plain, tie.by_length) == (0, 1)
    model = ByHand({"q": {" ": 1e6}, " ": {"a": 1e6}, "a": {"b": 1e6}})
    found = score(model, encode, [long, Question(context="q", choices=(" ab", " cd"), right=0)], context=32)
    assert (found.questions, found.plain, found.by_length) == (2, 0.5, 0.5)


def test_padding_and_company_change_nothing() -> None:
    model = build(PRESETS["tiny"], 256).requires_grad_(False)
    questions = [Question(context="x" * n, choices=(" yes", " certainly not"), right=0) for n in range(1, 40, 3)]
    together = log_likelihoods(model, encode, questions, context=64)
    for question, found in zip(questions, together, strict=True):
        alone = log_likelihoods(model, encode, [question], context=64)[0]
        assert found == pytest.approx(alone, rel=1e-4)
        ids = torch.tensor([encode(question.context + " yes")])
        said = model(ids).logits.log_softmax(-1)[0, -5:-1]
        assert found[0] == pytest.approx(float(said[range(4), ids[0, -4:]].sum()), rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_riddles_have_one_right_answer_that_the_text_gives(kind: str) -> None:
    words = ["rider", "climber", "sprinter", "bottle", "follows", "mountain"]
    lines = [f"    {words[i % 6]} = {words[i * 5 % 7 % 6]} + call({i * 37 % 101})" for i in range(180)]
    documents = ["\n".join(lines[d * 60 : d * 60 + 60]) for d in range(3)]
    tokens = np.frombuffer("".join(f"{text}\0" for text in documents).encode(), np.uint8).astype(np.uint16)
    found = riddles(tokens, ByteTokenizer(), kind, 50, seed=3)
    assert found == riddles(tokens, ByteTokenizer(), kind, 50, seed=3)
    assert {question.right for question in found} == set(range(CHOICES))
    for question in found:
        assert len(set(question.choices)) == CHOICES
        follows = [any(question.context + choice in text for text in documents) for choice in question.choices]
        assert follows.index(True) == question.right and sum(follows) == 1
        right = question.choices[question.right]
        for choice in question.choices:
            assert kind == "elsewhere" or sorted(choice) == sorted(right)
            assert kind != "order" or sorted(choice.split()) == sorted(right.split())
            assert kind != "elsewhere" or choice in lines


def test_rendered_requests_are_read(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl.gz"
    rows = [
        {"doc_id": d + extra, "label": d % 2, "request": {"context": f"c{d}" if not extra else "", "continuation": w}}
        for extra in (0, 1_000_000)
        for d in range(5)
        for w in (" yes", " no")
    ]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    assert read_rendered(path)[3] == Question(context="c3", choices=(" yes", " no"), right=1)
    assert [question.context for question in read_rendered(path, most=2)] == ["c0", "c2"]
    path.write_bytes(gzip.compress(b"{}\n"))
    with pytest.raises(DataError, match="unpack"):
        read_rendered(path)
