"""The model's tensors, in two copies of the same in every state directory."""

from __future__ import annotations

import json
from pathlib import Path

from gruppetto.errors import LayoutError
from gruppetto.files import json_in
from gruppetto.numerics.layout import Layout
from gruppetto.runtime.durable import force_directory, write_durably
from gruppetto.runtime.store_errors import damaged

__all__ = ["LAYOUTS", "read_layout", "write_layout"]

LAYOUTS = ("layout.json", "layout.copy.json")
"""Two copies of the same."""


def write_layout(directory: Path, layout: Layout) -> None:
    """Raises OSError."""
    for name in LAYOUTS:
        write_durably(directory / name, [json.dumps(layout.to_dict(), indent=1).encode()])
    force_directory(directory)


def read_layout(path: Path, layout_hash: str) -> Layout:
    try:
        layout = Layout.from_dict(json_in(path))
    except (OSError, ValueError) as wrong:  # LayoutError is a ValueError
        raise damaged(path, str(wrong) if not isinstance(wrong, LayoutError) else wrong.what) from wrong
    if layout.layout_hash != layout_hash:
        raise damaged(path, "it is not the layout that the state belongs to")
    return layout
