"""Images as windows: read as they were written, and drawn the same everywhere."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from gruppetto.errors import DataError
from gruppetto.experiments.images import SIDE, find_fashion, read_fashion, shapes


def write_idx(path: Path, values: np.ndarray) -> None:
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    path.write_bytes(gzip.compress(bytes((0, 0, 8, values.ndim)) + sizes + values.tobytes()))


@pytest.fixture
def fetched(tmp_path: Path) -> Path:
    place = tmp_path / "fashion-mnist" / "usr" / "share" / "datasets" / "fashion-mnist"
    place.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, count in (("train", 6), ("t10k", 3)):
        write_idx(place / f"{part}-images-idx3-ubyte.gz", rng.integers(0, 256, (count, SIDE, SIDE), np.uint8))
        write_idx(place / f"{part}-labels-idx1-ubyte.gz", rng.integers(0, 10, count, np.uint8))
    return tmp_path


def test_a_window_is_an_image_and_its_label(fetched: Path) -> None:
    train, held_out = read_fashion(fetched)
    assert train.shape == (6, SIDE * SIDE + 1) and held_out.shape == (3, SIDE * SIDE + 1)
    rng = np.random.default_rng(0)
    assert np.array_equal(train[:, :-1].reshape(6, SIDE, SIDE), rng.integers(0, 256, (6, SIDE, SIDE), np.uint8))
    assert np.array_equal(train[:, -1], rng.integers(0, 10, 6, np.uint8))


def test_what_is_missing_or_broken_is_said(fetched: Path, tmp_path: Path) -> None:
    place = find_fashion(fetched)
    assert place is not None
    (place / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x09abc"))
    with pytest.raises(DataError, match="no IDX file"):
        read_fashion(fetched)
    if find_fashion(tmp_path / "elsewhere") is None:
        with pytest.raises(DataError, match="apt-get download dataset-fashion-mnist"):
            read_fashion(tmp_path / "elsewhere")


def test_shapes_are_the_same_from_the_same_seed_and_of_all_kinds() -> None:
    drawn, again = (shapes(200, np.random.default_rng(5)) for _ in range(2))
    assert np.array_equal(drawn, again)
    assert set(drawn[:, -1]) == set(range(10))
    assert drawn.shape == (200, SIDE * SIDE + 1)


DAMAGED = {
    "empty": b"",
    "nothing packed": gzip.compress(b""),
    "no sizes": gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12),
    "small images": gzip.compress(
        b"\0\0\x08\x03" + (6).to_bytes(4) + (9).to_bytes(4) + (9).to_bytes(4) + bytes(6 * 81)
    ),
    "no images": gzip.compress(b"\0\0\x08\x03" + bytes(4) + (28).to_bytes(4) + (28).to_bytes(4)),
    "not packed": gzip.compress(bytes(1000))[:10] + b"\xff" * 40,
    "a page": b"<html>not found</html>",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_images_are_said(content: bytes, fetched: Path) -> None:
    place = find_fashion(fetched)
    assert place is not None
    (place / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(DataError, match="fetch it again"):
        read_fashion(fetched)


def test_a_label_of_no_class_is_said(fetched: Path) -> None:
    place = find_fashion(fetched)
    assert place is not None
    write_idx(place / "t10k-labels-idx1-ubyte.gz", np.array([1, 2, 10], np.uint8))
    with pytest.raises(DataError, match="10 classes"):
        read_fashion(fetched)
