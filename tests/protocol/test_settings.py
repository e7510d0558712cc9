"""Impossible settings are refused with the fix; possible ones are taken."""

from __future__ import annotations

from typing import Any

import pytest

from gruppetto.errors import SettingError
from gruppetto.protocol.messages import ApplyMode
from gruppetto.protocol.settings import ProtocolSetting


@pytest.mark.parametrize(
    ("field", "setting"),
    [
        ("min_quorum", {"min_quorum": 3, "num_learners": 2}),
        ("min_quorum", {"min_quorum": 0}),
        ("num_learners", {"num_learners": 0}),
        ("num_learners", {"num_learners": 100_000}),
        ("num_learners", {"num_learners": 2.5}),
        ("num_learners", {"num_learners": True}),
        ("num_fragments", {"num_fragments": 0}),
        ("sync_period", {"sync_period": 0}),
        ("sync_period", {"sync_period": 10**9}),
        ("num_fragments", {"num_fragments": 5000}),
        ("snapshot_window", {"snapshot_window": 10**6}),
        ("num_slots", {"num_slots": 10**9}),
        ("overlap_steps", {"sync_period": 2, "overlap_steps": 2}),
        ("overlap_steps", {"overlap_steps": -1}),
        ("rounds_in_flight", {"rounds_in_flight": 0}),
        ("rounds_in_flight", {"rounds_in_flight": 65, "sync_period": 96}),
        ("rounds_in_flight", {"rounds_in_flight": 25}),
        ("snapshot_window", {"snapshot_window": -1}),
        ("rounds", {"rounds": 0}),
        ("rounds", {"rounds": 2**60}),
        ("grace", {"grace": "yes"}),
        ("grace_factor", {"grace_factor": 1.5}),
        ("grace_factor", {"grace_factor": float("nan")}),
        ("ema_factor", {"ema_factor": 0.0}),
        ("blend_alpha", {"blend_alpha": -0.1}),
        ("liveness_s", {"liveness_s": 0.0}),
        ("liveness_s", {"liveness_s": "10"}),
        ("liveness_s", {"liveness_s": 1e-5}),
        ("liveness_s", {"liveness_s": 1e308}),
        ("start_timeout_s", {"start_timeout_s": 1e19}),
        ("checkpoint_timeout_s", {"checkpoint_timeout_s": 1e19}),
        ("when_short", {"when_short": "panic"}),
        ("stale", {"stale": "maybe"}),
        ("apply", {"apply": "merge"}),
        ("norm_gate", {"norm_gate": "maybe"}),
        ("norm_factor", {"norm_factor": 1.5}),
        ("norm_factor", {"norm_factor": float("inf")}),
        ("weight_cap", {"weight_cap": 0.0}),
        ("weight_cap", {"weight_cap": "8"}),
        ("num_slots", {"num_slots": 1, "num_learners": 2}),
        ("start_learners", {"start_learners": 3, "num_learners": 2}),
    ],
)
def test_refused_by_name_with_a_fix(field: str, setting: dict[str, Any]) -> None:
    with pytest.raises(SettingError) as caught:
        ProtocolSetting(**setting)
    assert caught.value.where == f"run.{field}"
    assert caught.value.fix


def test_text_becomes_the_apply_mode() -> None:
    assert ProtocolSetting(apply="carry").apply is ApplyMode.CARRY  # type: ignore[arg-type]


def test_slots_leave_room_for_late_joiners() -> None:
    assert ProtocolSetting(num_learners=4).slots == 16
    assert ProtocolSetting(num_learners=40).slots == 80
