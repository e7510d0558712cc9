"""The look at an outer gradient before it may touch anything: is it finite, and how long is each piece?

A folded answer cannot be taken back, so this comes first. It can be done chunk by chunk while bytes still
arrive and are warm in the cache; the fold that follows is then a single pass with the norms already known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import ProtocolError
from gruppetto.numerics import kernels
from gruppetto.numerics.codec import Buffer, Codec
from gruppetto.numerics.fragments import FragmentSpec

__all__ = ["ChunkInspector", "Inspection", "inspect"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inspection:
    """What is known of a payload: the squared norm of each piece, float64 [pieces]."""

    norm_sq: NDArray[np.float64]

    @property
    def finite(self) -> bool:
        """No value is NaN or infinite. (float64 holds the squares of any finite float32 vector.)"""
        return bool(np.isfinite(self.norm_sq).all())

    @property
    def norm(self) -> NDArray[np.float64]:
        """The norm of each piece."""
        return np.sqrt(self.norm_sq)


def inspect(payload: Buffer, codec: Codec, spec: FragmentSpec) -> Inspection:
    """Inspect a whole payload of a fragment. Raises :class:`ProtocolError` for a wrong length."""
    whole = ChunkInspector(spec, codec)
    whole.update(payload)
    return whole.finish()


class ChunkInspector:
    """Inspects a payload that arrives in chunks of any size, cut anywhere, even inside a word."""

    def __init__(self, spec: FragmentSpec, codec: Codec) -> None:
        self._codec = codec
        self._starts, self._stops = spec.bounds()
        self._numel = spec.numel
        self._norm_sq = np.zeros(len(spec.pieces))
        self._missing_bytes = codec.payload_bytes(spec.numel)
        self._seen_numel = 0
        self._part_of_word = b""

    def update(self, chunk: Buffer) -> None:
        """Take the next bytes. Raises :class:`ProtocolError` as soon as there are more than the payload may have."""
        view = np.frombuffer(chunk, np.uint8)
        self._missing_bytes -= view.size
        if self._missing_bytes < 0:
            raise ProtocolError(f"a {self._codec.name} payload is {-self._missing_bytes} bytes too long")
        word_bytes = self._codec.word_bytes
        if self._part_of_word:
            wanted = word_bytes - len(self._part_of_word)
            self._part_of_word += view[:wanted].tobytes()
            view = view[wanted:]
            if len(self._part_of_word) == word_bytes:
                self._add(self._part_of_word)
                self._part_of_word = b""
        rest = view.size % word_bytes
        if rest:
            view, self._part_of_word = view[:-rest], view[-rest:].tobytes()
        self._add(view)

    def finish(self) -> Inspection:
        """The result. Raises :class:`ProtocolError` if bytes are missing."""
        if self._missing_bytes:
            raise ProtocolError(f"a {self._codec.name} payload ends {self._missing_bytes} bytes too early")
        return Inspection(norm_sq=self._norm_sq)

    def _add(self, whole_words: Buffer) -> None:
        room = len(whole_words) // self._codec.word_bytes * self._codec.block_numel
        numel = min(room, self._numel - self._seen_numel)
        words = self._codec.words(whole_words, numel)
        kernels.sum_squares(words, self._seen_numel, numel, self._starts, self._stops, self._norm_sq)
        self._seen_numel += numel
