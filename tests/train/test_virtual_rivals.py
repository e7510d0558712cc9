"""Rivals in virtual time: their steps fall where the simulator of clusters has them, and they learn."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from gruppetto.errors import SettingError
from gruppetto.protocol import ProtocolSetting
from gruppetto.sim.failures import Fault
from gruppetto.sim.mishaps import Mishap, MishapKind
from gruppetto.sim.rivals import RestartCosts, data_parallel
from gruppetto.train.data import Data
from gruppetto.train.setting import TrainSetting
from gruppetto.train.virtual import Guest, VirtualSetting
from gruppetto.train.virtual_rivals import RivalCosts, train_rival

ROUNDS = 24
COSTS = RivalCosts(scale_down_s=3.0, scale_up_s=2.0, restart=RestartCosts(restart_s=7.0, checkpoint_s=5.0))
CALM = VirtualSetting(jitter=0.0)
KILLED = replace(CALM, mishaps=(Mishap(at_s=8.5, kind=MishapKind.KILL, who="learner-1", lasts_s=6.0),))


@pytest.fixture
def brief(setting: TrainSetting) -> TrainSetting:
    return replace(setting, eval_every_rounds=12, eval_windows=20)


def protocol(**change: Any) -> ProtocolSetting:
    return ProtocolSetting(**{"num_learners": 2, "num_slots": 4, "sync_period": 4, "rounds": ROUNDS, **change})  # type: ignore[arg-type]


def test_data_parallel_does_again_what_it_had_not_saved(brief: TrainSetting, data: Data) -> None:
    calm = train_rival("data-parallel", brief, data, protocol(), CALM, costs=COSTS)
    killed = train_rival("data-parallel", brief, data, protocol(), KILLED, costs=COSTS)
    assert (calm.ended_s, calm.goodput) == (24.0, 1.0)
    # 3.5 s since the checkpoint at 5 s, and the restart.
    assert killed.ended_s == 24.0 + 3.5 + 7.0
    assert killed.loss == calm.loss < calm.curve[1].loss < calm.curve[0].loss
    start = calm.curve[0]
    assert (start.round, start.at_s, start.consumed) == (0, 0.0, 0) and start == killed.curve[0]
    fault = Fault(at_s=8.5, first_chip=1, num_chips=1, down_s=6.0)
    tally = data_parallel([fault], chips=2, horizon_s=killed.ended_s, costs=COSTS.restart)
    assert killed.goodput == pytest.approx(tally.goodput)


def test_elastic_goes_on_with_those_who_are_there(brief: TrainSetting, data: Data) -> None:
    calm = train_rival("elastic", brief, data, protocol(), CALM, costs=COSTS)
    killed = train_rival("elastic", brief, data, protocol(), KILLED, costs=COSTS)
    assert (calm.ended_s, calm.goodput) == (24.0, 1.0)
    # Up to 8 s two a second; from 11.5 s one; the other is back at 14.5 s, and taken in until 16.5 s.
    assert killed.ended_s == 16.5 + math.ceil((48 - 16 - 3) / 2)
    assert killed.loss != calm.loss and killed.loss == pytest.approx(calm.loss, rel=0.2)
    guest = replace(CALM, guests=(Guest(name="guest", joins_s=4.0, leaves_s=10.0),))
    guided = train_rival("elastic", brief, data, protocol(), guest, costs=COSTS)
    # Three from 6 s to 10 s, and a pause of 3 s.
    assert guided.ended_s == 13.0 + (48 - 8 - 12) / 2


def test_diloco_waits_for_the_last_one_and_learns(brief: TrainSetting, data: Data) -> None:
    calm = train_rival("diloco", brief, data, protocol(), CALM, costs=COSTS)
    killed = train_rival("diloco", brief, data, protocol(), KILLED, costs=COSTS)
    assert (calm.ended_s, calm.goodput) == (24.0, 1.0)
    # Gone at 8.5 s, in its ninth step; itself again at 16.5 s, three seconds of it behind.
    assert killed.ended_s == 24.0 + 8.5
    assert killed.loss == calm.loss and calm.curve[1].loss < 0.6 * math.log(256)


def test_diloco_ends_with_a_shorter_period_on_as_many_tokens(brief: TrainSetting, data: Data) -> None:
    whole = train_rival("diloco", brief, data, protocol(rounds=8, sync_period=4), CALM, costs=COSTS)
    cut = train_rival("diloco", brief, data, protocol(rounds=8, sync_period=6), CALM, costs=COSTS)
    assert (whole.ended_s, cut.ended_s) == (8.0, 8.0)
    assert cut.curve[-1].round == 8 and cut.curve[-1].consumed == whole.curve[-1].consumed
    # Shorter than a period: the mean of the learners, wherever η and μ would have carried it.
    plain = train_rival("diloco", brief, data, protocol(rounds=8, sync_period=9), CALM, costs=COSTS)
    assert len(plain.curve) == 2 and plain.loss < plain.curve[0].loss


def test_what_a_rival_cannot_do_is_refused(brief: TrainSetting, data: Data) -> None:
    guest = VirtualSetting(guests=(Guest(name="guest", joins_s=4.0),))
    with pytest.raises(SettingError, match="knows no guests"):
        train_rival("diloco", brief, data, protocol(), guest)
    with pytest.raises(SettingError, match="is no rival"):
        train_rival("single", brief, data, protocol())  # type: ignore[arg-type]
