"""What a checkup has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at. ``wrong``: a run will not work like this; ``warning``: it will, less well."""

    subject: str
    level: Literal["ok", "warning", "wrong"]
    text: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.level:<8} {self.subject:<10} {self.text}{f'; {self.fix}' if self.fix else ''}"
