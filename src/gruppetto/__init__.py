"""Gruppetto: Decoupled DiLoCo for PyTorch. The group rides in together, each at its own pace."""

from __future__ import annotations

__version__ = "0.1.0"
