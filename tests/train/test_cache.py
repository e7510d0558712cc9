"""A cached file is whole from the moment it has a name, whoever else is making it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from gruppetto.errors import DataError
from gruppetto.train.cache import publish


@pytest.fixture(autouse=True, params=["without a name", "with a name"])
def named(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is being made has a name where the file system wants one."""
    if request.param == "with a name":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)


def test_nothing_has_the_name_until_all_is_written(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "file.npy"

    def write(file: BinaryIO) -> None:
        file.write(b"half")
        file.flush()
        assert not path.exists()
        file.write(b"whole")

    publish(path, write)
    assert path.read_bytes() == b"halfwhole"
    assert list(path.parent.iterdir()) == [path]


def test_who_may_read_it_says_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        publish(tmp_path / "file", lambda file: file.write(b"whole"))
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def write(file: BinaryIO) -> None:
        file.write(b"half")
        raise DataError("no more")

    with pytest.raises(DataError, match="no more"):
        publish(tmp_path / "file", write)
    assert not list(tmp_path.iterdir())


def test_the_first_of_two_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def write(file: BinaryIO) -> None:
        file.write(b"second")
        publish(path, lambda other: other.write(b"first"))

    publish(path, write)
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"in the way")
    with pytest.raises(DataError, match="cannot be written"):
        publish(tmp_path / "file" / "cache", lambda file: file.write(b""))


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="files have names from the beginning")
def test_a_process_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    dies = """
import os, signal, sys
from pathlib import Path
from gruppetto.train.cache import publish
def write(file):
    file.write(b"half" * 99999)
    os.kill(os.getpid(), signal.SIGKILL)
publish(Path(sys.argv[1]), write)
"""
    killed = subprocess.run([sys.executable, "-c", dies, str(tmp_path / "file")], check=False)
    assert killed.returncode == -signal.SIGKILL and not list(tmp_path.iterdir())
