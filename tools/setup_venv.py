"""Make the virtual environment that the Makefile works in: ``python tools/setup_venv.py .venv EXTRAS``.

It needs the standard library alone.

On a machine without a GPU the CPU build of torch is installed, whatever the package index would hand out by default
(for Linux on x86 that is a CUDA build of several gigabytes). On a machine with a GPU a torch that the base interpreter
already has is used as it is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

TORCH = "2.13.0"
EXTRAS = "train,dashboard,dev,docs"
"""Unless others are named."""
OLDEST = (3, 11)
ROOT = Path(__file__).resolve().parent.parent


class SetupError(Exception):
    """Said in one line, without a traceback."""


def run(*command: str | Path, what: str) -> str:
    """Run a command quietly; its output, or the end of it as the reason why ``what`` failed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        last = [line for line in (done.stdout + done.stderr).strip().splitlines() if line.strip()][-8:]
        raise SetupError(f"{what} failed:\n  " + "\n  ".join(last))
    return done.stdout


def has_gpu() -> bool:
    """An accelerator that torch could use is in this machine."""
    if Path("/dev/nvidia0").exists() or Path("/dev/kfd").exists():
        return True
    smi = shutil.which("nvidia-smi")
    return smi is not None and subprocess.run([smi], capture_output=True, check=False).returncode == 0


def base_torch() -> str | None:
    """The version of torch that the interpreter running this has, if any."""
    probe = "import importlib.metadata as m; print(m.version('torch'))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None if done.returncode == 0 else None


def make_venv(venv: Path, *, see_base: bool) -> Path:
    """Create it if it is not there; returns its python."""
    python = venv / "bin" / "python"
    if not python.exists():
        print(f"creating {venv}", flush=True)
        sees = ["--system-site-packages"] if see_base else []
        run(sys.executable, "-m", "venv", venv, *sees, what="python -m venv (is python3-venv there?)")
    return python


def installed(python: Path, package: str) -> bool:
    probe = f"import importlib.metadata as m; m.version({package!r})"
    return subprocess.run([str(python), "-c", probe], capture_output=True, check=False).returncode == 0


def would_bring_cuda(python: Path) -> bool:
    """The default build of torch on this index is a CUDA build."""
    pip = (python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-")
    report = json.loads(run(*pip, f"torch=={TORCH}", what="asking the package index for torch"))
    names = [item["metadata"]["name"].lower() for item in report["install"]]
    return any(name.startswith(("nvidia-", "triton", "cuda-")) for name in names)


def install_cpu_torch(python: Path) -> None:
    pip = (python, "-m", "pip", "install", "--quiet")
    print(f"installing torch {TORCH} (CPU)", flush=True)
    if not would_bring_cuda(python):
        run(*pip, f"torch=={TORCH}", what="installing torch")
        return
    # uv knows where PyTorch keeps its CPU builds.
    run(*pip, "uv", what="installing uv")
    uv = (python, "-m", "uv", "pip", "install", "--quiet", "--python", python, "--torch-backend=cpu")
    run(*uv, f"torch=={TORCH}", what="installing the CPU build of torch (make it available to pip, then try again)")


def constraints(venv: Path, *, own_torch: bool) -> Path:
    """The tested pins; without the one of torch where the user's own is used."""
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    kept = [pin for pin in pins if not (own_torch and pin.startswith("torch=="))]
    path = venv / "constraints.txt"
    path.write_text("\n".join(kept) + "\n")
    return path


def main() -> None:
    venv = Path(sys.argv[1] if len(sys.argv) > 1 else ".venv").resolve()
    extras = sys.argv[2] if len(sys.argv) > 2 else EXTRAS
    if sys.version_info < OLDEST:
        have = ".".join(map(str, sys.version_info[:3]))
        raise SetupError(f"Python {have} is too old: 3.11 or newer is needed; try make PYTHON=python3.11 …")
    gpu = has_gpu()
    own_torch = gpu and base_torch() is not None
    python = make_venv(venv, see_base=own_torch)
    if not gpu and not installed(python, "torch"):
        install_cpu_torch(python)
    print(f"installing gruppetto[{extras}] with the tested versions; this takes a minute or two", flush=True)
    pins = constraints(venv, own_torch=own_torch or installed(python, "torch"))
    pip = (python, "-m", "pip", "install", "--quiet", "--constraint", pins, "--editable")
    run(*pip, f"{ROOT}[{extras}]", what="installing gruppetto")


if __name__ == "__main__":
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    try:
        main()
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        sys.exit(1)
