"""Multiple-choice questions about held-out text that small models of bytes can answer better than by chance.

Which line comes next? The right one stands in the text; three wrong ones are drawn from it, *elsewhere* from all of it
and *nearby* from the same document, where names and habits are the same. Public tasks (ARC, HellaSwag, PIQA) ask for
knowledge that a model of 35 thousand parameters does not have; their place is the check of the scorer itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gruppetto.experiments.scoring import Question
from gruppetto.train.tokens import TokenArray, Tokenizer

__all__ = ["KINDS", "riddles"]

KINDS = ("elsewhere", "nearby")
CHOICES = 4
SHORTEST, LONGEST = 12, 40
"""Characters of a choice, its indentation included."""
BEFORE = 3
"""Lines of context at the least."""
CONTEXT = 200
"""Characters of context at the most; of them the model sees what it can."""


def riddles(tokens: TokenArray, tokenizer: Tokenizer, kind: str, count: int, *, seed: int) -> list[Question]:
    """``count`` questions of a kind of :data:`KINDS` about the documents in ``tokens``, the same for the same seed."""
    assert kind in KINDS
    documents = [lines for lines in _documents(tokens, tokenizer) if len(_fit(lines)) >= 4 * CHOICES]
    assert documents, "no document is long enough to ask about"
    everywhere = sorted({line for lines in documents for line in _fit(lines)})
    rng = np.random.default_rng(seed)
    found: list[Question] = []
    while len(found) < count:
        lines = documents[int(rng.integers(len(documents)))]
        at = int(rng.integers(BEFORE, len(lines)))
        right = lines[at]
        pool = everywhere if kind == "elsewhere" else sorted(set(_fit(lines)))
        wrong = [line for line in rng.permutation(np.array(pool, object))[: CHOICES + 1] if line != right]
        if right not in _fit(lines) or len(wrong) < CHOICES - 1:
            continue
        place = int(rng.integers(CHOICES))
        choices = [*wrong[: CHOICES - 1]]
        choices.insert(place, right)
        context = "\n".join(lines[:at])[-CONTEXT:] + "\n"
        found.append(Question(context=context, choices=tuple(choices), right=place))
    return found


def _documents(tokens: TokenArray, tokenizer: Tokenizer) -> list[list[str]]:
    ends = np.flatnonzero(np.asarray(tokens) == tokenizer.end_of_document)
    parts = np.split(np.asarray(tokens), ends + 1)
    texts = (tokenizer.decode(part[part != tokenizer.end_of_document].tolist()) for part in parts)
    return [[line for line in text.split("\n") if line.strip()] for text in texts]


def _fit(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if SHORTEST <= len(line) <= LONGEST]
