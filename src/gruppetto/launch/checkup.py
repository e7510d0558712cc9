"""Whether Gruppetto will work here, before anything is started: one line for everything that was looked at."""

from __future__ import annotations

import http.client
import json
import os
import platform
import resource
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from importlib import metadata
from pathlib import Path
from statistics import median

from gruppetto import __version__
from gruppetto.errors import AddressError, GruppettoError
from gruppetto.launch.ask import fetch_status
from gruppetto.launch.finding import Finding
from gruppetto.launch.measuring import Line, measure_disk, usable_cores
from gruppetto.launch.papers_checkup import look_at_papers
from gruppetto.launch.ports import family_of
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.clock import Clock, wall_time_s
from gruppetto.runtime.setting import host_and_port

__all__ = ["Finding", "examine", "measure_line"]

GIB = 2**30
LEAST_PYTHON = (3, 11)
NEEDED = ("numpy", "numba", "msgspec", "aiohttp", "safetensors", "tyro", "rich")
USEFUL = {"matplotlib": "figures", "transformers": "models of Hugging Face", "tokenizers": "data.tokenizer = bpe:N"}
LEAST_FREE_GIB, LEAST_MEMORY_GIB = 2.0, 1.0
SLOW_FORCE_S = 0.05
LEAST_FILES = 1024
CLOCKS_APART_S = 5.0
TORCH_TIMEOUT_S = 120.0
LINE_TIMEOUT_S = 10.0
PINGS = 7
MOST_BYTES = 256 << 20
"""That a look at the bandwidth takes."""
SAY_TORCH = (
    "import json, torch; print(json.dumps([torch.__version__, torch.version.cuda, torch.cuda.is_available(), "
    "torch.cuda.device_count(), torch.get_num_threads()]))"
)


def examine(
    clock: Clock,
    *,
    directory: Path,
    listen: str,
    syncer: str | None = None,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    certs: Path | None = None,
) -> Iterator[Finding]:
    """Look at everything in turn; the findings as they are made."""
    yield from _versions()
    yield _torch()
    yield _processor()
    yield _memory()
    yield _files()
    yield from _disk(directory, clock)
    yield _port(listen)
    if certs is not None:
        yield from look_at_papers(certs, now=wall_time_s())
    if syncer is not None:
        yield from _syncer(syncer, token, clock, tls)


def _versions() -> Iterator[Finding]:
    found = platform.python_version()
    if sys.version_info < LEAST_PYTHON:
        yield Finding(subject="python", level="wrong", text=found, fix="use Python 3.11 or newer")
    else:
        yield Finding(subject="python", level="ok", text=f"{found}, gruppetto {__version__}")
    versions = {name: _version(name) for name in NEEDED}
    missing = [name for name, version in versions.items() if version is None]
    text = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    if missing:
        fix = "pip install gruppetto installs them"
        yield Finding(subject="packages", level="wrong", text=f"{', '.join(missing)} missing", fix=fix)
    else:
        yield Finding(subject="packages", level="ok", text=text)
    for name, what in USEFUL.items():
        if _version(name) is None:
            fix = "pip install 'gruppetto[dashboard,train]'"
            yield Finding(subject="packages", level="warning", text=f"no {name}: no {what}", fix=fix)


def _torch() -> Finding:
    """In a process of its own: an installation that crashes must not end the checkup."""
    if _version("torch") is None:
        fix = "a syncer needs none; for learners pip install 'gruppetto[train]'"
        return Finding(subject="torch", level="warning", text="not installed", fix=fix)
    try:
        ran = subprocess.run(
            [sys.executable, "-c", SAY_TORCH], capture_output=True, text=True, timeout=TORCH_TIMEOUT_S, check=True
        )
        version, cuda, available, devices, threads = json.loads(ran.stdout)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        return Finding(
            subject="torch",
            level="wrong",
            text=f"does not start ({said[-1] if said else error})",
            fix="install it anew",
        )
    if cuda is None:
        return Finding(subject="torch", level="ok", text=f"{version}, CPU only, {threads} threads")
    if not available:
        fix = "check the driver with nvidia-smi, or train on the CPU"
        return Finding(subject="torch", level="warning", text=f"{version} for CUDA {cuda}, but no device", fix=fix)
    return Finding(subject="torch", level="ok", text=f"{version}, CUDA {cuda}, {devices} devices, {threads} threads")


def _processor() -> Finding:
    cores, busy = usable_cores(), os.getloadavg()[0]
    text = f"{cores} cores for this process, load {busy:.1f}"
    if busy > 1.5 * cores:
        fix = "steps will take longer, and what is measured now is what is left"
        return Finding(subject="processor", level="warning", text=text, fix=fix)
    return Finding(subject="processor", level="ok", text=text)


def _memory() -> Finding:
    free = _available_bytes()
    if free is None:
        return Finding(subject="memory", level="ok", text="unknown on this system")
    text = f"{free / GIB:.1f} GiB free"
    if free < LEAST_MEMORY_GIB * GIB:
        fix = "a syncer takes three times the model in float32, a small learner half a GiB"
        return Finding(subject="memory", level="warning", text=text, fix=fix)
    return Finding(subject="memory", level="ok", text=text)


def _files() -> Finding:
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < LEAST_FILES:
        fix = f"say ulimit -n {LEAST_FILES if hard == resource.RLIM_INFINITY else min(hard, LEAST_FILES)}"
        return Finding(subject="files", level="warning", text=f"at most {most} open files", fix=fix)
    return Finding(subject="files", level="ok", text=f"at most {most} open files")


