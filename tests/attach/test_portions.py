"""What ranks give and take of each other, at every rank in turn, without any other process: the group is a fake one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tests.attach.test_blocks import placed, rank_of
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from gruppetto.attach.giving import Giving, check_manifest
from gruppetto.attach.holdings import Holdings
from gruppetto.attach.inner_state import gather
from gruppetto.attach.portions import GivingTogether
from gruppetto.attach.sharding import FlatModel
from gruppetto.attach.taking import Taking, needs_of, put_in, took
from gruppetto.attach.together import AUTO, _check_places
from gruppetto.errors import SettingError, StateError
from gruppetto.numerics import fragment
from gruppetto.numerics.shares import supplied
from gruppetto.protocol.learner import FragmentState, LearnerCore
from gruppetto.protocol.messages import ApplyMode, Donor
from gruppetto.protocol.units import Fragment, LearnerId, Version
from gruppetto.runtime.companions import lacking
from gruppetto.runtime.donation import Manifest, encode_manifest
from gruppetto.runtime.joining import Fetched
from gruppetto.runtime.orders import Begin, Fetch
from gruppetto.runtime.spans import Needs, places_of, requests_for

SHAPES = {"wide": (70, 90), "odd": (7, 3), "vector": (5,), "one": (1,), "none": (0, 2)}
KINDS: dict[str, tuple[tuple[int, ...], list[Placement]]] = {
    "alone": ((1,), []),
    "replicas": ((2,), []),
    "rows of 2": ((2,), [Shard(0)]),
    "rows of 3": ((3,), [Shard(0)]),
    "columns of 2": ((2,), [Shard(1)]),
    "hybrid": ((2, 2), [Replicate(), Shard(0)]),
}


class Net(nn.Module):
    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        super().__init__()
        for name, parameter in parameters.items():
            self.register_parameter(name, parameter)
        self.register_buffer("seen", torch.zeros(3))


class Group:
    """Stands for the ranks of a learner: what all of them say is known from a pass before."""

    def __init__(self, rank: int, said: dict[int, bytes]) -> None:
        self.leads, self._rank, self._said = rank == 0, rank, said

    def everybody(self, own: bytes) -> list[bytes]:
        self._said[self._rank] = own
        return [data for _, data in sorted(self._said.items())]


def wholes(base: int) -> dict[str, Tensor]:
    found = {}
    for name, shape in SHAPES.items():
        found[name] = torch.arange(float(np.prod(shape))).view(shape) + base
        base += 10_000
    return found


def at_each_rank(kind: str, story: Callable[[int, Net, torch.optim.Optimizer, Holdings], Any]) -> list[Any]:
    shape, placements = KINDS[kind]
    size = int(np.prod(shape))
    held: list[Any] = []

    def net(mesh: Any) -> Net:
        spread = {
            name: nn.Parameter(whole) if len(whole.shape) < 2 and placements == [Shard(1)] else at(whole, mesh)
            for name, whole in wholes(0).items()
        }
        return Net(spread)

    def at(whole: Tensor, mesh: Any) -> nn.Parameter:
        return placed(whole, mesh, placements) if placements else nn.Parameter(whole.clone())

    for rank in range(size):
        with rank_of(rank, shape) as mesh:
            held.append(FlatModel(net(mesh)).held)
    found = []
    for rank in range(size):
        with rank_of(rank, shape) as mesh:
            model = net(mesh)
            flat = FlatModel(model)
            if size > 1:
                flat.spread(supplied(flat.layout, held)[rank])
            holdings = Holdings(flat, by_agreement=size > 1)
            holdings.cut(fragment(flat.layout, 2, merge_of=lambda name: "mean"), ApplyMode.OVERWRITE)
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
            found.append(story(rank, model, optimizer, holdings))
    return found


def given(kind: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Manifest, dict[str, Any]]:
    """A manifest, and the cut at each address. Gathering is that of a donor whose ranks all hold the whole."""
    said: dict[int, bytes] = {}

    def give(rank: int, model: Net, optimizer: torch.optim.Optimizer, holdings: Holdings) -> Any:
        gathered: dict[int, Tensor] = {}
        for base, key in ((100_000, "exp_avg"), (200_000, "exp_avg_sq")):
            for name, whole in wholes(base).items():
                parameter = model.get_parameter(name)
                data = parameter.detach()
                mine: Tensor = whole.clone()
                if isinstance(data, DTensor):
                    mine = placed(whole, data.device_mesh, list(data.placements)).detach()
                    gathered[id(mine)] = whole
                optimizer.state[parameter][key] = mine
                optimizer.state[parameter]["step"] = torch.tensor(4.0)

        def full_tensor(self: DTensor) -> Tensor:
            return next(whole for key, whole in gathered.items() if _is(self, key, optimizer))

        monkeypatch.setattr(DTensor, "full_tensor", full_tensor)
        model.seen.copy_(torch.full((3,), 5.0 if rank == 0 else 6.0))
        core = LearnerCore(LearnerId("d"), session="s", layout_hash="l")
        core.run_id = "r"
        core.fragments = [FragmentState(version=Version(3 + p)) for p in range(2)]
        bases = wholes(300_000)
        for p in range(2):
            lease = holdings.lend(Fragment(p))
            share, cut = holdings.share(Fragment(p)), holdings.model.fragmentation
            assert cut is not None
            whole = np.concatenate(
                [bases[x.name].reshape(-1)[x.start : x.stop].numpy() for x in cut.fragments[p].pieces]
            )
            runs = [(0, whole.size)] if share is None else share.held
            lease.values[:] = np.concatenate([np.empty(0, np.float32), *(whole[a:b] for a, b in runs)])
            holdings._bases[Fragment(p)] = lease
        if kind == "alone":
            return Giving(model, optimizer, holdings).cut(core, layout_hash="l")
        giving = GivingTogether(model, optimizer, holdings, Group(rank, said))  # type: ignore[arg-type]
        return giving.cut_portion(core, "c", address=None if rank == 0 else f"h:{rank}", layout_hash="l")

    at_each_rank(kind, give)
    cuts = at_each_rank(kind, give)
    return cuts[0].manifest, {"" if rank == 0 else f"h:{rank}": cut for rank, cut in enumerate(cuts)}


def _is(tensor: Any, key: int, optimizer: torch.optim.Optimizer) -> bool:
    """The one that is kept at this moment under that number, found again through whatever view of it."""
    kept = next(v for state in optimizer.state.values() for v in state.values() if id(v) == key)
    return bool(kept.to_local().untyped_storage().data_ptr() == tensor.to_local().untyped_storage().data_ptr())


def fetched(manifest: Manifest, cuts: dict[str, Any], needs: Needs) -> Fetched:
    body = np.full(places_of(needs)[-1], 255, np.uint8)
    for request in requests_for(manifest, needs):
        for start, stop, place in request.spans:
            body[place : place + stop - start] = np.frombuffer(cuts[request.address].read(start, stop), np.uint8)
    return Fetched(manifest, body, needs)


@pytest.mark.parametrize("donor", ["alone", "replicas", "rows of 3", "columns of 2", "hybrid"])
def test_any_ranks_take_from_any_others(donor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit what a process that has everything would have cut out for each of them."""
    manifest, cuts = given(donor, monkeypatch)
    for guest in ("alone", "replicas", "rows of 3", "columns of 2", "hybrid"):

        def take(rank: int, model: Net, optimizer: torch.optim.Optimizer, holdings: Holdings) -> None:
            check_manifest(model, optimizer, manifest, base_numel=sum(t.numel for t in holdings.model.layout.tensors))
            came = fetched(manifest, cuts, needs_of(holdings, manifest))
            found = took(model, holdings, came)
            put_in(model, optimizer, found.inner)
            assert torch.equal(model.seen, torch.full((3,), 5.0)), "those of rank 0"
            for base, key in ((100_000, "exp_avg"), (200_000, "exp_avg_sq")):
                for name, whole in wholes(base).items():
                    parameter = model.get_parameter(name)
                    mine, data = optimizer.state[parameter][key], parameter.detach()
                    wanted: Tensor = whole
                    if isinstance(data, DTensor):
                        wanted = placed(whole, data.device_mesh, list(data.placements)).detach()
                        assert isinstance(mine, DTensor) and mine.placements == data.placements
                        mine, wanted = mine.to_local(), wanted.to_local()
                    assert torch.equal(mine, wanted), (rank, key, name)
                    assert optimizer.state[parameter]["step"] == 4.0
            unpacked = holdings.model.empty_bases()
            for p, values in found.bases.items():
                holdings.model.unpack(unpacked, p, values)
            for name, base in holdings.model.to_global(unpacked).items():
                wanted = wholes(300_000)[name]
                data = model.get_parameter(name).detach()
                if isinstance(base, DTensor) and isinstance(data, DTensor):
                    wanted = placed(wanted, data.device_mesh, list(data.placements)).detach().to_local()
                    base = base.to_local()
                assert torch.equal(base, wanted), (rank, name)

        at_each_rank(guest, take)


