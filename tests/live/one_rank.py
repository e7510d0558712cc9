"""One process of a learner, for test_ranks: run by ``runpy`` with ``told``, a dictionary of what it is to do."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import runpy
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import gruppetto
import gruppetto.data
from gruppetto.attach import deserting, taking
from gruppetto.attach.part import Parts
from gruppetto.attach.ranks import Ranks
from gruppetto.errors import ConnectionLost, GruppettoError
from gruppetto.runtime.joining import Visit
from gruppetto.train.batches import Batches
from gruppetto.train.inner import adamw
from gruppetto.train.model import PRESETS, build
from gruppetto.train.order import Slot
from gruppetto.train.setting import InnerSetting
from gruppetto.train.sharded import gather_place, shard
from gruppetto.train.step import train_step

VOCABULARY, BATCH = 23, 12


class Net(nn.Module):
    """Tied weights, rows that no number of ranks divides, one element that only one rank can have."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.a, self.b = nn.Linear(8, 6), nn.Linear(6, 8)
        self.scale = nn.Parameter(torch.tensor([0.7]))

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.b(torch.tanh(self.a(self.embed(ids)))) * self.scale
        return nn.functional.linear(hidden, self.embed.weight)


def full(tensor: Tensor) -> Tensor:
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach().clone()


def made(told: dict[str, Any]) -> nn.Module:
    """The same weights everywhere, spread as it is told."""
    torch.set_num_threads(1)
    rank, size = told["rank"], told["size"]
    if size > 1:
        dist.init_process_group("gloo", init_method=told["rendezvous"], rank=rank, world_size=size)
    model: nn.Module = Net()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=draw)
    if told["kind"] == "fsdp" and size > 1:
        fully_shard(model)
    elif told["kind"] == "tp":
        ways = {"a": ColwiseParallel(), "b": RowwiseParallel()}  # rows, and columns, which have to be gathered
        parallelize_module(model, init_device_mesh("cpu", (size,)), ways)
    elif told["kind"] == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    return model


def never(*_: object) -> Any:
    raise ConnectionLost("it has never come")


def ride(told: dict[str, Any]) -> None:
    rank, size, name, out = told["rank"], told["size"], told["name"], Path(told["out"])
    model = made(told)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    if rank == 1 and told.get("cannot") == "fetch":
        Visit.fetch_part = never  # type: ignore[method-assign]
    elif rank == 1 and told.get("cannot") == "begin":
        taking.put_in = never  # type: ignore[assignment]
    lockstep = {"max_run_ahead": 0, "run_ahead_timeout_s": 60.0} if told["lockstep"] else {}
    learner = gruppetto.Learner(
        model,
        optimizer,
        syncer=told["url"],
        name=name,
        tokens_per_step=BATCH,
        quiet=True,
        leave_on_sigterm=True,
        checkpoints=gruppetto.Checkpoints(told["keeps"], every_steps=2) if told.get("keeps") else None,
        on_checkpoint=Parts(Path(told["parts"]), model, optimizer, extra=lambda: {"who": name, "draw": torch.ones(3)})
        if told.get("parts")
        else None,
        **lockstep,
    )
    if told.get("load"):
        put(told["load"], model, optimizer, learner)

    def batches() -> Iterator[Tensor]:
        while True:
            draw = torch.Generator().manual_seed(1000 * sum(map(ord, name)) + learner.cursor)
            yield torch.randint(VOCABULARY, (BATCH,), generator=draw)

    with (out / f"{name}-{rank}.jsonl").open("a") as log, learner:
        for ids in learner.until_finished(batches()):
            mine = ids if told["kind"] == "tp" else ids.view(size, -1)[rank]
            nn.functional.cross_entropy(model(mine), (mine * 5 + 1) % VOCABULARY).backward()
            optimizer.step()
            optimizer.zero_grad()
            bits = b"".join(full(p).numpy().tobytes() for p in model.parameters())
            line = [learner.round, learner.lr_factor, hashlib.sha256(bits).hexdigest()]
            log.write(json.dumps(line) + "\n")
            log.flush()
            if learner.metrics()["gruppetto/steps"] == told.get("break_at"):
                break
            if learner.round == told.get("stop_at"):
                if told["own"]:
                    store = gruppetto.Checkpoints(told["save"])
                    assert store.save(model, optimizer, learner, extra={"who": name})
                    store.wait()
                    break
                state = {"learner": learner.state_dict()}
                state["model"], state["optimizer"] = get_state_dict(model, optimizer)
                checkpoint.save(state, checkpoint_id=told["save"], no_dist=size == 1)
                break
    weights = {name.removeprefix("module."): full(p) for name, p in model.named_parameters()}
    torch.save(weights, out / f"{name}-{rank}.pt")


