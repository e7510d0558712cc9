"""A key or token that others could read is used, and said once."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from gruppetto.launch.ask import read_token
from gruppetto.runtime.security import exposed
from gruppetto.runtime.security.identity import Identity, Role
from gruppetto.runtime.security.issuing import Authority
from gruppetto.runtime.security.places import papers_of

A = Identity(role=Role.LEARNER, name="a")


def test_a_secret_that_others_could_read_is_told_once_with_its_fix(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path, now=1_800_000_000.0)
    authority.found(days=1000)
    authority.make(A, days=30)
    caplog.set_level(logging.WARNING, "gruppetto.security")
    papers_of(tmp_path, A)
    assert caplog.messages == []
    key, token = tmp_path / "learner-a.key", tmp_path / "token"
    token.write_text("x\n")
    for secret in (key, token):
        secret.chmod(0o644)
    for _ in range(2):
        papers_of(tmp_path, A)
        read_token(token)
    assert caplog.messages == [
        f"{secret} can be read by others (mode 0644): whoever has it is taken for its owner; say chmod 600 {secret}"
        for secret in (key, token)
    ]


def test_what_root_gives_a_group_is_the_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kubernetes mounts a secret; of a file of one's own the group is others."""
    secret = tmp_path / "key"
    secret.touch()
    found = {}
    for uid, gid, mode in ((0, 10001, 0o440), (0, 10001, 0o444), (0, 0, 0o440), (7, 10001, 0o440), (7, 10001, 0o400)):
        status = os.stat_result((0o100000 | mode, 1, 1, 1, uid, gid, 0, 0, 0, 0))
        monkeypatch.setattr(Path, "stat", lambda path, status=status: status)
        found[uid, gid, mode] = bool(exposed.exposure(secret))
    assert list(found.values()) == [False, True, True, True, False]
