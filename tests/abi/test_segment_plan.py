"""Segments that move along a sharded dimension, executed in NumPy."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mesh.model import cells, mesh_of, meshes, num_shards, sharding_of, shardings, shards
from tests.native.library import call

SHAPES = [(1,), (4,), (3, 2), (2, 4), (2, 2, 2)]
NOTHING = -1


def plan_segments(*case, hosts=()):
    """All pieces: from, to, source, target, step, count. What devices send is what others receive,
    in the same order for each pair of devices.
    """
    text = call("SegmentPlan", *case, hosts)
    parts = call("SegmentParts", text)
    sent = [(device, peer, *rest) for device, sends, _ in parts for peer, *rest in sends]
    received = [(peer, device, *rest) for device, _, receives in parts for peer, *rest in receives]
    assert sorted(sent, key=lambda piece: piece[:2]) == sorted(received, key=lambda p: p[:2])
    return received


def place(size, segments, tensor, dim):
    """Applies segments to a tensor in NumPy; elements that no segment writes are `NOTHING`."""
    source = np.moveaxis(tensor, dim, 0)
    result = np.full((size, *source.shape[1:]), NOTHING)
    for begin, target, step, count in segments:
        for i in range(count):
            result[target + i] = source[begin + i * step]
    return np.moveaxis(result, 0, dim)


@st.composite
def moves(draw):
    """A mesh, a sharding, the dimension moved along, its extents, and segments."""
    mesh = draw(meshes(SHAPES))
    sharding = draw(shardings(mesh[0]).filter(lambda each: each[0]))
    dims = sharding[0]
    dim = draw(st.integers(0, len(dims) - 1))
    counts = [num_shards(axes) for axes in dims]
    before, after = (counts[dim] * draw(st.integers(1, 4)) for _ in range(2))
    segments, target = [], 0
    while target < after:
        target += draw(st.integers(0, 2))
        source, step = draw(st.integers(0, before - 1)), draw(st.integers(-3, 3))
        room = {0: after}.get(step, (before - 1 - source if step > 0 else source) // abs(step or 1))
        count = min(draw(st.integers(1, 6)), room + 1, after - target)
        if count > 0:
            segments.append((source, target, step, count))
        target += max(count, 1)
    shape = [2 * count for count in counts]
    shape[dim] = before
    return mesh, sharding, dim, tuple(shape), after, draw(st.permutations(segments))


@given(moves())
def test_every_device_gets_its_block_and_only_what_it_lacks(case):
    mesh, sharding, dim, shape, size, segments = case
    tensor = cells(shape)
    held = shards(mesh, sharding[0], tensor)
    wanted = shards(mesh, sharding[0], place(size, segments, tensor, dim))
    pieces = plan_segments(*mesh, sharding, sharding, (dim, shape[dim], size), segments)
    got = {device: np.full(block.shape, NOTHING) for device, block in wanted.items()}
    for source, target, begin, position, step, count in pieces:
        own = set(held[target].flat)
        for i in range(count):
            taken = np.take(held[source], begin + i * step, dim)
            place_of = [slice(None)] * tensor.ndim
            place_of[dim] = position + i
            got[target][tuple(place_of)] = taken
            assert source == target or not own & set(taken.flat)
    for device, block in wanted.items():
        np.testing.assert_array_equal(got[device], block)


@given(moves())
def test_a_holder_on_the_same_host_sends(case):
    mesh, sharding, dim, shape, size, segments = case
    devices = sorted(mesh[1])
    hosts = [devices[i : i + 2] for i in range(0, len(devices) // 2 * 2, 2)]
    held = shards(mesh, sharding[0], cells(shape))
    pieces = plan_segments(
        *mesh, sharding, sharding, (dim, shape[dim], size), segments, hosts=hosts
    )
    host_of = {device: i for i, host in enumerate(hosts) for device in host}
    for source, target, *_ in pieces:
        near = [d for d in devices if d in host_of and host_of[d] == host_of.get(target)]
        if any(np.array_equal(held[d], held[source]) for d in near):
            assert source in near


def test_halo_of_one_element():
    # Windows of 3 with 1 before and after, a vector of 8 in 4 shards.
    segments = [(0, 1, 1, 3), (1, 4, 1, 4), (3, 8, 1, 4), (5, 12, 1, 3)]
    sharding = sharding_of(((0, 1, 4),))
    pieces = plan_segments(*mesh_of(4), sharding, sharding, (0, 8, 16), segments)
    assert [list(piece) for piece in pieces if piece[0] != piece[1]] == [
        [1, 0, 0, 3, 1, 1],
        [0, 1, 1, 0, 1, 1],
        [2, 1, 0, 3, 1, 1],
        [1, 2, 1, 0, 1, 1],
        [3, 2, 0, 3, 1, 1],
        [2, 3, 1, 0, 1, 1],
    ]


def test_copies_share_the_sending():
    # Four copies of each half: nobody sends twice.
    mesh = mesh_of(2, 4)
    sharding = sharding_of(((0, 1, 2),))
    pieces = plan_segments(*mesh, sharding, sharding, (0, 8, 8), [(7, 0, -1, 8)])
    assert set(collections.Counter(source for source, *_ in pieces).values()) == {1}


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([(0, 0, 1, 9)], r"segment \[0, 0, 1, 9\] does not lead from a dimension of 8 into one of"),
        ([(3, 0, -1, 5)], "does not lead from"),
        ([(0, 6, 1, 3)], "does not lead from"),
        ([(0, 0, 1, 0)], "does not lead from"),
        ([(0, 0, 1, 4), (4, 3, 1, 4)], "two segments give place 3 of the result"),
    ],
)
def test_refuses(segments, message):
    sharding = sharding_of(((0, 1, 4),))
    with pytest.raises(ValueError, match=message):
        plan_segments(*mesh_of(4), sharding, sharding, (0, 8, 8), segments)
