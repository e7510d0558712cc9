"""How many files and connections a process may have open."""

from __future__ import annotations

import resource

__all__ = ["MANY_FILES", "allow_many_files"]

MANY_FILES = 1 << 16


def allow_many_files() -> None:
    """As many as the administrator lets us have: every learner has a handful of connections, and the usual limit of
    1,024 is that of two hundred learners."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
