"""Gruppetto: Decoupled DiLoCo for PyTorch. The group rides in together, each at its own pace."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gruppetto.attach.learner import Learner

__all__ = ["Learner", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # Loaded when first asked for: a syncer host has no torch, and the command line should not wait for it.
    if name != "Learner":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from gruppetto.attach.learner import Learner
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise ModuleNotFoundError(
            "gruppetto.Learner needs PyTorch: pip install 'gruppetto[torch]'", name="torch"
        ) from missing
    return Learner


def __dir__() -> list[str]:
    return sorted(__all__)