def signs(model: nn.Module) -> dict[str, Tensor]:
    """By parameter: numbers of which no two are alike."""
    found, at = {}, 1
    for name, parameter in model.named_parameters():
        numel = full(parameter).numel()
        found[name.removeprefix("module.")] = torch.arange(at, at + numel, dtype=torch.float32).view(parameter.shape)
        at += numel
    return found


def heir(told: dict[str, Any]) -> None:
    """Rides with gradients of zero, which leave one of the moments as it is; the first one signs it. What each rank has
    of it when it begins is written down."""
    rank, name, out = told["rank"], told["name"], Path(told["out"])
    model = made(told)
    model.register_buffer("told", torch.full((3,), 7.0 if told.get("signs") else 0.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True, weight_decay=0.0, foreach=False)
    fetch, cuts = Visit.fetch_part, list[str]()

    async def fetch_part(self: Visit, manifest: Any) -> Any:
        cuts.append(manifest.cut)
        if told.get("fails") and len(cuts) == 1:
            raise ConnectionLost("it has never come")
        return await fetch(self, manifest)

    Visit.fetch_part = fetch_part  # type: ignore[method-assign]
    learner = gruppetto.Learner(
        model, optimizer, syncer=told["url"], name=name, tokens_per_step=BATCH, quiet=True, leave_on_sigterm=True
    )
    with (out / f"{name}-{rank}.jsonl").open("a") as log, learner:
        names = {id(parameter): key.removeprefix("module.") for key, parameter in model.named_parameters()}
        moments = {names[id(p)]: full(state["max_exp_avg_sq"]) for p, state in optimizer.state.items()}
        kinds = {type(state["max_exp_avg_sq"].data) is type(p.data) for p, state in optimizer.state.items()}
        bases = {key: full(base) for key, base in learner.state_dict().items() if key.startswith("base.")}
        found = {"from": learner.began_from, "visits": len(cuts), "moments": moments, "alike": kinds}
        torch.save({**found, "bases": bases, "told": model.told}, out / f"{name}-{rank}.began")
        share = (0, 1) if told["kind"] == "tp" else None  # all ranks of it train on the same
        data = gruppetto.data.slots(range(10_000)).of(learner, batch_size=3, collate=list, share=share)
        for step, items in enumerate(learner.until_finished(data)):
            ids = torch.tensor(items) % VOCABULARY
            (nn.functional.cross_entropy(model(ids), ids) * 0).backward()
            optimizer.step()
            if step == 0 and told.get("signs"):
                for key, values in signs(model).items():
                    next(state for p, state in optimizer.state.items() if names[id(p)] == key)["max_exp_avg_sq"].copy_(
                        values
                    )
            place = [learner.place.incarnation, learner.slot, learner.place.cursor]
            log.write(json.dumps([learner.round, learner.lr_factor, items, place]) + "\n")
            log.flush()
            time.sleep(0.1)


def put(place: str, model: nn.Module, optimizer: torch.optim.Optimizer, learner: gruppetto.Learner) -> None:
    """All three from a checkpoint of torch's or of ours, whatever number of ranks has saved it."""
    store = gruppetto.Checkpoints(place)
    newest = store.newest()
    if newest is not None:
        assert store.load(newest, model, optimizer, learner) == {"who": learner.name}
        return
    state: dict[str, Any] = {"learner": learner.state_dict()}
    state["model"], state["optimizer"] = get_state_dict(model, optimizer)
    checkpoint.load(state, checkpoint_id=place, no_dist=not dist.is_initialized())
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    learner.load_state_dict(state["learner"])


def as_torchrun(told: dict[str, Any]) -> None:
    """What torchrun tells its processes."""
    _, _, port = told["rendezvous"].rpartition(":")
    rank, size = str(told["rank"]), str(told["size"])
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}


