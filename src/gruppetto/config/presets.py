"""Runs by name, as the tables that a RUN.toml would have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["PRESETS"]

CLOSEST: dict[str, Mapping[str, object]] = {
    "run": {"sync_period": 8, "num_fragments": 8, "apply": "carry"},
    "outer": {"preset": "rising"},
    "codec": {"uplink": "int4", "downlink": "delta-int4"},
}
PRESETS: dict[str, Mapping[str, Any]] = {
    "closest": CLOSEST,
    "demo": {
        **CLOSEST,
        "run": {**CLOSEST["run"], "rounds": 1400},
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
"""``closest``: what brings small models closest to data parallel, at half the bytes of the defaults and three times the
work for each step (``gruppetto experiment levers``). ``demo``: that, with four unequal learners on one machine."""
