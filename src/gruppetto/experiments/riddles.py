"""Multiple-choice questions about held-out text that small models of bytes can answer better than by chance.

What comes next? The line that stands in the text; and three lines that do not: with the letters of one of its words in
another order (*spelling*), with its words in another order (*order*), or drawn from elsewhere in the text
(*elsewhere*). Only the last have other lengths than the right one, and only they ask for more than the habits of
letters and words: models of 35 thousand parameters answer them hardly better than by chance. So would they public tasks
(ARC, HellaSwag, PIQA), which ask for knowledge; those are for the check of the scorer itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from gruppetto.experiments.scoring import Question
from gruppetto.train.tokens import TokenArray, Tokenizer

__all__ = ["KINDS", "riddles"]

KINDS = ("spelling", "order", "elsewhere")
CHOICES = 4
SHORTEST, LONGEST = 12, 40
"""Characters of a choice, its indentation included."""
CONTEXT = 200
"""Characters of context at the most; of them the model sees what it can."""
TRIES = 20
"""For as many wrong choices as are wanted; a line of which no more are found is not asked about."""
WORD = re.compile(r"[A-Za-z]{4,}")


def riddles(tokens: TokenArray, tokenizer: Tokenizer, kind: str, count: int, *, seed: int) -> list[Question]:
    """``count`` questions of a kind of :data:`KINDS` about the documents in ``tokens``, the same for the same seed."""
    assert kind in KINDS
    documents = [lines for lines in _documents(tokens, tokenizer) if any(map(_fits, lines[1:]))]
    assert documents, "no document is long enough to ask about"
    everywhere = sorted({line for lines in documents for line in lines if _fits(line)})
    rng = np.random.default_rng(seed)
    found: list[Question] = []
    while len(found) < count:
        lines = documents[int(rng.integers(len(documents)))]
        at = int(rng.integers(1, max(2, len(lines))))
        right = lines[at] if at < len(lines) else ""
        wrong: dict[str, None] = {}
        for line in _wrong(right, kind, everywhere, rng) if _fits(right) else ():
            if line != right and len(wrong) < CHOICES - 1:
                wrong[line] = None
        if len(wrong) == CHOICES - 1:
            place = int(rng.integers(CHOICES))
            choices = [*wrong]
            choices.insert(place, right)
            context = "\n".join(lines[:at])[-CONTEXT:] + "\n"
            found.append(Question(context=context, choices=tuple(choices), right=place))
    return found


def _wrong(right: str, kind: str, everywhere: list[str], rng: np.random.Generator) -> Iterator[str]:
    """Candidates for wrong choices; some may be the right one, or alike."""
    words, indent = list(WORD.finditer(right)), right[: len(right) - len(right.lstrip())]
    pieces = right.split()
    for _ in range(TRIES):
        if kind == "elsewhere":
            yield everywhere[int(rng.integers(len(everywhere)))]
        elif kind == "order":
            if indent + " ".join(pieces) != right:
                return  # other lines would be shorter
            yield indent + " ".join(pieces[i] for i in rng.permutation(len(pieces)))
        elif words:
            word = words[int(rng.integers(len(words)))]
            shuffled = "".join(word.group()[i] for i in rng.permutation(len(word.group())))
            yield right[: word.start()] + shuffled + right[word.end() :]


def _documents(tokens: TokenArray, tokenizer: Tokenizer) -> list[list[str]]:
    ends = np.flatnonzero(np.asarray(tokens) == tokenizer.end_of_document)
    parts = np.split(np.asarray(tokens), ends + 1)
    texts = (tokenizer.decode(part[part != tokenizer.end_of_document].tolist()) for part in parts)
    return [[line for line in text.split("\n") if line.strip()] for text in texts]


def _fits(line: str) -> bool:
    return SHORTEST <= len(line) <= LONGEST
