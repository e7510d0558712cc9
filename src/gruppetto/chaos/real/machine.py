"""What only this machine can give: signals to processes, a small disk that can be filled, and what cannot be had."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gruppetto.chaos.real.plan import LivePlan
from gruppetto.errors import StateError

__all__ = ["SmallDisk", "impossible_here", "is_alive", "send"]

DISK_BYTES = 64 << 20
FILLER = ".filler"


def impossible_here(plan: LivePlan) -> dict[str, str]:
    """What in this plan cannot be had here, by the kind of fault, and why."""
    kinds, why = {fault.kind for fault in plan.faults}, {}
    if "disk-full" in kinds and not _may_mount():
        why["disk-full"] = "a small disk needs the right to mount a tmpfs (root)"
    return why


def is_alive(pid: int) -> bool:
    """It runs or is stopped; a process that is dead and not yet buried does not count."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def send(pid: int, number: signal.Signals) -> bool:
    """Signal a process; False if there is none."""
    if not is_alive(pid):
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


class SmallDisk:
    """A tmpfs that can be filled to the last byte and emptied again."""

    def __init__(self, path: Path) -> None:
        self._filler = path / FILLER

    def fill(self) -> None:
        file = os.open(self._filler, os.O_WRONLY | os.O_CREAT)
        block = bytes(1 << 16)
        try:
            while len(block) > 0:
                try:
                    os.write(file, block)
                except OSError as full:
                    if full.errno != errno.ENOSPC:
                        raise
                    block = block[: len(block) // 2]
        finally:
            os.close(file)

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    @classmethod
    @contextmanager
    def mounted(cls, path: Path) -> Iterator[SmallDisk]:
        """Over ``path``, which is empty, until the end of the block; what lies there then stays there.

        Raises :class:`StateError` if it cannot be mounted.
        """
        path.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "gruppetto-chaos", str(path)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise StateError(f"no tmpfs can be mounted ({made.stderr.strip()})", where=str(path), fix="run as root")
        disk, kept = cls(path), path.with_name(f".{path.name}.kept")
        try:
            yield disk
        finally:
            disk.free()
            shutil.copytree(path, kept, dirs_exist_ok=True)
            subprocess.run(["umount", str(path)], capture_output=True, check=False)
            shutil.copytree(kept, path, dirs_exist_ok=True)
            shutil.rmtree(kept)


def _may_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None