def example(told: dict[str, Any]) -> None:
    """A whole program."""
    as_torchrun(told)
    sys.argv = ["fsdp2.py", "--syncer", told["url"], "--name", told["name"]]
    runpy.run_path(told["kind"], run_name="__main__")


def reference(told: dict[str, Any]) -> None:
    """Three steps of the reference trainer, without a run."""
    as_torchrun(told)
    place, setting = gather_place(), PRESETS["tiny"]
    model = build(setting, VOCABULARY)
    if place.size > 1:
        shard(model)
    optimizer, slot = adamw(model, InnerSetting()), Slot(seed=0, slot=0, num_slots=1, num_windows=40)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 40 * 16, dtype=np.uint16)
    parts = place.part_of(Batches(tokens, context=16, batch_size=4, slot=slot))
    for batch in itertools.islice(parts, 3):
        train_step(model, optimizer, batch, rate=0.01, clip_norm=0.1)
    weights = {name: full(p) for name, p in model.named_parameters()}
    torch.save(weights, Path(told["out"]) / f"{told['name']}-{told['rank']}.pt")


def meeting(told: dict[str, Any]) -> None:
    """Rank 0 waits for one that does not come."""
    as_torchrun(told)
    dist.init_process_group("gloo")
    ranks = Ranks(dist.group.WORLD)
    if ranks.leads:
        ranks.lowest([1])


def deserter(told: dict[str, Any]) -> None:
    """Rank 1 has less data than rank 0, which then gathers a parameter that never comes together."""
    deserting.DESERTED_S = 1.0
    ride({**told, "kind": "fsdp", "break_at": 3 if told["rank"] else None})


def accelerated(told: dict[str, Any]) -> None:
    """Accelerate around a sharded model: some steps, a checkpoint, and some more from there. It shards nothing on CPU
    itself, and ``prepare`` would put such a model into DDP there."""
    from accelerate import Accelerator

    from gruppetto.attach.integrations.accelerate import attach

    as_torchrun(told)
    os.environ["ACCELERATE_USE_CPU"] = "1"
    dist.init_process_group("gloo")
    kept, out = Path(told["out"]) / "kept", Path(told["out"])
    cursors = []
    for steps in (4, 2):
        accelerator, model = Accelerator(cpu=True), Net()
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        learner = attach(accelerator, model, optimizer, syncer=told["url"], name="x", tokens_per_step=BATCH, quiet=True)
        if kept.exists():
            accelerator.load_state(str(kept))
        cursors.append(learner.state_dict()["core"])
        with learner:
            for _ in range(steps):
                ids = torch.randint(VOCABULARY, (BATCH,), generator=torch.Generator().manual_seed(learner.cursor))
                accelerator.backward(nn.functional.cross_entropy(model(ids), (ids * 5 + 1) % VOCABULARY))
                optimizer.step()
                optimizer.zero_grad()
            if steps == 4:
                accelerator.save_state(str(kept))
            else:
                learner.leave()  # behind the loop, as the callbacks do: rank 0 does not wait for a step of the others
    kinds = {type(parameter.data).__name__ for parameter in model.parameters()}
    found = {
        "counters": [json.loads(text) for text in cursors],
        "kinds": sorted(kinds),
        "ranks": learner.ranks is not None,
    }
    (out / f"{told['name']}-{told['rank']}.jsonl").write_text(json.dumps(found) + "\n")


if __name__ == "one_rank":
    task: dict[str, Any] = globals()["told"]
    code = 0
    try:
        ways = {"example": example, "reference": reference, "meeting": meeting, "accelerated": accelerated}
        ways |= {"deserter": deserter, "heir": heir}
        ways.get(task["name"].partition("-")[0], ride)(task)
    except (GruppettoError, RuntimeError) as wrong:  # the latter from a collective of the loop's own
        Path(task["out"], f"{task['name']}-{task['rank']}.failed").write_text(str(wrong))
        code = 3
    os._exit(code)  # what gloo's threads still hold is not to be taken down with the interpreter
