"""A loop with Accelerate as a learner: besides the import, two lines are Gruppetto's, marked.

    gruppetto syncer --listen 127.0.0.1:7171 --state /tmp/accelerate-loop
    python examples/accelerate_loop.py --name a

``accelerator.save_state`` and ``load_state`` take the learner along.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gruppetto import GruppettoError
from gruppetto.attach.integrations.accelerate import attach

BATCH, ACCUMULATED = 16, 2


def main(arguments: list[str] | None = None) -> nn.Module:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--syncer", default="http://127.0.0.1:7171")
    parser.add_argument("--name", required=True)
    parser.add_argument("--epochs", type=int, default=1000)
    args = parser.parse_args(arguments)

    points = torch.rand(1024, 2) * 2 - 1
    inside = (points.norm(dim=1) < 0.8).float()[:, None]
    loader = DataLoader(TensorDataset(points, inside), batch_size=BATCH, shuffle=True)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATED, cpu=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    how = {"syncer": args.syncer, "name": args.name, "tokens_per_step": BATCH * ACCUMULATED}
    with attach(accelerator, model, optimizer, **how) as learner:  # 1
        for epoch in range(args.epochs):
            for point, label in learner.until_finished(loader):  # 2
                with accelerator.accumulate(model):
                    loss = nn.functional.binary_cross_entropy_with_logits(model(point), label)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
            if learner.finished:
                break
            print(f"epoch {epoch:3d}  round {learner.round:5d}  loss {loss.item():.3f}", flush=True)
    return accelerator.unwrap_model(model)


if __name__ == "__main__":
    try:
        main()
    except GruppettoError as error:
        error.exit()  # in one line: what, where, and how to mend it
