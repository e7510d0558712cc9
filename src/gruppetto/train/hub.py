"""Corpora from the Hugging Face hub, for machines that can reach it and have ``datasets`` installed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gruppetto.errors import DataError

if TYPE_CHECKING:
    from gruppetto.train.corpus import Document

__all__ = ["hub_documents"]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a data set; its texts stay on disk until they are read."""

    name: str
    rows: Any
    index: int
    column: str

    def read(self) -> bytes:
        # The byte 0 marks the end of a document, so it cannot be inside one.
        return str(self.rows[self.index][self.column] or "").replace("\0", "").encode("utf-8", "replace")


def hub_documents(name_and_config: str) -> list[Document]:
    """The train split of ``NAME[:CONFIG]``: its column ``text``, or its first column of strings."""
    where = f"hf:{name_and_config}"
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            "needs the package datasets", where=where, fix="pip install 'gruppetto[hub]', or use text:PATH"
        ) from error
    name, _, config = name_and_config.partition(":")
    try:
        rows = datasets.load_dataset(name, config or None, split="train")
    except Exception as error:  # the library raises its own kinds, and those of every network layer below it
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise DataError(f"cannot be loaded ({first})", where=where, fix="check the name and the network") from error
    strings = ("string", "large_string")
    columns = [name for name, kind in rows.features.items() if getattr(kind, "dtype", None) in strings]
    if not columns or not len(rows):
        raise DataError("holds no text", where=where, fix="name a data set with a column of strings")
    column = "text" if "text" in columns else columns[0]
    texts = rows.select_columns([column])
    return [Row(f"{index:012d}", texts, index, column) for index in range(len(texts))]
