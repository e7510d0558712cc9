"""``python alone.py PLACE WORKER``: the loop by itself."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from loop import StepLog, backward, batches, model

place, worker = Path(sys.argv[1]), int(sys.argv[2])
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
log = StepLog(place, worker)
for batch in batches(worker):
    loss = backward(net, batch)
    optimizer.step()
    optimizer.zero_grad()
    log.step(loss)
