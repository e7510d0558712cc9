"""Gruppetto: Decoupled DiLoCo for PyTorch. The group rides in together, each at its own pace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gruppetto.errors import GruppettoError

if TYPE_CHECKING:
    from gruppetto.attach import Checkpoints, Learner

__all__ = ["Checkpoints", "GruppettoError", "Learner", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # Loaded when first asked for: a syncer host has no torch, and the command line should not wait for it.
    if name not in ("Checkpoints", "Learner"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from gruppetto import attach
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"gruppetto.{name} needs PyTorch: pip install 'gruppetto[torch]'", name="torch"
        ) from missing
    found: object = getattr(attach, name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
