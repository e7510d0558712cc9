"""``python ours.py PLACE WORKER``: a learner. The syncer's state directory is PLACE/syncer."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from loop import StepLog, backward, batches, model

import gruppetto

place, worker = Path(sys.argv[1]), int(sys.argv[2])
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
log = StepLog(place, worker)
with gruppetto.Learner(net, optimizer, syncer=str(place / "syncer"), name=f"w{worker}", tokens_per_step=64):
    for batch in batches(worker):
        loss = backward(net, batch)
        optimizer.step()
        optimizer.zero_grad()
        log.step(loss)