def _disk(directory: Path, clock: Clock) -> Iterator[Finding]:
    try:
        free = shutil.disk_usage(directory).free
        disk = measure_disk(directory, clock)
    except OSError as error:
        fix = "name a directory that can be written with --directory"
        text = f"{directory}: {error.strerror or error}"
        yield Finding(subject="disk", level="wrong", text=text, fix=fix)
        return
    text = f"{free / GIB:.1f} GiB free in {directory}"
    if free < LEAST_FREE_GIB * GIB:
        fix = "a syncer keeps about 24 bytes a parameter"
        yield Finding(subject="disk", level="warning", text=text, fix=fix)
    else:
        yield Finding(subject="disk", level="ok", text=text)
    text = f"a commit is forced in {1e3 * disk.forced_s:.1f} ms, then {disk.bytes_per_s / 1e6:.0f} MB/s"
    if disk.forced_s > SLOW_FORCE_S:
        fix = 'every round waits for it: use a local disk, or run.durability = "interval"'
        yield Finding(subject="disk", level="warning", text=text, fix=fix)
    else:
        yield Finding(subject="disk", level="ok", text=text)


def _port(listen: str) -> Finding:
    try:
        host, port = host_and_port(listen)
        with socket.create_server((host, port), family=family_of(host)):
            return Finding(subject="port", level="ok", text=f"{listen} can be listened on")
    except AddressError as error:
        return Finding(subject="port", level="wrong", text=f"--listen {error.where}: {error.what}", fix=error.fix)
    except OSError as error:
        fix = "fine if a syncer runs there; else name another with --listen"
        text = f"{listen}: cannot be listened on ({error.strerror or error})"
        return Finding(subject="port", level="warning", text=text, fix=fix)


def _syncer(url: str, token: str | None, clock: Clock, tls: ssl.SSLContext | None = None) -> Iterator[Finding]:
    try:
        status = fetch_status(url, token=token, tls=tls)
        address = SyncerAddress.parse_all(url)[0]
    except GruppettoError as error:
        yield Finding(
            subject="syncer", level="wrong", text=str(error), fix="start it, or check the address and the way"
        )
        return
    yield Finding(subject="syncer", level="ok", text=f"{url} is at round {status['round']}, {status.get('phase')}")
    try:
        apart_s = _clock_apart_s(address, tls)
        line = measure_line(address, clock, token=token, tls=tls)
    except (OSError, http.client.HTTPException) as error:
        yield Finding(subject="link", level="wrong", text=f"{url}: {error}", fix="check the way to it")
        return
    if apart_s is not None and abs(apart_s) > CLOCKS_APART_S:
        fix = "nothing is decided by it, but logs and reports will not line up: set the clocks (NTP)"
        text = f"{abs(apart_s):.0f} s {'ahead of' if apart_s > 0 else 'behind'} the syncer's"
        yield Finding(subject="clock", level="warning", text=text, fix=fix)
    elif apart_s is not None:
        yield Finding(subject="clock", level="ok", text="within seconds of the syncer's")
    wide = f"{line.bytes_per_s * 8e-9:.3g} Gbit/s down" if line.bytes_per_s else "no weights yet to measure it with"
    yield Finding(subject="link", level="ok", text=f"{1e3 * line.latency_s:.1f} ms one way, {wide}")


def measure_line(
    address: SyncerAddress, clock: Clock, *, token: str | None = None, tls: ssl.SSLContext | None = None
) -> Line:
    """Half of a small request and its answer; bytes a second of the weights, 0 while there are none. Raises OSError."""
    line = _connect(address, tls)
    try:
        pings = []
        for _ in range(PINGS):
            began = clock.now()
            line.request("GET", "/healthz")
            line.getresponse().read()
            pings.append(clock.now() - began)
        began, came = clock.now(), 0
        line.request("GET", "/v1/model", headers={"Authorization": f"Bearer {token}"} if token else {})
        reply = line.getresponse()
        while reply.status == 200 and came < MOST_BYTES and (chunk := reply.read(1 << 20)):
            came += len(chunk)
        return Line(latency_s=median(pings) / 2, bytes_per_s=came / (clock.now() - began))
    finally:
        line.close()


def _clock_apart_s(address: SyncerAddress, tls: ssl.SSLContext | None) -> float | None:
    """Our clock less the syncer's, to a second or two; None if it does not say."""
    line = _connect(address, tls)
    try:
        line.request("GET", "/healthz")
        said = line.getresponse().headers.get("Date")
        return wall_time_s() - parsedate_to_datetime(said).timestamp() if said else None
    except ValueError:
        return None
    finally:
        line.close()


def _connect(address: SyncerAddress, tls: ssl.SSLContext | None) -> http.client.HTTPConnection:
    if address.secure:
        return http.client.HTTPSConnection(address.host, address.port, timeout=LINE_TIMEOUT_S, context=tls)
    return http.client.HTTPConnection(address.host, address.port, timeout=LINE_TIMEOUT_S)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _available_bytes(read: Callable[[Path], str] = Path.read_text) -> int | None:
    """What can still be had without swapping: of the machine, and of the control group if it has a limit."""
    try:
        lines = dict(line.split(":", 1) for line in read(Path("/proc/meminfo")).splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        return None
    try:
        limit = int(read(Path("/sys/fs/cgroup/memory.max")))
        return min(free, limit - int(read(Path("/sys/fs/cgroup/memory.current"))))
    except (OSError, ValueError):
        return free
