"""Learners at three sites and a syncer at a fourth, each a host of its own: what distance, narrow links and cuts cost.

    python benchmarks/networks.py [--cut-s 10] [--seconds 8] [--step-s 0.5] [--width 384] [--only distance ...] [--json]

Real TCP and TLS between network namespaces, over packets that this program delays, drops and translates (root, ``ip``
and tunnel devices; ``gruppetto.chaos.hosts``). ``step`` is the step of the learner that it is worst for, as a share of
the same learner's with nothing between, measured before and after: a pause of ``--step-s`` and a small optimizer, of
which the lower quartile counts, because whatever else a machine does only makes steps longer. ``takes_part`` is the
share of the rounds with a learner's work. ``back_s`` counts from the end of the trouble to the first merged round.
Every run ends with its trace put through a fresh core: ``books`` says whether the ledger balances, the run's own
agrees, and every decision is the same. ``--cut-s 120`` is the long one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gruppetto.chaos.hosts.hosts import Host, Hosts, missing
from gruppetto.chaos.hosts.stage import Seen, Stage
from gruppetto.chaos.hosts.way import FREE, Terms, mbit
from gruppetto.errors import RunFailed

NAME = "syncer.example"
OLD, NEW = ("198.18.0.1", "fd18::1"), ("198.18.0.2", "fd18::2")
SITES = (
    Host(name="anna", addresses=("198.18.1.1",), private="192.168.1.2"),
    Host(name="ben", addresses=("198.18.2.1",), private="192.168.1.2"),
    Host(name="clara", addresses=("fd18::3",)),
)
NAMES = [site.name for site in SITES]
GONE = Terms(cut=True)
FAR = Terms(delay_s=0.1, bytes_per_s=mbit(100))
SETTLE_S = 2.0
BACK_WITHIN_S = 150.0
Row = dict[str, Any]


@contextmanager
def stage(args: argparse.Namespace, *, listen: str = "::", downlink: str = "delta-int4") -> Iterator[Stage]:
    with tempfile.TemporaryDirectory() as place, Hosts([Host(name="syncer", addresses=OLD), *SITES]) as hosts:
        hosts.know("anna", {NAME: OLD})
        with Stage(
            Path(place),
            hosts,
            learners=NAMES,
            syncer=NAME,
            listen=listen,
            step_s=args.step_s,
            width=args.width,
            downlink=downlink,
        ) as made:
            for name in NAMES:
                made.until_merged(name)
            yield made


def under(made: Stage, args: argparse.Namespace, terms: dict[str, tuple[Terms, Terms]]) -> Seen:
    """What is seen with these terms up and down, once the ones before are forgotten."""
    for name in NAMES:
        up, down = terms.get(name, (FREE, FREE))
        made.hosts.set(name, up=up, down=down)
    time.sleep(SETTLE_S)
    moment = made.moment()
    time.sleep(args.seconds)
    return made.since(moment)


def books(made: Stage) -> str:
    """What the whole trace says."""
    found = made.end()
    unbroken = list(found.rounds) == list(range(min(found.rounds), max(found.rounds) + 1))
    same = found.replay is not None and found.replay.identical
    well = found.balanced and found.recorded_tokens == found.tokens and same and unbroken
    return f"{'balance' if well else 'DO NOT BALANCE'}, {found.tokens['lost']:,} lost"


def distance(args: argparse.Namespace) -> Iterator[Row]:
    """Round trips and rates, alike at all sites; and one site that is ten times slower, or slower one way only."""
    links = {
        f"{rtt_ms} ms, {rate} Mbit/s": dict.fromkeys(NAMES, 2 * (Terms(delay_s=rtt_ms / 2000, bytes_per_s=mbit(rate)),))
        for rtt_ms in (50, 200)
        for rate in (1000, 100, 10)
    }
    slow, narrow = Terms(delay_s=0.1, bytes_per_s=mbit(10)), Terms(delay_s=0.1, bytes_per_s=mbit(0.3))
    far = dict.fromkeys(NAMES, (FAR, FAR))
    links["200 ms, 100 Mbit/s, ben 10"] = far | {"ben": (slow, slow)}
    links["200 ms, 100 Mbit/s, ben 0.3 up"] = far | {"ben": (narrow, FAR)}
    lossy = Terms(delay_s=0.1, jitter_s=0.02, bytes_per_s=mbit(100), loss=0.01)
    links["200 ms, 100 Mbit/s, 20 ms of jitter, 1 % lost"] = dict.fromkeys(NAMES, (lossy, lossy))
    with stage(args) as made:
        before = under(made, args, {})
        for what, terms in links.items():
            found = under(made, args, terms)
            after = under(made, args, {})
            usual = {name: (before.step_s[name] + after.step_s[name]) / 2 for name in NAMES}
            before = after
            worst = max(NAMES, key=lambda name: found.step_s[name] / usual[name])
            yield {
                "what": what,
                "step": round(found.step_s[worst] / usual[worst], 4),
                "takes_part": {name: round(found.merged[name], 2) for name in NAMES},
                "rounds_a_step": round(found.rounds * args.step_s / found.seconds, 2),
                "up_mbit_s": round(max(found.up_bytes.values()) * 8e-6 / found.seconds, 2),
                "down_mbit_s": round(max(found.down_bytes.values()) * 8e-6 / found.seconds, 2),
            }
        yield {"what": "all of these", "books": books(made)}


def trouble(args: argparse.Namespace, what: str, do: Callable[[Stage], None], *whom: str) -> Iterator[Row]:
    """Something happens at 200 ms; who is back when, and what training made of it."""
    with stage(args) as made:
        for name in NAMES:
            made.hosts.set(name, up=FAR, down=FAR)
        moment = made.moment()
        time.sleep(args.seconds)
        usual = made.since(moment).step_s
        moment = made.moment()
        do(made)
        back: dict[str, float | str] = {}
        for name in whom:
            try:
                back[name] = round(made.until_merged(name, rounds=1, within_s=BACK_WITHIN_S), 1)
            except RunFailed:
                back[name] = f"not in {BACK_WITHIN_S:g} s"
        found = made.since(moment).step_s
        said = books(made)
        again = {name: int(each["gruppetto/reconnects"]) for name, each in made.metrics().items()}
        yield {
            "what": what,
            "back_s": back,
            "step": round(max(found[name] / usual[name] for name in NAMES), 4),
            "reconnects": again,
            "books": said,
        }


def cut(args: argparse.Namespace) -> Iterator[Row]:
    def silent(made: Stage) -> None:
        made.hosts.set("anna", up=GONE, down=GONE)
        time.sleep(args.cut_s)
        made.hosts.set("anna", up=FAR, down=FAR)

    def cable(made: Stage) -> None:
        made.hosts.plug("anna", into=False)
        time.sleep(args.cut_s)
        made.hosts.plug("anna", into=True)

    def flap(made: Stage) -> None:
        for _ in range(10):
            made.hosts.set("anna", up=GONE, down=GONE)
            time.sleep(0.8)
            made.hosts.set("anna", up=FAR, down=FAR)
            time.sleep(0.7)

    yield from trouble(args, f"anna cut off for {args.cut_s:g} s, silently", silent, "anna")
    yield from trouble(args, f"anna's cable out for {args.cut_s:g} s", cable, "anna")
    yield from trouble(args, "anna's link gone for 0.8 s of every 1.5, ten times", flap, "anna")


def gateways(args: argparse.Namespace) -> Iterator[Row]:
    def forget(made: Stage) -> None:
        translation = made.hosts.internet.ports["anna"].translation
        assert translation is not None
        translation.forget()

    def smaller(made: Stage) -> None:
        small = Terms(delay_s=0.1, bytes_per_s=mbit(100), mtu_bytes=1300)
        made.hosts.set("clara", up=small, down=small)
        time.sleep(SETTLE_S)

    def move(made: Stage) -> None:
        made.hosts.move("syncer", *NEW)
        made.hosts.know("anna", {NAME: NEW})

    yield from trouble(args, "anna's gateway forgets its connections", forget, "anna")
    yield from trouble(args, "packets over 1,300 bytes vanish on clara's way, from now on", smaller, "clara")
    yield from trouble(args, "the syncer has another address, its name leads there", move, *NAMES)


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "distance": distance,
    "cut": cut,
    "gateways": gateways,
}


def shown(row: Row) -> str:
    cells = [f"{row['what']:<52}"]
    for key, text in row.items():
        if isinstance(text, dict):
            text = " ".join(f"{name} {each}" for name, each in text.items())
        if key != "what":
            cells.append(f"{key} {text}")
    return "  ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cut-s", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each condition")
    parser.add_argument("--step-s", type=float, default=0.5)
    parser.add_argument("--width", type=int, default=384, help="of a matrix; 24 of them are the model")
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), default=list(PARTS))
    parser.add_argument("--json", action="store_true", help="one object a line")
    args = parser.parse_args()
    if why := missing(ipv6=True):
        raise SystemExit(f"no hosts can be had here: {why}")
    for part in args.only:
        for row in PARTS[part](args):
            print(json.dumps(row) if args.json else shown(row), flush=True)


if __name__ == "__main__":
    main()
