"""Virtual training in which everything goes wrong: the books are exact, and nothing depends on who computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gruppetto.errors import RunFailed, SettingError
from gruppetto.protocol import ProtocolSetting
from gruppetto.sim.mishaps import SYNCER, Mishap, MishapKind
from gruppetto.trace.log import TraceWriter
from gruppetto.trace.measures import Measures
from gruppetto.trace.metrics import measure
from gruppetto.train.data import Data
from gruppetto.train.setting import TrainSetting
from gruppetto.train.virtual import Guest, VirtualResult, VirtualSetting, train_virtually

ROUNDS = 40
A, B, C, D = (f"learner-{m}" for m in range(4))


def protocol(**change: Any) -> ProtocolSetting:
    return ProtocolSetting(
        **{"num_learners": 4, "num_slots": 8, "num_fragments": 6, "sync_period": 6, "rounds": ROUNDS, **change}  # type: ignore[arg-type]
    )


def fault(at_s: float, kind: MishapKind, who: str, lasts_s: float, **dials: float) -> Mishap:
    return Mishap(at_s=at_s, kind=kind, who=who, lasts_s=lasts_s, **dials)


EVERYTHING = VirtualSetting(
    uplink="int4",  # what it leaves unsaid is to be saved, and lost, too
    step_s=(1.0, 1.18, 0.9, 1.3),
    latency_s=0.05,
    persist_s=0.02,
    mishaps=(
        fault(5.3, MishapKind.KILL, B, 4.0),
        fault(8.2, MishapKind.SLOW, C, 6.0, share=0.5),
        fault(9.1, MishapKind.STOP, A, 13.0),
        fault(11.0, MishapKind.NAN, D, 3.0),
        fault(13.1, MishapKind.KILL, SYNCER, 2.5),
        fault(17.0, MishapKind.SCALE, D, 4.0),
        fault(18.4, MishapKind.LATENCY, C, 5.0, delay_s=0.4),
        fault(20.6, MishapKind.KILL, D, 2.0),
        fault(21.0, MishapKind.CUT, B, 4.0),
        fault(24.13, MishapKind.KILL, SYNCER, 0.5),
        fault(30.2, MishapKind.LEAVE, C, 0.0),
    ),
    guests=(Guest(name="guest", joins_s=12.4, leaves_s=27.7),),
)


def run(setting: TrainSetting, data: Data, place: Path, **more: Any) -> tuple[VirtualResult, Measures]:
    with TraceWriter(place, {}) as trace:
        result = train_virtually(setting, data, protocol(), more.pop("virtual", EVERYTHING), trace=trace, **more)
    return result, measure(place)


def test_everything_goes_wrong_and_it_learns_with_exact_books_the_same_way_every_time(
    setting: TrainSetting, data: Data, tmp_path: Path
) -> None:
    """Resumed from disk in the middle of it, and trained by two other processes, the bits are those of one run."""
    setting = replace(setting, eval_every_rounds=10)
    places = {round: tmp_path / str(round) for round in (14, 28)}
    whole, found = run(setting, data, tmp_path / "whole.jsonl", checkpoints=places)
    assert whole.loss < 0.9 * whole.evaluations[0][2].loss

    assert found.replay is not None and found.replay.identical, str(found.replay)
    assert found.replay.lives == 3 and found.balanced and found.recorded_tokens == found.tokens
    assert found.tokens["lost"] > 0 and found.tokens["merged"] > 0
    assert {(death.process, death.wall_s) for death in found.deaths} == {
        (B, 5.3), (SYNCER, 13.1), (D, 20.6), (SYNCER, 24.13)
    }  # fmt: skip
    back = {(each.learner, each.cause): each.source.split()[0] for each in found.recoveries}
    assert back[B, "killed"] == back[D, "killed"] == back["guest", "joined"] == "peer"
    assert {source for (_, cause), source in back.items() if cause == "the syncer restarted"} == {"own"}
    assert {"not-finite"} <= found.rejected.keys() and found.clipped.get("norm", 0) > 0
    assert {name for name, each in found.learners.items() if each.states[-1][1] == "left"} == {"guest", C}

    for number, workers in ((14, 1), (28, 2)):
        again = tmp_path / f"from-{number}.jsonl"
        resumed, _ = run(setting, data, again, resume=places[number], workers=workers)
        for ours, theirs in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
            assert torch.equal(ours, theirs), number
        assert whole.curve == resumed.curve
        assert again.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("source", "donates", "every"), [("peer", True, 0), ("checkpoint", False, 5), ("syncer", False, 0)]
)
def test_who_comes_back_takes_the_best_state_there_is(
    setting: TrainSetting, data: Data, tmp_path: Path, source: str, donates: bool, every: int
) -> None:
    killed = VirtualSetting(donates=donates, mishaps=(fault(14.5, MishapKind.KILL, B, 3.0),))
    setting = replace(setting, checkpoint_every_rounds=every)
    _, found = run(setting, data, tmp_path / "trace.jsonl", virtual=killed)
    (back,) = (each for each in found.recoveries if each.cause == "killed")
    assert back.source.split()[0] == source and back.seconds < 8.0


def test_what_nobody_waits_for_does_not_come(setting: TrainSetting, data: Data) -> None:
    gone = VirtualSetting(mishaps=(Mishap(at_s=5.0, kind=MishapKind.KILL, who=SYNCER),))
    with pytest.raises(RunFailed, match="stopped at round"):
        train_virtually(setting, data, protocol(num_learners=1, start_timeout_s=1.0), gone)


def test_worlds_that_cannot_be_are_refused(setting: TrainSetting, data: Data) -> None:
    stranger = VirtualSetting(mishaps=(Mishap(at_s=5.0, kind=MishapKind.KILL, who="emil"),))
    with pytest.raises(SettingError, match="emil is no learner"):
        train_virtually(setting, data, protocol(), stranger)
    crowd = VirtualSetting(guests=tuple(Guest(name=f"g{i}", joins_s=1.0) for i in range(5)))
    with pytest.raises(SettingError, match="9 learners and guests share 8"):
        train_virtually(setting, data, protocol(), crowd)
    with pytest.raises(SettingError, match="loses no round"):
        train_virtually(setting, data, protocol(durability="interval"), EVERYTHING)
