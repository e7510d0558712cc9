"""Text is found, cut in two without overlap, and refused with a reason when it is none."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from gruppetto.errors import DataError
from gruppetto.train.corpus import Corpus, open_corpus


def contents(corpus: Corpus) -> tuple[bytes, bytes]:
    return b"".join(d.read() for d in corpus.train), b"".join(d.read() for d in corpus.held_out)


def folder(root: Path, files: dict[str, bytes]) -> str:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return f"text:{root}"


def many(tmp_path: Path) -> str:
    return folder(tmp_path, {f"{i % 7}/{i}.txt": f"this is document {i}\n".encode() * 20 for i in range(300)})


def test_the_standard_library_is_always_there() -> None:
    corpus = open_corpus("python-stdlib")
    names = {document.name for document in (*corpus.train, *corpus.held_out)}
    assert {"argparse.py", "json/decoder.py"} <= names
    assert not any({"site-packages", "test", "tests"} & set(name.split("/")) for name in names)
    manifest = corpus.manifest
    assert manifest.train_bytes + manifest.held_out_bytes > 5_000_000
    assert 0.01 < manifest.held_out_bytes / manifest.train_bytes < 0.2


def test_a_folder_is_cut_by_documents(tmp_path: Path) -> None:
    corpus = open_corpus(many(tmp_path))
    train, held_out = ({d.name for d in part} for part in (corpus.train, corpus.held_out))
    assert not train & held_out
    assert train | held_out == {f"{i % 7}/{i}.txt" for i in range(300)}
    assert 3 <= len(held_out) <= 30


def test_the_cut_does_not_depend_on_the_place(tmp_path: Path) -> None:
    here, there = open_corpus(many(tmp_path / "here")), open_corpus(many(tmp_path / "there"))
    assert [d.name for d in here.held_out] == [d.name for d in there.held_out]
    assert here.manifest.sha256 == there.manifest.sha256


def test_a_changed_byte_is_another_corpus(tmp_path: Path) -> None:
    before = open_corpus(many(tmp_path)).manifest
    (tmp_path / "3/3.txt").write_bytes(b"this is Document 3\n" * 20)
    after = open_corpus(f"text:{tmp_path}").manifest
    assert before.sha256 != after.sha256
    assert before.train_bytes == after.train_bytes


def test_a_single_file_is_cut_by_blocks_between_characters(story: Path) -> None:
    corpus = open_corpus(f"text:{story}")
    for document in (*corpus.train, *corpus.held_out):
        document.read().decode()
    pieces = sorted((*corpus.train, *corpus.held_out), key=lambda d: int(d.name.partition("#")[2]))
    assert b"".join(piece.read() for piece in pieces) == story.read_bytes()
    assert 0.03 < corpus.manifest.held_out_bytes / story.stat().st_size < 0.07
    assert len(corpus.held_out) >= 2


def test_few_files_are_cut_by_blocks_too(tmp_path: Path) -> None:
    corpus = open_corpus(folder(tmp_path, {"a.txt": "é".encode() * 9001, "b.txt": b"b" * 20_000}))
    train, held_out = contents(corpus)
    assert len(train) + len(held_out) == 18_002 + 20_000
    assert 0.03 < len(held_out) / len(train) < 0.08


def test_hidden_files_and_empty_ones_are_passed_over(tmp_path: Path) -> None:
    source = folder(tmp_path, {".git/blob": b"\0\1\2", "a.txt": b"text " * 1000, "none.txt": b""})
    train, held_out = contents(open_corpus(source))
    assert len(train) + len(held_out) == 5000


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "does not exist"),
        ({"empty.txt": b""}, "holds no text"),
        ({"a.txt": b"fine\n" * 999, "image.png": b"\x89PNG\0" * 999}, "byte 0"),
        ({"a.txt": b"fine\n" * 999, "latin.txt": b"caf\xe9 " * 999}, "UTF-8"),
        ({"a.txt": b"tiny"}, "too small"),
    ],
)
def test_bad_text_is_refused(tmp_path: Path, files: dict[str, bytes], says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        open_corpus(folder(tmp_path / "corpus", files))
    assert str(tmp_path) in str(caught.value)
    assert caught.value.fix
    assert "\n" not in str(caught.value)


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(DataError, match="unknown"):
        open_corpus("wikipedia")


@pytest.mark.skipif(importlib.util.find_spec("datasets") is not None, reason="datasets is installed")
def test_the_hub_without_its_package_says_what_to_install() -> None:
    with pytest.raises(DataError, match=r"gruppetto\[hub\]"):
        open_corpus("hf:someone/something")
