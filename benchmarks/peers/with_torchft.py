"""``python with_torchft.py PLACE WORKER``: torchft's streaming DiLoCo over gloo, by TORCHFT_LIGHTHOUSE."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import torch
from loop import FRAGMENTS, SYNC_EVERY, StepLog, backward, batches, model
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # does not say that it exports it
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo

place, worker = Path(sys.argv[1]), int(sys.argv[2])
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
    load_state_dict=lambda state: (net.load_state_dict(state["net"]), optimizer.load_state_dict(state["inner"])),
    state_dict=lambda: {"net": net.state_dict(), "inner": optimizer.state_dict()},
    min_replica_size=1,
    use_async_quorum=False,
    timeout=timedelta(seconds=10),
    quorum_timeout=timedelta(seconds=60),
    rank=0,
    world_size=1,
    store_addr="127.0.0.1",
    store_port=store.port,
    replica_id=f"w{worker}",
    hostname="127.0.0.1",
)
outer = [torch.optim.SGD(layer.parameters(), lr=0.7, momentum=0.9, nesterov=True) for layer in net]
log = StepLog(place, worker)
assert len(net) == FRAGMENTS
with DiLoCo(manager, list(net), optimizer, outer, sync_every=SYNC_EVERY, pin_memory=False, fragment_sync_delay=2):
    for batch in batches(worker):
        loss = backward(net, batch)
        optimizer.step()
        optimizer.zero_grad()
        log.step(loss)
