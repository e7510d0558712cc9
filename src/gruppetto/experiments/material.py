"""What experiments train on: corpora as the trainer knows them, and material that is nobody's corpus.

Everything is on the machine already, or drawn from a fixed seed; only Fashion-MNIST has to be fetched.
"""

from __future__ import annotations

import pydoc_data.topics
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import DataError
from gruppetto.experiments.captions import captioned
from gruppetto.experiments.images import read_fashion, shapes
from gruppetto.train.corpus import Manifest
from gruppetto.train.data import Data, open_data
from gruppetto.train.setting import TrainSetting
from gruppetto.train.tokens import ByteTokenizer, TokenArray

__all__ = ["DOMAINS", "MATERIAL", "Material", "divided", "open_material"]

BLOCK_BYTES = 4096
HELD_OUT_EVERY = 16
"""One block of so many is never trained on."""
DOMAIN_BYTES = 450_000
"""Of each domain, so that they are equal; the smallest, documentation, has a little more."""
NUM_SHAPES = (4000, 1000)
"""To train on, and held out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """``parts``: held-out tokens by domain, where there are domains."""

    data: Data
    parts: Mapping[str, TokenArray] = field(default_factory=dict)


def open_material(name: str, setting: TrainSetting, cache: Path) -> Material:
    """A row of :data:`MATERIAL`, or the corpus of the setting. Raises :class:`DataError`."""
    cache.mkdir(parents=True, exist_ok=True)
    return _made(name, cache) if name in MATERIAL else Material(data=open_data(setting, cache))


@lru_cache(maxsize=4)
def _made(name: str, cache: Path) -> Material:
    """Made once in a process: rides follow each other on the same material, and none changes it."""
    return MATERIAL[name](cache)


# ── text in three domains ────────────────────────────────────────────────────────────────────────────────────────


def _python_code() -> Iterable[bytes]:
    root = Path(sysconfig.get_path("stdlib"))
    for folder in ("asyncio", "email", "http", "json", "logging", "unittest", "xml", "."):
        for path in sorted((root / folder).glob("*.py")):
            yield path.read_bytes()


def _headers() -> Iterable[bytes]:
    """C++ headers that torch comes with."""
    import torch

    root = Path(torch.__file__).parent / "include"
    for path in sorted((root / "ATen").glob("*.h")) + sorted((root / "c10").rglob("*.h")):
        yield path.read_bytes()


def _documentation() -> Iterable[bytes]:
    """Python's language reference, as ``help()`` prints it."""
    for _, text in sorted(pydoc_data.topics.topics.items()):
        yield text.encode()


DOMAINS: dict[str, Callable[[], Iterable[bytes]]] = {
    "Python": _python_code,
    "C++": _headers,
    "documentation": _documentation,
}


def divided(name: str) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Tokens to train on and held out, in blocks."""
    content = bytearray()
    for document in DOMAINS[name]():
        content += document.replace(b"\0", b"") + b"\0"
        if len(content) >= DOMAIN_BYTES:
            break
    if len(content) < DOMAIN_BYTES:
        raise DataError(f"only {len(content)} bytes of {name} are here", where="domains", fix="install it whole")
    tokens = np.frombuffer(bytes(content[:DOMAIN_BYTES]), np.uint8).astype(np.uint16)
    blocks = [tokens[i : i + BLOCK_BYTES] for i in range(0, len(tokens) - BLOCK_BYTES + 1, BLOCK_BYTES)]
    held = [block for i, block in enumerate(blocks) if i % HELD_OUT_EVERY == HELD_OUT_EVERY // 2]
    kept = [block for i, block in enumerate(blocks) if i % HELD_OUT_EVERY != HELD_OUT_EVERY // 2]
    return np.concatenate(kept), np.concatenate(held)


def _text(names: Iterable[str], *, apart: bool = False) -> Material:
    found = {name: divided(name) for name in names}
    train = [kept for kept, _ in found.values()]
    data = _data("+".join(found), np.concatenate(train), np.concatenate([held for _, held in found.values()]))
    if apart:
        data = replace(data, domains=tuple(train))
    return Material(data=data, parts={name: held for name, (_, held) in found.items()})


# ── images ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _images(name: str, train: NDArray[np.uint8], held_out: NDArray[np.uint8]) -> Material:
    return Material(data=_data(name, *(windows.reshape(-1).astype(np.uint16) for windows in (train, held_out))))


def _shapes(cache: Path) -> Material:
    rng = np.random.default_rng(28)
    return _images("shapes", *(shapes(count, rng) for count in NUM_SHAPES))


def _captions(cache: Path) -> Material:
    rng = np.random.default_rng(29)
    return _images("captions", *(captioned(count, rng) for count in NUM_SHAPES))


MATERIAL: dict[str, Callable[[Path], Material]] = {
    "domains, alike": lambda cache: _text(DOMAINS),
    "domains, apart": lambda cache: _text(DOMAINS, apart=True),
    "documentation": lambda cache: _text(["documentation"]),
    "fashion": lambda cache: _images("fashion", *read_fashion(cache)),
    "shapes": _shapes,
    "captions": _captions,
}
"""``alike``: every learner has its share of all domains; ``apart``: every learner has one domain."""


def _data(source: str, train: NDArray[np.uint16], held_out: NDArray[np.uint16]) -> Data:
    manifest = Manifest(
        source=source,
        train_documents=1,
        train_bytes=len(train),
        held_out_documents=1,
        held_out_bytes=len(held_out),
        sha256=sha256(train.tobytes() + held_out.tobytes()).hexdigest(),
    )
    return Data(tokenizer=ByteTokenizer(), train=train, held_out=held_out, manifest=manifest)
