"""The seats of a run with several shards, and what is said of all of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gruppetto.config import load_run
from gruppetto.errors import AddressError, SettingError
from gruppetto.launch.ask import GlobalModel
from gruppetto.launch.ask_shards import assembled, shard_lines, with_shards
from gruppetto.launch.engine import ThisMachine
from gruppetto.launch.routes import PlainRoutes
from gruppetto.launch.shards import AllSyncers
from gruppetto.runtime.tensorfile import tensors_header


def test_every_shard_has_a_state_and_seats_of_its_own(tmp_path):
    config = load_run(overrides={"syncer.shards": 2, "launch.standby": True})
    syncers = AllSyncers(config, tmp_path, PlainRoutes(), ThisMachine())
    assert [seat.name for seat in syncers.seats] == ["syncer", "standby", "syncer-2", "standby-2"]
    assert [seat.role for seat in syncers.seats] == ["syncer", "standby", "syncer-2", "standby-2"]
    assert [shard.state for shard in syncers.shards] == [tmp_path / "syncer", tmp_path / "syncer-2"]
    assert len({seat.url for seat in syncers.seats}) == 4
    assert syncers.ask() is None and list(syncers.children()) == []
    alone = AllSyncers(replace(config, syncer=replace(config.syncer, shards=1)), tmp_path, PlainRoutes(), ThisMachine())
    assert [seat.name for seat in alone.seats] == ["syncer", "standby"]


class Elsewhere(ThisMachine):
    host = "10.0.0.1"


def test_an_engine_places_no_shards(tmp_path):
    with pytest.raises(SettingError, match=r"syncer\.shards: is 2, and an engine places one syncer; use 1, or"):
        AllSyncers(load_run(overrides={"syncer.shards": 2}), tmp_path, PlainRoutes(), Elsewhere())


@pytest.mark.parametrize(
    ("shards", "said"),
    [
        (0, "syncer.shards: is 0; use 1 to 256"),
        (257, "syncer.shards: is 257; use 1 to 256"),
        (25, "syncer.shards: is 25, but the run has 24 fragments; use 24 or fewer, or raise run.num_fragments"),
    ],
)
def test_impossible_numbers_of_shards_are_refused(shards, said):
    with pytest.raises(SettingError) as found:
        load_run(overrides={"syncer.shards": shards})
    assert said in str(found.value)


FIRST = {"round": 9, "phase": "finished", "shard": "1/3", "shards": {"2": "http://b:1"}}


def test_a_run_is_finished_when_all_of_its_shards_are():
    done = {"round": 9, "phase": "finished", "waiting_for": "nothing"}
    assert with_shards(FIRST, {"2": done, "3": done})["phase"] == "finished"
    assert with_shards(FIRST, {"2": {**done, "phase": "waiting"}, "3": done})["phase"] == "waiting"
    told = with_shards(FIRST, {"2": done, "3": None})
    assert told["phase"] == "silent"
    assert shard_lines(told) == [
        "shard 2/3 round 9, finished; waiting for nothing (http://b:1)",
        "! shard 3/3 does not answer (it has not said where it is): its fragments are not merged until it is back",
    ]


def part(shard, round, **pieces):
    said = {"round": str(round), "shard": shard, "shapes": json.dumps([["w", [2, 2]], ["b", [1]]])}
    header = tensors_header([(name.replace("_", "@"), (1 * len(v) // 4,)) for name, v in pieces.items()], said)
    return GlobalModel(round=round, content=header + b"".join(pieces.values()))


def test_parts_that_make_up_no_model_are_refused():
    whole = [part("1/2", 7, w_0=b"\0" * 8, b_0=b"\1" * 4), part("2/2", 5, w_2=b"\2" * 8)]
    made = assembled(whole)
    length = int.from_bytes(made.content[:8], "little")
    header = json.loads(made.content[8 : 8 + length])
    assert made.round == 5 and header["__metadata__"]["rounds"] == "1/2: 7; 2/2: 5"
    assert made.content[8 + length :] == b"\0" * 8 + b"\2" * 8 + b"\1" * 4
    assert header["w"]["shape"] == [2, 2]
    with pytest.raises(AddressError, match="the shards do not make up one model"):
        assembled(whole[:1])
