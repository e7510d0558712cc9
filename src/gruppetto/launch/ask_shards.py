"""Asking the shards of a run, of which each knows its own part: how all stand, and the whole weights."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gruppetto.errors import AddressError, ConnectionLost
from gruppetto.launch.ask import GlobalModel, fetch_model, fetch_status
from gruppetto.launch.at_once import at_once
from gruppetto.runtime.tensorfile import tensors_header

__all__ = ["SILENT_S", "assembled", "fetch_status_of_all", "fetch_whole_model", "shard_lines", "with_shards"]

TOLD = ("round", "phase", "waiting_for", "epoch", "live", "taking_part", "bytes")
"""Of the status of every shard but the first."""
SILENT = "silent"
"""The phase of a shard that does not answer ..."""
SILENT_S = 2.0
"""... within this time, in which the others are shown."""


def fetch_status_of_all(
    url: str, *, token: str | None = None, tls: ssl.SSLContext | None = None, beside: Sequence[str] = ()
) -> dict[str, Any]:
    """What :func:`fetch_status` gives; of a run that several shards serve, the first one's with a word on each other,
    whichever of them is at ``url``; or that of another one, where the first is silent. Raises likewise.

    All are asked at the same time, and have ``SILENT_S`` to answer. ``beside``: where other shards of the run are, as
    far as it is known; the one at ``url`` may then be the silent one.
    """

    def ask(places: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        asks = {
            name: partial(fetch_status, place, token=token, tls=tls, timeout_s=SILENT_S)
            for name, place in places.items()
        }
        return at_once(asks, within_s=SILENT_S)

    heard = ask({place: place for place in (url, *beside)}) if beside else {}
    status = heard.get(url) or next(iter(heard.values()), None) or fetch_status(url, token=token, tls=tls)
    where, (own, of) = status.get("shards", {}), _number(status)
    answers: dict[str, dict[str, Any] | None] = {str(number): None for number in range(1, int(of) + 1)}
    # What is written down may be out of date, and another run be there by now.
    answers |= {_number(each)[0]: each for each in heard.values() if each.get("run_id") == status.get("run_id")}
    answers[own] = status
    silent = {url, *beside} - heard.keys() if beside else set()
    unasked = [number for number, answer in answers.items() if answer is None and where.get(number, url) not in silent]
    answers |= ask({number: where[number] for number in unasked if number in where})
    told = "1" if answers["1"] is not None else own
    first = answers.pop(told) or status
    return with_shards(first, answers) if answers else status


def _number(status: Mapping[str, Any]) -> tuple[str, str]:
    """Of its shard, and how many there are."""
    own, _, of = str(status.get("shard", "1/1")).partition("/")
    return own, of


def with_shards(first: Mapping[str, Any], others: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any]:
    """The status of the first shard (or who speaks for it), and ``by_shard`` of each other; None for a silent one.

    The run is not finished as long as one of its shards is not, or cannot say so. ``bytes`` are those of all that
    answer; rounds and tokens are the first one's.

    >>> one, other = ({"round": 9, "bytes": {"up": 5, "down": 1}}, {"round": 7, "bytes": {"up": 2, "down": 0}})
    >>> both = with_shards(one | {"phase": "finished"}, {"2": other | {"phase": "open"}, "3": None})
    >>> both["phase"], both["by_shard"]["2"]["round"], both["bytes"]
    ('open', 7, {'up': 7, 'down': 1})
    """
    told: dict[str, dict[str, Any]] = {}
    for number, status in others.items():
        said = {"phase": SILENT} if status is None else {key: status[key] for key in TOLD if key in status}
        told[number] = {"url": first.get("shards", {}).get(number, ""), **said}
    open_still = [each["phase"] for each in told.values() if each["phase"] != "finished"]
    phase = open_still[0] if first["phase"] == "finished" and open_still else first["phase"]
    moved = [each["bytes"] for each in (first, *told.values()) if "bytes" in each]
    total = {"bytes": {way: sum(each[way] for each in moved) for way in ("up", "down")}} if moved else {}
    return {**first, "phase": phase, "by_shard": told, **total}


def shard_lines(status: Mapping[str, Any]) -> list[str]:
    """How each shard but the first stands, a line each; none of a run that one syncer serves.

    >>> shard_lines({"shard": "1/2", "by_shard": {"2": {"url": "http://b:7171", "phase": "silent"}}})
    ['! shard 2/2 does not answer (http://b:7171): its fragments are not merged until it is back']
    """
    lines = []
    of = str(status.get("shard", "1/1")).partition("/")[2]
    for number, each in status.get("by_shard", {}).items():
        where = each["url"] or "it has not said where it is"
        if each["phase"] == SILENT:
            lines.append(
                f"! shard {number}/{of} does not answer ({where}): its fragments are not merged until it is back"
            )
        else:
            state = f"round {each['round']}, {each['phase']}; waiting for {each['waiting_for']}"
            lines.append(f"shard {number}/{of} {state} ({where})")
    return lines


def fetch_whole_model(url: str, *, token: str | None = None, tls: ssl.SSLContext | None = None) -> GlobalModel | None:
    """The global weights, put together from all shards of the run at ``url``; None while one has none.

    Each shard's part is of one moment; its round is the lowest of theirs. Raises like :func:`fetch_model`.
    """
    status = fetch_status(url, token=token, tls=tls)
    if str(status.get("shard", "1/1")).endswith("/1"):
        return fetch_model(url, token=token, tls=tls)
    of, where = int(status["shard"].partition("/")[2]), status["shards"]
    parts = []
    for number in map(str, range(1, of + 1)):
        if number not in where:
            raise ConnectionLost(f"shard {number}/{of} has not said where it is")
        part = fetch_model(where[number], token=token, tls=tls)
        if part is None:
            return None
        parts.append(part)
    return assembled(parts)


def assembled(parts: list[GlobalModel]) -> GlobalModel:
    """One safetensors file of the parts that all shards have handed out. The metadata tell each one's round.

    Raises :class:`AddressError` if they do not make up a model.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    whole: dict[str, np.ndarray[Any, np.dtype[np.float32]]] = {}
    filled, rounds = 0, []
    for part in parts:
        length = int.from_bytes(part.content[:8], "little")
        header = json.loads(part.content[8 : 8 + length])
        said = header.pop("__metadata__")
        rounds.append(f"{said['shard']}: {said['round']}")
        if not whole:
            shapes = {name: tuple(shape) for name, shape in json.loads(said["shapes"])}
            whole = {name: np.zeros(int(np.prod(shape)), np.float32) for name, shape in shapes.items()}
        for key, entry in header.items():
            name, _, start = key.rpartition("@")
            first, last = (8 + length + at for at in entry["data_offsets"])
            values = np.frombuffer(part.content, "<f4", (last - first) // 4, first)
            whole[name][int(start) : int(start) + values.size] = values
            filled += values.size
    if filled != sum(values.size for values in whole.values()):
        raise AddressError(
            "the shards do not make up one model", where=", ".join(rounds), fix="start all with one RUN.toml"
        )
    about = {"round": str(min(part.round for part in parts)), "rounds": "; ".join(rounds), "format": "pt"}
    content = b"".join([tensors_header(list(shapes.items()), about), *(values.tobytes() for values in whole.values())])
    return GlobalModel(round=min(part.round for part in parts), content=content)
