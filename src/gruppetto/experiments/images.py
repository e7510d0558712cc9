"""Images as windows of bytes, each with its label behind it: Fashion-MNIST, and shapes drawn here.

Fashion-MNIST (1708.07747, MIT) is in Debian's package ``dataset-fashion-mnist``; as an archive it needs no rights::

    apt-get download dataset-fashion-mnist
    dpkg-deb -x dataset-fashion-mnist_*.deb .cache/experiments/fashion-mnist
"""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import DataError

__all__ = ["SIDE", "Shape", "draw", "find_fashion", "read_fashion", "shapes"]

SIDE, CLASSES = 28, 10
INSIDE = Path("usr/share/datasets/fashion-mnist")
GET = "apt-get download dataset-fashion-mnist && dpkg-deb -x dataset-fashion-mnist_*.deb {}"

Bytes = NDArray[np.uint8]


def find_fashion(cache: Path) -> Path | None:
    """The folder with the four files: installed, or unpacked below ``cache``; None if it is in neither place."""
    places = (cache / "fashion-mnist" / INSIDE, cache / "fashion-mnist", Path("/") / INSIDE)
    return next((place for place in places if (place / "train-images-idx3-ubyte.gz").exists()), None)


def read_fashion(cache: Path) -> tuple[Bytes, Bytes]:
    """Windows to train on (60,000) and held out (10,000), each uint8 (n, 785). Raises :class:`DataError`."""
    place = find_fashion(cache)
    if place is None:
        raise DataError("Fashion-MNIST is not there", where=str(cache), fix=GET.format(cache / "fashion-mnist"))
    found = []
    for part in ("train", "t10k"):
        pixels = _idx(place / f"{part}-images-idx3-ubyte.gz", dimensions=3)
        labels = _idx(place / f"{part}-labels-idx1-ubyte.gz", dimensions=1)
        if pixels.shape != (len(labels), SIDE, SIDE) or not len(labels) or labels.max() >= CLASSES:
            where = str(place / f"{part}-*.gz")
            raise DataError(f"holds no {SIDE} × {SIDE} images of {CLASSES} classes", where=where, fix="fetch it again")
        found.append(np.concatenate((pixels.reshape(len(labels), -1), labels[:, None]), axis=1))
    return found[0], found[1]


def _idx(path: Path, *, dimensions: int) -> Bytes:
    """The array in a file of the IDX format: magic number, sizes as big-endian 32 bits, bytes."""
    try:
        raw = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot be read ({error})", where=str(path), fix="fetch it again") from error
    header = 4 + 4 * dimensions
    sizes = [int.from_bytes(raw[at : at + 4], "big") for at in range(4, header, 4)]
    if raw[:4] != bytes((0, 0, 8, dimensions)) or len(raw) - header != math.prod(sizes):
        raise DataError("is no IDX file of bytes", where=str(path), fix="fetch it again")
    return np.frombuffer(raw, np.uint8, offset=header).reshape(sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is drawn: which of the ten kinds, around which point, how large, how bright."""

    kind: int
    y: float
    x: float
    size: float
    ink: float


def shapes(count: int, rng: np.random.Generator) -> Bytes:
    """Ten kinds of shape at random places and sizes, in noise: uint8 (count, 785). Synthetic, and easy.

    Bars (upright, flat, both diagonals), a cross, a frame, a disc, a ring, a filled square, and a chessboard.
    """
    windows = np.empty((count, SIDE * SIDE + 1), np.uint8)
    for i in range(count):
        windows[i, :-1], shape = draw(rng)
        windows[i, -1] = shape.kind
    return windows


def draw(rng: np.random.Generator) -> tuple[Bytes, Shape]:
    """One of them: 784 pixels, and what they show."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32)
    kind = int(rng.integers(CLASSES))
    y, x = rng.uniform(9, 19, 2)
    size = rng.uniform(4, 9)
    down, right = rows - y, columns - x
    square, radius = np.maximum(abs(down), abs(right)), np.hypot(down, right)
    drawn = (
        (abs(right) < 1.5) & (square < size),
        (abs(down) < 1.5) & (square < size),
        (abs(down - right) < 2) & (square < size),
        (abs(down + right) < 2) & (square < size),
        (np.minimum(abs(down), abs(right)) < 1.5) & (square < size),
        (abs(square - size) < 1.2),
        radius < size,
        abs(radius - size) < 1.2,
        square < size,
        (square < size) & ((down // 3 + right // 3) % 2 == 0),
    )[kind]
    ink = rng.uniform(90, 255)
    image = drawn * ink + rng.normal(40, 30, drawn.shape)
    pixels = np.clip(image, 0, 255).astype(np.uint8).reshape(-1)
    return pixels, Shape(kind=kind, y=float(y), x=float(x), size=size, ink=ink)
