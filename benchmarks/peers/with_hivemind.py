"""``python with_hivemind.py PLACE WORKER [PEER]``: hivemind's optimizer with local updates. PEER: of another one."""

from __future__ import annotations

import sys
from pathlib import Path

import hivemind
import torch
from loop import BATCH, SYNC_EVERY, StepLog, backward, batches, model

place, worker, *peers = Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
if __name__ == "__main__":
    net = model()
    dht = hivemind.DHT(host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=peers, start=True)
    (place / f"{worker}.peer").write_text(str(dht.get_visible_maddrs()[0]))
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="run",
        batch_size_per_step=BATCH,
        target_batch_size=BATCH * SYNC_EVERY * 2,
        params=net.parameters(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        use_local_updates=True,
        matchmaking_time=1.0,
        averaging_timeout=10.0,
        # The defaults are meant for rounds of minutes. Here a request must time out before matchmaking does, progress
        # be told more than once a round, and averaging be over before the next: in the background it is not, and one
        # of the two workers then makes a single step a round.
        averager_opts={"request_timeout": 0.5, "target_group_size": 2, "min_group_size": 2, "initial_group_bits": ""},
        tracker_opts={"min_refresh_period": 0.1, "default_refresh_period": 0.2},
        delay_state_averaging=False,
        verbose=False,
    )
    log = StepLog(place, worker)
    for batch in batches(worker):
        loss = backward(net, batch)
        optimizer.step()
        optimizer.zero_grad()
        log.step(loss)
