"""Where the shards of a run are: what the first one keeps, the others are announced for, and learners look up.

The first shard is the directory. Every other one tells it its address again and again, and hears where all are; so any
shard can tell a learner, also while the first one is away. In the same words each says that it has finished: the run is
over when all have. What does not belong into the run is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from gruppetto.errors import AddressError, ProtocolError, SettingError
from gruppetto.numerics.deal import MAX_SHARDS, Shard
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.plausible import is_name
from gruppetto.runtime.setting import SyncerSetting

__all__ = [
    "ANNOUNCE_S",
    "DIRECTORY_PATH",
    "FRESH_S",
    "MAX_MAP_BYTES",
    "Place",
    "ShardDirectory",
    "ShardMap",
    "decode_map",
    "decode_place",
    "plan_of",
]

DIRECTORY_PATH = "/v1/directory"
ANNOUNCE_S = 2.0
"""Between two announcements of a shard."""
FRESH_S = 3 * ANNOUNCE_S
"""A place that was announced so lately is taken."""
MAX_MAP_BYTES = 1 << 20
_ANYWHERE = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a shard says of itself."""

    shard: str
    url: str = ""
    """Where it listens; "" while it does not, and only asks whether it belongs to the run."""
    epoch: int = 0
    run_id: str = ""
    """Empty where it has no state yet."""
    layout_hash: str = ""
    """Empty where no learner has said it yet."""
    plan: dict[str, str] = field(default_factory=dict)
    """What all shards of a run have to agree on, by setting (:func:`plan_of`)."""
    finished: bool = False
    """It has made its last round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMap:
    """Where to find all shards of a run."""

    run_id: str
    shards: int
    addresses: dict[int, str]
    """By number, those that have said where they are: a URL."""
    finished: tuple[int, ...] = ()
    """The numbers of those that have said that they have made their last round."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Shards that nobody has heard of yet."""
        return tuple(k for k in range(1, self.shards + 1) if k not in self.addresses)


def plan_of(protocol: ProtocolSetting, setting: SyncerSetting) -> dict[str, str]:
    """The settings that make the map, and those in which shards may not differ, in words."""
    return {
        "run.num_fragments": str(protocol.num_fragments),
        "run.sync_period": str(protocol.sync_period),
        "run.rounds": str(protocol.rounds),
        "run.apply": protocol.apply.value,
        "fragments.how": setting.fragmenter,
        "merge.rules": repr(setting.merge)[:1000],
    }


