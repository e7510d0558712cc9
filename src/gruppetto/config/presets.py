"""Runs by name, as the tables that a RUN.toml would have."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["PRESETS"]

PRESETS: dict[str, Mapping[str, object]] = {
    "demo": {
        "run": {"rounds": 1400, "sync_period": 8, "num_fragments": 8, "apply": "carry"},
        "model": {"preset": "tiny"},
        "inner": {"warmup_rounds": 30},
        "train": {"eval_every_rounds": 100, "log_every_rounds": 10},
        "learner": [
            {"name": "anna"},
            {"name": "ben"},
            {"name": "clara"},
            {"name": "dora", "slowdown": 2.0},
        ],
    },
}
"""``demo``: four unequal learners on one machine. H = 8 and ``carry`` are the best of ``gruppetto experiment demo``."""
