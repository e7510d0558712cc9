"""One learner of several ranks: FSDP2 under torchrun, on CPU or GPU.

    gruppetto syncer --listen 127.0.0.1:7171 --state /tmp/fsdp2
    torchrun --nproc-per-node 2 --max-restarts 3 examples/fsdp2.py --name a

Every rank has its part of the model and its part of each batch; for the run they are one learner.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import gruppetto
from gruppetto.attach.rendezvous import init_process_group

VOCABULARY, CONTEXT, BATCH = 64, 16, 8


def build() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True)
    blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(VOCABULARY, 32), blocks, nn.Linear(32, VOCABULARY))
    for block in blocks.layers:
        fully_shard(block)
    fully_shard(model)
    return model


def batches(learner: gruppetto.Learner, rank: int, size: int) -> Iterator[Tensor]:
    """This rank's rows of the batches of the learner's data slot, from its cursor on."""
    index = learner.cursor
    while True:
        draw = torch.Generator().manual_seed(1_000_003 * learner.slot + index)
        start = torch.randint(VOCABULARY, (BATCH, 1), generator=draw)
        yield ((start + 3 * torch.arange(CONTEXT)) % VOCABULARY).tensor_split(size)[rank]
        index += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--syncer", default="http://127.0.0.1:7171")
    parser.add_argument("--name", default="a")
    flags = parser.parse_args()
    init_process_group()  # torch's own, which also holds when torchrun has to start the ranks again
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    torch.set_default_device(device)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    tokens = BATCH * CONTEXT  # of the whole learner, all ranks together
    ride = gruppetto.Learner(model, optimizer, syncer=flags.syncer, name=flags.name, tokens_per_step=tokens)  # 1
    with ride as learner:  # 2
        for ids in learner.until_finished(batches(learner, rank, size)):  # 3
            logits = model(ids[:, :-1].to(device))
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten().to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    if rank == 0:
        print(f"left at round {learner.round}, loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except gruppetto.GruppettoError as error:
        error.exit()  # in one line: what, where, and how to mend it
