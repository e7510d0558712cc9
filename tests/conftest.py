"""Shared by all tests: how hard hypothesis tries, and one thread per process."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fuzz", deadline=None, max_examples=20_000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")
