"""How long a message takes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Link"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One way of a connection: messages arrive in the order in which they were sent.

    >>> Link(latency_s=0.02, bytes_per_s=1e6).transfer_s(500_000)
    0.52
    """

    latency_s: float = 0.0
    bytes_per_s: float | None = None
    """None: no limit."""

    def transfer_s(self, size_bytes: int) -> float:
        """Seconds from the first byte sent to the last byte received."""
        return self.latency_s + (size_bytes / self.bytes_per_s if self.bytes_per_s else 0.0)