def test_nobody_has_more_than_it_supplies(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, cuts = given("rows of 3", monkeypatch)
    sizes = [sum(len(data) for _, data in cut._segments) for cut in cuts.values()]
    whole = sum(tensor.payload_bytes for tensor in manifest.tensors)
    assert sum(sizes) == whole and max(sizes) < 0.4 * whole


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ({"digest": "x"}, "rank 1: it keeps other state"),
        ({"address": ""}, "rank 1: it cannot listen"),
        ({"wrong": "no"}, "rank 1: no"),
    ],
)
def test_one_rank_that_cannot_give_means_that_none_does(
    what: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    everybody = Group.everybody

    def otherwise(self: Group, own: bytes) -> list[bytes]:
        said = everybody(self, own)
        return [said[0], msgspec.msgpack.encode({**msgspec.msgpack.decode(said[-1]), **what})]

    monkeypatch.setattr(Group, "everybody", otherwise)
    with pytest.raises(StateError, match=why):
        given("replicas", monkeypatch)


def test_what_cannot_be_cut_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, _ = given("alone", monkeypatch)
    factored = replace(
        manifest, tensors=tuple(replace(t, shape=(7,)) if t.name == "odd" else t for t in manifest.tensors)
    )
    no_base = replace(
        manifest, tensors=tuple(replace(t, name="9") if t.part == "base" else t for t in manifest.tensors)
    )

    def take(rank: int, model: Net, optimizer: torch.optim.Optimizer, holdings: Holdings) -> None:
        for wrong, why in ((factored, "cannot be cut as this parameter is"), (no_base, "is none of this run")):
            with pytest.raises(StateError, match=why):
                needs_of(holdings, wrong)

    at_each_rank("rows of 2", take)


def test_an_errand_ends_with_what_came_of_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    manifest, cuts = given("alone", monkeypatch)
    donor = Donor(learner="d", address="h:1")

    def story(rank: int, model: Net, optimizer: torch.optim.Optimizer, holdings: Holdings) -> None:
        class Visit:
            trouble: Exception | None = OSError("cut")
            stands_s = 0.0

            async def fetch_part(self, manifest: Manifest) -> Fetched:
                await asyncio.sleep(self.stands_s)
                if self.trouble is not None:
                    raise self.trouble
                return fetched(manifest, cuts, needs_of(holdings, manifest))

        visit = Visit()
        taking = Taking(model, optimizer, holdings, rank=rank, visit=lambda donor: visit)  # type: ignore[arg-type, return-value]

        def errand(number: int) -> tuple[int, int]:
            taking.fetch(Fetch(number=number, donor=donor, manifest=encode_manifest(manifest)))
            assert taking._thread is not None
            taking._thread.join()
            return taking.standing

        assert taking.standing == (0, 0)
        assert errand(1) == (0, lacking(1, rank))
        visit.trouble = None
        assert errand(2) == (2, lacking(1, rank))
        before = model.seen.clone()
        begin = Begin(source="peer", number=3, versions=(Version(3), Version(4)))
        taking.begin(begin, lambda: None)
        assert set(holdings._arrived) == {0, 1} and taking.standing == (3, lacking(1, rank))
        assert gather(model, optimizer).tensors and not torch.equal(model.seen, before)
        taking.undo()
        assert not gather(model, optimizer).tensors and torch.equal(model.seen, before)

        def damaged() -> None:
            model.seen.fill_(9.0)
            raise StateError("is damaged", where="kept")

        taking.begin(Begin(source="checkpoint", number=4, place="kept"), damaged)
        assert taking.standing == (3, lacking(4, rank)) and torch.equal(model.seen, before)
        assert errand(5) == (5, lacking(4, rank))
        taking.undo()
        assert taking._took is None, "nobody begins from it: its memory is free"
        visit.stands_s = 60.0
        for ends in (
            lambda: taking.begin(Begin(source="checkpoint", number=7, place="kept"), lambda: None),
            taking.undo,
        ):
            taking.fetch(Fetch(number=6, donor=donor, manifest=encode_manifest(manifest)))
            ends()
            assert taking._thread is not None
            taking._thread.join(60.0)
            assert not taking._thread.is_alive(), "what is still under way for another source ends"
            assert taking.standing == (7, lacking(4, rank))
        taking.close()

    at_each_rank("rows of 2", story)
    said = ["no state from d: OSError: cut", "cannot begin as the others have: kept: is damaged"]
    assert [r.message for r in caplog.records] == [f"rank {n}: {what}" for n in range(2) for what in said]


@pytest.mark.parametrize(
    ("places", "why"),
    [
        (["a:1", "a:1"], "rank 0 gives its state at a:1, rank 1 there too"),
        (["a:1", ""], "rank 0 gives its state at a:1, rank 1 nowhere"),
        ([AUTO, ""], "donate is 'auto' on rank 0, None on rank 1"),
        (["", "", AUTO], "donate is None on rank 0, 'auto' on rank 2"),
        ([AUTO, "a:1"], "rank 1 gives its state at a:1, rank 0 where it finds room"),
    ],
)
def test_each_rank_gives_at_an_address_of_its_own(places: list[str], why: str) -> None:
    with pytest.raises(SettingError, match=why):
        _check_places(places)
    for fine in (["a:1", "a:2"], ["a:0", "a:0"], [AUTO, AUTO], ["", ""]):
        _check_places(fine)
