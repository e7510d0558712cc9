"""Ports of this machine: whether one can be listened on, and one that is free."""

from __future__ import annotations

import socket

__all__ = ["family_of", "free_port"]


def family_of(host: str) -> socket.AddressFamily:
    """That of an address, by its look.

    >>> family_of("::1") is socket.AF_INET6, family_of("127.0.0.1") is socket.AF_INET
    (True, True)
    """
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def free_port(host: str) -> int:
    """One at ``host``, an address of this machine, that nobody listens on at this moment. Raises OSError."""
    with socket.create_server((host, 0), family=family_of(host)) as probe:
        port: int = probe.getsockname()[1]
        return port
