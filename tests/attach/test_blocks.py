"""Blocks of distributed parameters at every rank of many meshes, without any other process: the group is a fake one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from gruppetto.attach.blocks import meshes_of
from gruppetto.attach.holding import hold
from gruppetto.attach.ranks import ranks_of
from gruppetto.attach.sharding import FlatModel
from gruppetto.errors import LayoutError
from gruppetto.numerics import fragment
from gruppetto.numerics.shares import supplied

MESHES = count()


@contextmanager
def rank_of(rank: int, shape: tuple[int, ...]) -> Iterator[DeviceMesh]:
    """As that rank of a mesh of this shape."""
    size = int(np.prod(shape))
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        # Names of its own: torch keeps what it has found out for an equal mesh, and that was another rank's.
        number = next(MESHES)
        yield init_device_mesh("cpu", shape, mesh_dim_names=tuple(f"{dim}{number}" for dim in "xy"[: len(shape)]))
    finally:
        dist.destroy_process_group()


def placed(whole: Tensor, mesh: DeviceMesh, placements: list[Placement]) -> nn.Parameter:
    """``whole`` as a distributed parameter; every rank cuts out its own part."""
    return nn.Parameter(distribute_tensor(whole.clone(), mesh, placements, src_data_rank=None))


@settings(max_examples=15, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 3)), min_size=1, max_size=3).filter(
        lambda shapes: any(rows for rows, _ in shapes)
    ),
    mesh_shape=st.sampled_from([(1,), (2,), (3,), (2, 2)]),
    data=st.data(),
)
def test_each_rank_reads_and_writes_its_rows(
    shapes: list[tuple[int, int]], mesh_shape: tuple[int, ...], data: st.DataObject
) -> None:
    """FSDP2 on one dimension, hybrid sharding on two, plain tensors beside them; uneven and empty shards."""
    wholes = [torch.arange(float(rows * width)).view(rows, width) + 100 * i for i, (rows, width) in enumerate(shapes)]
    kinds = [data.draw(st.sampled_from(["shard", "replicate", "plain"])) for _ in shapes]
    held, found = [], []
    size = int(np.prod(mesh_shape))
    for rank in range(size):
        with rank_of(rank, mesh_shape) as mesh:
            model = nn.ParameterList()
            for whole, kind in zip(wholes, kinds, strict=True):
                placements = [Replicate()] * (mesh.ndim - 1) + [Shard(0) if kind == "shard" else Replicate()]
                model.append(nn.Parameter(whole.clone()) if kind == "plain" else placed(whole, mesh, placements))
            flat = FlatModel(model)
            held.append(flat.held)
            flat.spread(flat.held)
            flat.cut(fragment(flat.layout, 2, merge_of=lambda name: "mean"))
            for p in range(flat.num_fragments):
                vector = np.full(flat.numel(p), np.nan, np.float32)
                flat.read(p, vector)
                assert flat.fragmentation is not None
                of_whole = np.concatenate(
                    [
                        wholes[int(x.name)].flatten()[x.start : x.stop].numpy()
                        for x in flat.fragmentation.fragments[p].pieces
                    ]
                )
                share = flat.share(p)
                assert share is not None
                np.testing.assert_array_equal(
                    vector, np.concatenate([of_whole[a:b] for a, b in share.held] or [np.zeros(0, np.float32)])
                )
                flat.write(p, -vector)
            for i, (parameter, whole) in enumerate(zip(model, wholes, strict=True)):
                block = parameter.detach()
                mine = block.to_local() if isinstance(block, DTensor) else block
                rows = [whole.flatten()[a:b] for a, b in held[rank][str(i)]]
                torch.testing.assert_close(-mine.flatten(), torch.cat(rows) if rows else torch.zeros(0))
            found.append(flat.layout.layout_hash)
            layout = flat.layout
    assert len(set(found)) == 1, "the layout is that of the whole model, at every rank"
    shares = supplied(layout, held)
    for tensor in layout.tensors:
        assert sum(own[tensor.name].numel for own in shares if tensor.name in own) == tensor.numel


@pytest.mark.parametrize(
    ("mesh_shape", "placements", "rows"),
    [
        ((2,), [Shard(0)], [(0, 4), (4, 7)]),
        ((3,), [Shard(0)], [(0, 3), (3, 6), (6, 7)]),
        ((2, 2), [Replicate(), Shard(0)], [(0, 4), (4, 7), (0, 4), (4, 7)]),
        ((2,), [Replicate()], [(0, 7), (0, 7)]),
        ((2,), [Shard(1)], None),
        ((2, 2), [Shard(0), Shard(1)], None),
        ((2, 2), [Shard(0), Shard(0)], None),  # seven rows are not dealt evenly twice
    ],
)
def test_which_blocks_are_rows(
    mesh_shape: tuple[int, ...], placements: list[Placement], rows: list[tuple[int, int]] | None
) -> None:
    whole = torch.arange(42.0).view(7, 6)
    for rank in range(int(np.prod(mesh_shape))):
        with rank_of(rank, mesh_shape) as mesh:
            here = hold("w", placed(whole, mesh, placements))
            assert here.gathers == (rows is None)
            start, stop = (0, 7) if rows is None else rows[rank]
            assert here.runs.bounds == ((6 * start, 6 * stop),)
            if not here.gathers:
                torch.testing.assert_close(here.read(), whole[start:stop])


def test_a_gathered_block_takes_its_part_of_what_comes() -> None:
    whole = torch.zeros(4, 6)
    for rank in range(2):
        with rank_of(rank, (2,)) as mesh:
            here = hold("w", placed(whole, mesh, [Shard(1)]))
            here.write_rows(6, torch.arange(6.0, 18.0))  # rows 1 and 2
            expected = torch.zeros(4, 6)
            expected[1:3] = torch.arange(6.0, 18.0).view(2, 6)
            torch.testing.assert_close(here.own(), expected[:, 3 * rank : 3 * rank + 3])


def test_bases_are_placed_as_their_parameters_are() -> None:
    whole = torch.arange(42.0).view(7, 6)
    for placements in ([Shard(0)], [Shard(1)], [Replicate()]):
        with rank_of(1, (2,)) as mesh:
            parameter = placed(whole, mesh, placements)
            here = hold("w", parameter)
            back = here.to_global(whole[4:7] if placements == [Shard(0)] else whole)
            assert isinstance(back, DTensor)
            assert (back.placements, back.shape) == (tuple(placements), whole.shape)
            torch.testing.assert_close(back.to_local(), parameter.detach().to_local())
            torch.testing.assert_close(here.to_local(whole), whole[4:7] if placements == [Shard(0)] else whole)


def test_what_cannot_be_attached_is_named() -> None:
    with rank_of(0, (2,)) as mesh:
        parameter = nn.Parameter(DTensor.from_local(torch.ones(2), mesh, [Partial()], run_check=False))
        with pytest.raises(LayoutError, match=r"'w': is placed as .*a sum that has not been taken"):
            hold("w", parameter)


def test_the_ranks_of_a_learner() -> None:
    plain = nn.Linear(2, 2)
    assert ranks_of(plain, None) is None
    with rank_of(1, (4,)) as mesh:
        assert ranks_of(plain, None) is dist.group.WORLD
        some = dist.new_group([1, 3])
        assert ranks_of(plain, some) is some
        assert ranks_of(plain, dist.new_group([1])) is None
        with pytest.raises(LayoutError, match="does not hold this process"):
            ranks_of(plain, dist.new_group([0, 2]))
        spread = nn.ParameterList([placed(torch.ones(4), mesh, [Shard(0)])])
        assert meshes_of(spread) == [(0, 1, 2, 3)]
        assert ranks_of(spread, None) is dist.group.WORLD
        with pytest.raises(LayoutError, match="spread over ranks 0, 1, 2, 3, the learner has 0, 1"):
            ranks_of(spread, dist.new_group([0, 1]))
    with rank_of(1, (2, 2)) as mesh:
        half = nn.ParameterList([placed(torch.ones(4), mesh[mesh.mesh_dim_names[1]], [Shard(0)])])
        with pytest.raises(LayoutError, match="name the group of all ranks"):
            ranks_of(half, None)
