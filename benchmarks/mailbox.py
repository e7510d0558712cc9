"""What a mailbox costs in requests and time: learners with steps of a given length, a store on loopback.

    python benchmarks/mailbox.py [--learners 2] [--step 1.0] [--seconds 30] [--poll 0.25]

Says requests per hour of the syncer and of one learner, beside the formula of docs/mailbox.md, and the time from one
round to the next.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import re
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path

import torch
from moto.server import ThreadedMotoServer
from torch import nn

import gruppetto
from gruppetto.protocol import ProtocolSetting
from gruppetto.runtime.mailbox.rhythm import REST, looks_per_event
from gruppetto.runtime.serving import run_syncer
from gruppetto.runtime.setting import SyncerSetting

SAID = re.compile(r"(\d+) (put|list|get|delete)")


class Accounts(logging.Handler):
    """Takes down what each has asked of the store."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.of: dict[str, list[Counter[str]]] = {"gruppetto.syncer": [], "gruppetto.learner": []}

    def emit(self, record: logging.LogRecord) -> None:
        if (text := record.getMessage()).startswith("asked of "):
            self.of[record.name].append(Counter({kind: int(n) for n, kind in SAID.findall(text)}))


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument("--learners", type=int, default=2)
    flags.add_argument("--step", type=float, default=1.0)
    flags.add_argument("--seconds", type=float, default=30.0)
    flags.add_argument("--poll", type=float, default=0.25)
    asked = flags.parse_args()

    os.environ |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    accounts = Accounts()
    for name in ("gruppetto.syncer", "gruppetto.learner"):
        logging.getLogger(name).addHandler(accounts)
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    store = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    store.start()
    endpoint = f"http://127.0.0.1:{store.get_host_and_port()[1]}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/lab", method="PUT")).close()
    box = f"s3://lab/bench?endpoint={endpoint}&region=us-east-1&poll={asked.poll}"

    rounds = int(asked.seconds / asked.step)
    rules = ProtocolSetting(num_fragments=4, sync_period=4, num_learners=asked.learners, rounds=rounds, liveness_s=30.0)
    setting = SyncerSetting(
        state=Path(tempfile.mkdtemp()),
        listen="127.0.0.1:0",
        mailbox=box,
        goodbye_s=3 * asked.step + 5.0,
        exit_when_finished=True,
    )

    spans: list[float] = []

    def learn(number: int) -> None:
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(24)))
        optimizer = torch.optim.AdamW(model.parameters())
        with gruppetto.Learner(
            model, optimizer, syncer=box, name=f"l{number}", tokens_per_step=1, quiet=True
        ) as learner:
            began, first = time.perf_counter(), learner.round
            for _ in learner.until_finished(itertools.count()):
                time.sleep(asked.step)
                model(torch.randn(8, 64)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            spans.append((time.perf_counter() - began) / max(1, learner.round - first))

    learners = [threading.Thread(target=learn, args=(number,)) for number in range(asked.learners)]
    for thread in learners:
        thread.start()
    began = time.perf_counter()
    run_syncer(rules, setting)
    served_s = time.perf_counter() - began
    for thread in learners:
        thread.join()
    lasted = {"gruppetto.syncer": served_s, "gruppetto.learner": rounds * spans[0]}
    looks = looks_per_event(asked.step, asked.poll, REST * asked.poll)
    print(f"{rounds} rounds, {spans[0]:.2f} s each; looks per step by the formula: {looks:.1f}")
    for who, of in accounts.of.items():
        one, hours = of[-1], lasted[who] / 3600
        print(f"{who}: " + ", ".join(f"{one[kind] / hours:,.0f} {kind}/h" for kind in ("put", "list", "get", "delete")))


if __name__ == "__main__":
    main()