class ShardDirectory:
    """One shard's knowledge of all. ``now`` is an argument, in seconds of one clock."""

    def __init__(self, shard: Shard, *, run_id: str, plan: Mapping[str, str]) -> None:
        self.shard, self.run_id = shard, run_id
        self.epoch = 0
        self.layout_hash = self.url = ""
        """As they become known: of the model, and where this shard listens."""
        self.finished = False
        """This shard has made its last round."""
        self._plan = dict(plan)
        self._heard: dict[int, tuple[float, Place]] = {}
        self._told: dict[int, str] = {}
        self._told_finished: frozenset[int] = frozenset()

    @property
    def place(self) -> Place:
        """What this shard says of itself."""
        return Place(
            shard=str(self.shard),
            url=self.url,
            epoch=self.epoch,
            run_id=self.run_id,
            layout_hash=self.layout_hash,
            plan=self._plan,
            finished=self.finished,
        )

    @property
    def goes_on_elsewhere(self) -> bool:
        """Some other shard has not said, as far as this one knows, that it has finished."""
        others = set(range(1, self.shard.of + 1)) - {self.shard.number}
        return not others <= self._finished()

    def _finished(self) -> frozenset[int]:
        heard = {number for number, (_, place) in self._heard.items() if place.finished}
        own = frozenset({self.shard.number} if self.finished else ())
        return (self._told_finished - {self.shard.number}) | heard | own

    def map(self) -> ShardMap:
        """Where all are, as far as this shard knows, and which of them have finished."""
        heard = {number: place.url for number, (_, place) in self._heard.items()}
        own = {self.shard.number: self.url} if self.url else {}
        return ShardMap(
            run_id=self.run_id,
            shards=self.shard.of,
            addresses={**self._told, **heard, **own},
            finished=tuple(sorted(self._finished())),
        )

    def learn(self, told: ShardMap) -> None:
        """What the first shard has answered."""
        self._told, self._told_finished = dict(told.addresses), frozenset(told.finished)

    def hear(self, place: Place, now: float, peer: str = "") -> None:
        """A shard is announced, from the address ``peer``. Raises :class:`SettingError` for one that does not fit."""
        shard = Shard.parse(place.shard)
        where = f"shard {shard}"
        if self.shard.number != 1:
            raise SettingError(
                f"shard {self.shard} is not the directory", where=where, fix="name the first shard's URL"
            )
        if shard.of != self.shard.of:
            text = f"this run is served by {self.shard.of} shards, not {shard.of}"
            raise SettingError(text, where=where, fix=f"start it as NUMBER/{self.shard.of}")
        if shard.number == 1:
            raise SettingError(f"the first shard is at {self.url} already", where=where, fix="give each its own number")
        if place.run_id and place.run_id != self.run_id:
            text = f"its state belongs to run {place.run_id!r}, the others serve {self.run_id!r}"
            raise SettingError(text, where=where, fix="name its own state directory, or a new one")
        for key, value in self._plan.items():
            if place.plan.get(key) != value:
                text = f"{key} is {place.plan.get(key, 'unknown')}, at the first shard it is {value}"
                raise SettingError(text, where=where, fix="start all shards with one RUN.toml")
        if self.layout_hash and place.layout_hash not in ("", self.layout_hash):
            text = f"it serves a model of another layout ({place.layout_hash}, not {self.layout_hash})"
            raise SettingError(text, where=where, fix="name its own state directory, or a new one")
        if not place.url:
            return
        url = _reachable(place.url, peer)
        heard_at, before = self._heard.get(shard.number, (-FRESH_S, place))
        if now - heard_at < FRESH_S and before.url != url and before.epoch >= place.epoch:
            text = f"the one at {before.url} has its number, in epoch {before.epoch}"
            raise SettingError(text, where=where, fix="give each its own number and state directory")
        self._heard = {**self._heard, shard.number: (now, replace(place, url=url))}  # whoever reads it has it whole


def decode_place(data: bytes) -> Place:
    """Raises :class:`ProtocolError` for what is none."""
    try:
        place = msgspec.json.decode(data, type=Place)
        Shard.parse(place.shard)
        if place.url:
            SyncerAddress.parse(place.url)
        if place.run_id and not is_name(place.run_id):
            raise ProtocolError(f"{place.run_id!r:.80} is no name of a run")
    except (msgspec.MsgspecError, SettingError, AddressError, UnicodeDecodeError, RecursionError) as wrong:
        raise ProtocolError(f"not the place of a shard: {wrong}") from wrong
    return place


def decode_map(data: bytes) -> ShardMap:
    """Raises :class:`ProtocolError` for what is none."""
    try:
        told = msgspec.json.decode(data, type=ShardMap)
        for url in told.addresses.values():
            SyncerAddress.parse(url)
    except (msgspec.MsgspecError, AddressError, UnicodeDecodeError, RecursionError) as wrong:
        raise ProtocolError(f"not a map of shards: {wrong}") from wrong
    if not (1 <= told.shards <= MAX_SHARDS and is_name(told.run_id)):
        raise ProtocolError(f"not a map of shards: {told.shards} shards of run {told.run_id!r:.80}")
    numbers = {*told.addresses, *told.finished}
    if not all(1 <= number <= told.shards for number in numbers):
        raise ProtocolError(f"not a map of {told.shards} shards: it has numbers {sorted(numbers)[-3:]}")
    return told


def _reachable(url: str, peer: str) -> str:
    """Who listens at all addresses is found at the one that it speaks from."""
    address = SyncerAddress.parse(url)
    return str(replace(address, host=peer)) if address.host in _ANYWHERE and peer else str(address)
