"""How soon is a killed learner useful again, and what is the state of a peer worth?

    python experiments/recovery.py seconds --kills 3       real processes: kill -9, start again, for each rung
    python experiments/recovery.py loss --seeds 3           virtual training: what it does to the loss

``seconds`` runs a syncer and three learners (0.9M parameters) and kills one again and again. From the kill to the close
of the first round that the new process is part of, as the trace says; how much of that is the start of a Python process
with torch in it, the process says itself; the rest is Gruppetto's.

``loss`` trains four learners of 30,000 parameters in virtual time. Every so many rounds one of them dies and is back
half a step later: its work since its bases is gone, and its optimizer is that of a peer (``peer``), or fresh with
(``rewarm``) or without (``fresh``) a ramp of 20 steps. The figure is the held-out loss at the end, minus that of the
same seed without any death.

Results are written after every run; a second start does only what is missing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RUNGS = ("peer", "checkpoint", "syncer")
MODES = ("none", "peer", "fresh", "rewarm")
STUDENT_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}
REWARM_STEPS = 20
TOML = """
[run]
num_learners = 3
rounds = 100000
[model]
dim = 128
layers = 4
heads = 4
ffn_dim = 384
context = 128
[train]
batch_size = 2
"""


# ── seconds ──────────────────────────────────────────────────────────────────────────────────────────────────────


def ride(directory: Path, name: str, rung: str, cache: Path) -> None:
    """One learner, in a process of its own."""
    spawned = float(os.environ["SPAWNED"])
    import torch

    torch.set_num_threads(1)
    from gruppetto import Learner
    from gruppetto.attach.checkpoints import Checkpoints
    from gruppetto.config import load_run
    from gruppetto.launch.ask import find_endpoint
    from gruppetto.runtime.clock import wall_time_s
    from gruppetto.train.batches import Batches
    from gruppetto.train.data import open_data
    from gruppetto.train.inner import adamw, learning_rate
    from gruppetto.train.model import build
    from gruppetto.train.step import backward, update

    setting = load_run(directory / "run.toml").train
    data = open_data(setting, cache)
    model = build(setting.model, data.tokenizer.vocab_size)
    optimizer = adamw(model, setting.inner)
    saved = Checkpoints(directory / name, every_steps=20) if rung == "checkpoint" else None
    while (endpoint := find_endpoint(directory / "syncer")) is None:
        time.sleep(0.05)
    print("start", wall_time_s() - spawned, flush=True)
    how: dict[str, Any] = {"donate": "auto" if rung == "peer" else None, "checkpoints": saved}
    with Learner(
        model, optimizer, syncer=endpoint.url, name=name, tokens_per_step=setting.tokens_per_step, quiet=True, **how
    ) as learner:
        batches = Batches.of(data, setting, slot=learner.slot, cursor=learner.cursor)
        for batch in learner.until_finished(batches):
            backward(model, batch)
            learner.cursor = batches.cursor
            rate = learning_rate(setting.inner, learner.round, 1000)
            update(model, optimizer, rate=rate, clip_norm=setting.inner.clip_norm)


def kill_again_and_again(rung: str, kills: int, cache: Path) -> list[dict[str, float]]:
    """The recoveries of one run, in seconds."""
    from gruppetto.launch.ask import fetch_status, find_endpoint
    from gruppetto.runtime.clock import wall_time_s
    from gruppetto.trace.metrics import measure

    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        (directory / "run.toml").write_text(TOML)
        command = [sys.executable, "-m", "gruppetto", "syncer", str(directory / "run.toml")]
        command += ["--state", str(directory / "syncer"), "--trace", str(directory / "trace.jsonl")]
        syncer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        starts: list[float] = []

        def start(name: str) -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, __file__, "ride", str(directory), name, rung, str(cache)],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "SPAWNED": repr(wall_time_s()), "OMP_NUM_THREADS": "1"},
            )

        def merged(name: str) -> int:
            endpoint = find_endpoint(directory / "syncer")
            if endpoint is None:
                return 0
            return int(fetch_status(endpoint.url, token=None)["learners"].get(name, {}).get("merged_rounds", 0))

        learners = {name: start(name) for name in ("a", "b", "c")}
        try:
            for _ in range(kills):
                before = merged("b")
                while merged("b") < before + 30:
                    time.sleep(0.2)
                learners["b"].send_signal(signal.SIGKILL)
                learners["b"].wait()
                learners["b"] = start("b")
                assert learners["b"].stdout is not None
                starts.append(float(learners["b"].stdout.readline().split()[1]))
            before = merged("b")
            while merged("b") < before + 2:
                time.sleep(0.1)
        finally:
            processes: list[subprocess.Popen[Any]] = [*learners.values(), syncer]
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()
        found = [r for r in measure(directory / "trace.jsonl").recoveries if r.learner == "b"]
    assert len(found) == kills and all(r.source.split()[0] == rung for r in found), found
    return [
        {"seconds": r.seconds, "start": started, "search": r.search_s or 0.0, "mb": r.payload_bytes / 1e6}
        for r, started in zip(found, starts, strict=True)
    ]


def seconds(args: argparse.Namespace) -> None:
    done = read(args.out)
    for rung in RUNGS:
        name = f"seconds-{rung}"
        if name not in done:
            done[name] = kill_again_and_again(rung, args.kills, args.cache.resolve())
            write(args.out, done)
    print("| state from | kills | kill to merged again, s (median, worst) | of it starting the process | beyond it |")
    print("|---|---|---|---|---|")
    for rung in RUNGS:
        found = done[f"seconds-{rung}"]
        total = [each["seconds"] for each in found]
        start = statistics.median(each["start"] for each in found)
        beyond = statistics.median(each["seconds"] - each["start"] for each in found)
        print(
            f"| {rung} | {len(found)} | {statistics.median(total):.1f}, {max(total):.1f} | {start:.1f} | {beyond:.1f} |"
        )


# ── loss ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def train(mode: str, seed: int, rounds: int, every: int, cache: Path) -> float:
    """The held-out loss at the end of a run in which one learner after the other dies, and is soon back."""
    import torch

    torch.set_num_threads(1)
    from gruppetto.protocol import ProtocolSetting
    from gruppetto.sim.mishaps import Mishap, MishapKind
    from gruppetto.train.data import open_data
    from gruppetto.train.setting import ModelSetting, TrainSetting
    from gruppetto.train.virtual import VirtualSetting, train_virtually

    model = ModelSetting(dim=32, layers=2, heads=2, ffn_dim=96, context=64)
    setting = TrainSetting(
        model=model, batch_size=4, eval_every_rounds=rounds, eval_windows=256, checkpoint_every_rounds=0
    ).seeded(seed)
    deaths = range(1, rounds // every + 1) if mode != "none" else ()
    virtual = VirtualSetting(
        mishaps=tuple(
            Mishap(at_s=float(n * every), kind=MishapKind.KILL, who=f"learner-{n % 4}", lasts_s=0.5) for n in deaths
        ),
        donates=mode == "peer",
        rewarm_steps=REWARM_STEPS if mode == "rewarm" else 0,
    )
    return train_virtually(
        setting, open_data(setting, cache), ProtocolSetting(num_learners=4, rounds=rounds), virtual
    ).loss


def loss(args: argparse.Namespace) -> None:
    done = read(args.out)
    for seed in range(args.seeds):
        for mode in MODES:
            name = f"loss-{mode}-every{args.every if mode != 'none' else 0}-T{args.rounds}-s{seed}"
            if name not in done:
                done[name] = train(mode, seed, args.rounds, args.every, args.cache)
                write(args.out, done)
                print(f"{name}: {done[name]:.4f}", flush=True)
    print(
        f"| one of four dies every {args.every} rounds; T = {args.rounds} | nats above no death, mean ± 95 % | seeds |"
    )
    print("|---|---|---|")
    for mode in MODES[1:]:
        differences = [
            done[f"loss-{mode}-every{args.every}-T{args.rounds}-s{seed}"]
            - done[f"loss-none-every0-T{args.rounds}-s{seed}"]
            for seed in range(args.seeds)
        ]
        mean, n = statistics.fmean(differences), len(differences)
        half = STUDENT_95.get(n, 1.96) * statistics.stdev(differences) / math.sqrt(n) if n > 1 else math.nan
        print(f"| {mode} | {mean:+.4f} ± {half:.4f} | {n} |")


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def write(path: Path, done: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dict(sorted(done.items())), indent=1) + "\n")


def main() -> None:
    if sys.argv[1:2] == ["ride"]:
        ride(Path(sys.argv[2]), sys.argv[3], sys.argv[4], Path(sys.argv[5]))
        return
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("what", choices=("seconds", "loss"))
    ask.add_argument("--kills", type=int, default=3)
    ask.add_argument("--seeds", type=int, default=3)
    ask.add_argument("--rounds", type=int, default=600)
    ask.add_argument("--every", type=int, default=100)
    ask.add_argument("--cache", type=Path, default=Path(".cache/experiments"))
    ask.add_argument("--out", type=Path, default=Path("experiments/results/recovery.json"))
    args = ask.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    {"seconds": seconds, "loss": loss}[args.what](args)


if __name__ == "__main__":
    main()
