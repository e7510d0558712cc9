"""Learners and a syncer that meet in a bucket alone: a real server of the store's protocol on loopback."""

from __future__ import annotations




