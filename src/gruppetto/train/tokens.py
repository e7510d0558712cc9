"""Text to numbers and back: plain bytes, or byte-pair merges learned from the train part of the corpus.

Both are lossless and know no unknown. Documents stand one after another in a flat array, each followed by
``end_of_document``. Learned merges and encoded arrays are kept in a cache directory under the hash of what
they were made from; a file appears there whole or not at all, and once there it never changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import DataError
from gruppetto.train.cache import publish
from gruppetto.train.corpus import Corpus, Document
from gruppetto.train.setting import bpe_size

__all__ = ["BpeTokenizer", "ByteTokenizer", "TokenArray", "Tokenizer", "encoded", "make_tokenizer"]

TokenArray = NDArray[np.uint16] | NDArray[np.uint32]
"""Tokens in a row, usually mapped from disk."""

END_OF_DOCUMENT = "<|endofdocument|>"

FORMAT = "1"
"""Part of every key in the cache; raise it when the same input is to give another file."""


class Tokenizer(Protocol):
    """What the trainer asks of a tokenizer; ``decode(encode(text)) == text`` for every text."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def end_of_document(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Iterable[int]) -> str: ...

    def definition(self) -> str:
        """The ``tokenizer.json`` that Hugging Face's ``AutoTokenizer`` reads, with the same numbers."""
        ...


class ByteTokenizer:
    """A token is a byte of UTF-8; 0, which is in no text, ends a document.

    >>> ByteTokenizer().encode("né")
    [110, 195, 169]
    """

    vocab_size = 256
    end_of_document = 0

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Iterable[int]) -> str:
        """Bytes that are no character, such as half of one, come out as U+FFFD."""
        return bytes(ids).decode(errors="replace")

    def definition(self) -> str:
        vocab = {char: byte for byte, char in enumerate(_byte_alphabet())}
        bpe = {"type": "BPE", "vocab": vocab, "merges": []}
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        return json.dumps(
            {"version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level, "model": bpe}
        )


class BpeTokenizer:
    """Byte-pair merges, as the library ``tokenizers`` reads them from its JSON; 0 ends a document."""

    end_of_document = 0

    def __init__(self, definition: str) -> None:
        from tokenizers import Tokenizer as Reader

        self._definition = definition
        self._reader: Any = Reader.from_str(definition)
        # The mark's own name inside a text is text.
        self._reader.encode_special_tokens = True
        self.vocab_size: int = self._reader.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._reader.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self._reader.decode(list(ids), skip_special_tokens=False)
        return text

    def definition(self) -> str:
        return self._definition


def make_tokenizer(name: str, open_corpus: Callable[[], Corpus], cache: Path) -> Tokenizer:
    """The tokenizer called ``bytes`` or ``bpe:N``; N is at most what the corpus has merges for.

    Merges are learned once, from the train part only, and kept in ``cache``. Bytes need no corpus, and open none.
    """
    size = bpe_size(name)
    if size is None:
        return ByteTokenizer()
    corpus = open_corpus()
    path = cache / f"bpe-{_key(name, corpus.manifest.sha256)}.json"
    if not path.exists():
        publish(path, lambda file: file.write(_learned(size, corpus).encode()))
    return BpeTokenizer(path.read_text(encoding="utf-8"))


def encoded(documents: Iterable[Document], tokenizer: Tokenizer, cache: Path, *, corpus_key: str) -> TokenArray:
    """The documents as one array of tokens, mapped from a file in ``cache`` that is written on first use.

    ``corpus_key`` names the content of ``documents``; the tokenizer's definition is added to it.
    """
    path = cache / f"tokens-{_key(corpus_key, tokenizer.definition())}.npy"
    if not path.exists():
        publish(path, lambda file: _write_tokens(file, documents, tokenizer))
    fix = "delete it: it is made again"
    try:
        tokens: TokenArray = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        why = f"cannot be read ({error.strerror or error})"
        raise DataError(why, where=str(path), fix="check rights and memory") from error
    except (EOFError, ValueError) as error:
        raise DataError(f"cannot be read ({error})", where=str(path), fix=fix) from error
    if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or tokens.dtype != _dtype(tokenizer):
        raise DataError("is no list of tokens", where=str(path), fix=fix)
    return tokens


def _dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    return np.dtype("<u2" if tokenizer.vocab_size <= 2**16 else "<u4")


def _write_tokens(file: BinaryIO, documents: Iterable[Document], tokenizer: Tokenizer) -> None:
    """An .npy file in one pass: numpy pads the header so that the length can be filled in afterwards."""
    dtype = _dtype(tokenizer)
    ending = np.array([tokenizer.end_of_document], dtype)
    length = 0
    _write_header(file, dtype, length)
    body = file.tell()
    for document in documents:
        content = document.read()
        if isinstance(tokenizer, ByteTokenizer):
            ids = np.frombuffer(content, np.uint8).astype(dtype)
        else:
            ids = np.array(tokenizer.encode(content.decode()), dtype)
        file.write(ids.tobytes())
        file.write(ending.tobytes())
        length += len(ids) + 1
    file.seek(0)
    _write_header(file, dtype, length)
    assert file.tell() == body, "the header of the .npy file changed its size"


def _write_header(file: BinaryIO, dtype: np.dtype[Any], length: int) -> None:
    header = {"descr": dtype.str, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, header)


def _learned(size: int, corpus: Corpus) -> str:
    from tokenizers import Tokenizer as Learner
    from tokenizers import decoders, models, pre_tokenizers, trainers

    learner = Learner(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=_byte_alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator((document.read().decode() for document in corpus.train), trainer)
    definition: str = learner.to_str()
    return definition


def _key(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in (FORMAT, *parts):
        digest.update(b"%d\0%s" % (len(part.encode()), part.encode()))
    return digest.hexdigest()[:32]


def _byte_alphabet() -> list[str]:
    """The character that byte-level tokenizers write for each byte: itself, or one from U+0100 on."""
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    stand_ins = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(stand_ins)) for byte in range(256)]
