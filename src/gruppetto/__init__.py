"""Gruppetto: Decoupled DiLoCo for PyTorch. The group rides in together, each at its own pace."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from gruppetto.errors import GruppettoError

if TYPE_CHECKING:
    from gruppetto.attach import Checkpoints, Learner

__all__ = ["Checkpoints", "GruppettoError", "Learner", "__version__", "data"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # Loaded when first asked for: a syncer host has no torch, and the command line should not wait for it.
    if name not in ("Checkpoints", "Learner", "data"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = import_module("gruppetto.data" if name == "data" else "gruppetto.attach")
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"gruppetto.{name} needs PyTorch: pip install 'gruppetto[torch]'", name="torch"
        ) from missing
    found: object = home if name == "data" else getattr(home, name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
