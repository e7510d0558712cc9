"""Tokens stand for exactly the text they were made from, here and where Hugging Face reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppetto.errors import DataError
from gruppetto.train.corpus import open_corpus
from gruppetto.train.data import Data, open_data, open_tokenizer
from gruppetto.train.setting import DataSetting, TrainSetting
from gruppetto.train.tokens import END_OF_DOCUMENT, BpeTokenizer, ByteTokenizer, encoded, make_tokenizer

texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(texts)
def test_bytes_are_lossless(text: str) -> None:
    assert ByteTokenizer().decode(ByteTokenizer().encode(text)) == text


def test_bpe_is_lossless_and_compresses(bpe_data: Data, data: Data) -> None:
    tokenizer = bpe_data.tokenizer
    assert tokenizer.vocab_size == 300
    assert len(bpe_data.train) < len(data.train) / 2

    @settings(max_examples=50)
    @given(texts)
    def lossless(text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text)) == text

    lossless()


def test_the_mark_inside_a_text_is_text(bpe_data: Data) -> None:
    ids = bpe_data.tokenizer.encode(f"a{END_OF_DOCUMENT}b")
    assert bpe_data.tokenizer.end_of_document not in ids
    assert bpe_data.tokenizer.decode(ids) == f"a{END_OF_DOCUMENT}b"


def test_bytes_are_the_same_numbers_to_the_library_tokenizers() -> None:
    ours, theirs = ByteTokenizer(), BpeTokenizer(ByteTokenizer().definition())
    assert theirs.vocab_size == 256
    for text in ("", "plain", " café 山\n\t", "".join(map(chr, range(1, 300)))):
        assert theirs.encode(text) == ours.encode(text)
        assert theirs.decode(ours.encode(text)) == text


@pytest.mark.parametrize("name", ["bytes", "bpe:300"])
def test_every_document_is_there_with_its_end(name: str, story: Path, tmp_path: Path) -> None:
    corpus = open_corpus(f"text:{story}")
    tokenizer = make_tokenizer(name, lambda: corpus, tmp_path)
    tokens = encoded(corpus.held_out, tokenizer, tmp_path, corpus_key="held out")
    assert tokens.dtype == np.uint16
    assert isinstance(tokens, np.memmap)
    ends = np.flatnonzero(tokens == tokenizer.end_of_document)
    pieces = [piece[piece != tokenizer.end_of_document] for piece in np.split(tokens, ends)]
    found = [tokenizer.decode(piece.tolist()).encode() for piece in pieces]
    assert found == [*(document.read() for document in corpus.held_out), b""]


def test_what_is_cached_is_used(story: Path, tmp_path: Path) -> None:
    corpus = open_corpus(f"text:{story}")
    first = make_tokenizer("bpe:300", lambda: corpus, tmp_path)
    tokens = encoded(corpus.train, first, tmp_path, corpus_key="k")
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = make_tokenizer("bpe:300", lambda: corpus, tmp_path)
    assert again.definition() == first.definition()
    # No documents are needed any more.
    assert np.array_equal(encoded([], again, tmp_path, corpus_key="k"), tokens)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files
    assert len(files) == 2


def test_the_corpus_is_opened_only_where_the_tokenizer_is_learned_from_it(tmp_path: Path) -> None:
    def of(tokenizer: str) -> TrainSetting:
        return TrainSetting(data=DataSetting(corpus=f"text:{tmp_path}/nowhere", tokenizer=tokenizer))

    assert isinstance(open_tokenizer(of("bytes"), tmp_path), ByteTokenizer)
    with pytest.raises(DataError, match="nowhere: does not exist"):
        open_tokenizer(of("bpe:300"), tmp_path)


@pytest.mark.parametrize("damage", ["empty", "cut", "no npy", "pickled", "square", "of floats", "a folder"])
def test_a_damaged_cache_is_said(damage: str, story: Path, tmp_path: Path) -> None:
    documents = open_corpus(f"text:{story}").train
    encoded(documents, ByteTokenizer(), tmp_path, corpus_key="x")
    (path,) = tmp_path.glob("tokens-*.npy")
    whole = path.read_bytes()
    path.unlink()
    match damage:
        case "empty" | "cut" | "no npy":
            path.write_bytes({"empty": b"", "cut": whole[:-1], "no npy": b"tokens"}[damage])
        case "pickled":
            np.save(path, np.array([{}], dtype=object))
        case "square":
            np.save(path, np.zeros((3, 3), np.uint16))
        case "of floats":
            np.save(path, np.zeros(9))
        case "a folder":
            path.mkdir()
    fix = "check rights" if damage == "a folder" else "delete it"
    with pytest.raises(DataError, match=rf"tokens-.*\.npy.*{fix}"):
        encoded(documents, ByteTokenizer(), tmp_path, corpus_key="x")


def test_keys_tell_corpora_and_tokenizers_apart(story: Path, tmp_path: Path) -> None:
    corpus = open_corpus(f"text:{story}")
    plain, merged = ByteTokenizer(), make_tokenizer("bpe:300", lambda: corpus, tmp_path)
    arrays = [
        encoded(documents, tokenizer, tmp_path, corpus_key=key)
        for documents, tokenizer, key in (
            (corpus.train, plain, "train"),
            (corpus.held_out, plain, "held out"),
            (corpus.train, merged, "train"),
        )
    ]
    assert len({len(array) for array in arrays}) == 3


def test_a_corpus_smaller_than_the_context_is_refused(setting: TrainSetting, tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("word " * 400)
    short = replace(
        setting,
        data=replace(setting.data, corpus=f"text:{path}"),
        model=replace(setting.model, context=512),
    )
    with pytest.raises(DataError, match="fewer than the context of 512") as caught:
        open_data(short, tmp_path)
    assert str(path) in str(caught.value)
