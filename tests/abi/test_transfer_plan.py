"""Plans of transfers between layouts: what each device computes of them, executed in NumPy."""

from __future__ import annotations

import collections
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mesh.model import (
    blocks,
    cells,
    mesh_of,
    meshes,
    num_shards,
    sharding_of,
    shardings,
    shards,
)
from tests.native.library import call

from distir_ext.communication.collectives import sent_by_plan
from distir_ext.native.collective_records import names

SHAPES = [(1,), (4,), (6,), (3, 2), (2, 4), (2, 2, 2, 2), (2, 3, 5)]


def transfer_parts(*sides, extents=None, hosts=()):
    """Computes each device's part of a transfer: id, grid, sends and receives."""
    if extents is None:
        extents = (0,) * len(sides[2][0])
    text = call("TransferPlan", *sides, extents, hosts)
    return call("TransferParts", text)


def plan_transfer(*sides, extents=None, hosts=()):
    """A grid that all devices' grids divide, and all pieces in it.

    What devices send is what others receive.
    """
    parts = transfer_parts(*sides, extents=extents, hosts=hosts)
    grid = tuple(math.lcm(*units) for units in zip(*(part[1] for part in parts), strict=True))
    sent, received = [], []
    for device, own, sends, receives in parts:
        finer = [units // each for units, each in zip(grid, own, strict=True)]

        def on_grid(corner, finer=finer):
            return tuple(c * f for c, f in zip(corner, finer, strict=True))

        sent += [(device, peer, on_grid(low), on_grid(high)) for peer, low, high in sends]
        received += [(peer, device, on_grid(low), on_grid(high)) for peer, low, high in receives]
    assert sorted(sent) == sorted(received)
    return grid, tuple(sorted(received, key=lambda piece: (piece[1], piece[2])))


def slices(begin, end):
    return tuple(slice(b, e) for b, e in zip(begin, end, strict=True))


@st.composite
def transfers(draw):
    """Two sides on meshes that are equal, overlap or are disjoint."""
    ndim = draw(st.integers(0, 3))
    source_mesh = draw(meshes(SHAPES))
    shift = draw(st.sampled_from([0, 0, 1, 5, 1000]))
    shape, ids = draw(st.one_of(st.just(source_mesh), meshes(SHAPES)))
    target_mesh = (shape, tuple(device_id + shift for device_id in ids))
    return (
        (source_mesh, draw(shardings(source_mesh[0], ndim))),
        (target_mesh, draw(shardings(shape, ndim))),
    )


@given(transfers())
def test_transfer_brings_every_cell_once_in_balance(sides):
    (source_mesh, source), (target_mesh, target) = sides
    plan = plan_transfer(*source_mesh, source, *target_mesh, target)
    check_plan(plan, *sides)
    assert plan == plan_transfer(*source_mesh, source, *target_mesh, target)


@given(transfers())
def test_plan_does_not_depend_on_how_the_meshes_are_written(sides):
    (source_mesh, source), (target_mesh, target) = sides
    plan = plan_transfer(*source_mesh, source, *target_mesh, target)

    def as_placed(mesh, sharding):
        shape, ids, placement = call("ToPlacement", *mesh, sharding)
        dims = len(sharding[0])
        return (shape, ids), call("FromPlacement", shape, ids, placement, dims, shape, ids)

    sides = as_placed(source_mesh, source), as_placed(target_mesh, target)
    assert plan_transfer(*sides[0][0], sides[0][1], *sides[1][0], sides[1][1]) == plan


def check_plan(plan, source_side, target_side):
    """Runs a plan on NumPy shards and checks everything that is promised of it."""
    grid, pieces = plan
    (source_mesh, source), (target_mesh, target) = source_side, target_side
    for units, a, b in zip(grid, source[0], target[0], strict=True):
        assert units % math.lcm(num_shards(a), num_shards(b)) == 0
    tensor = cells(grid)
    held = shards(source_mesh, source[0], tensor)
    wanted = shards(target_mesh, target[0], tensor)
    received = {device_id: np.full_like(part, -1) for device_id, part in wanted.items()}
    arrivals = {device_id: np.zeros_like(part) for device_id, part in wanted.items()}
    sends, largest = dict.fromkeys(held, 0), dict.fromkeys(held, 0)
    block_of = blocks(source_mesh, source[0])
    met = collections.defaultdict(list)
    for sender, receiver, begin, end in pieces:
        sent = held[sender][within(held[sender], grid, begin, end)]
        into = within(wanted[receiver], grid, begin, end)
        received[receiver][into] = sent
        arrivals[receiver][into] += 1
        met[receiver].append(sender)
        if sender != receiver:
            sends[sender] += sent.size
            largest[sender] = max(largest[sender], sent.size)
            assert receiver not in held or not np.isin(sent, held[receiver]).any(), "sent, but held"
    for device_id, part in wanted.items():
        assert np.array_equal(received[device_id], part), "wrong contents"
        assert (arrivals[device_id] == 1).all(), "not once"
        assert len(set(met[device_id])) == len(met[device_id]), "two pieces from one holder"
    for block in set(block_of.values()):
        holders = [device_id for device_id in held if block_of[device_id] == block]
        counts = [sends[device_id] for device_id in holders]
        piece = max(largest[device_id] for device_id in holders)
        assert max(counts) - min(counts) < 2 * max(piece, 1), "out of balance"
    keys = [(receiver, begin) for _, receiver, begin, _ in pieces]
    assert keys == sorted(keys), "out of order"


def within(part, grid, begin, end):
    """Slices of a box in a part of `cells(grid)`; asserts that the part contains the box."""
    offset = np.array(np.unravel_index(part.flat[0], grid), dtype=int)
    low, high = np.array(begin, dtype=int) - offset, np.array(end, dtype=int) - offset
    assert (low >= 0).all(), "outside of the shard"
    assert (high <= part.shape).all(), "outside of the shard"
    assert (low < high).all(), "empty"
    return slices(low, high)


def worked_transfer():
    """Rows in halves, each on two devices, to columns in quarters; devices 2 and 3 are in both."""
    source_side = (mesh_of(2, 2), sharding_of(((0, 1, 2),), ()))
    target_side = (((4,), (2, 3, 4, 5)), sharding_of((), ((0, 1, 4),)))
    plan = plan_transfer(*source_side[0], source_side[1], *target_side[0], target_side[1])
    return plan, source_side, target_side


def test_worked_example():
    (grid, pieces), *sides = worked_transfer()
    check_plan((grid, pieces), *sides)
    assert grid == (2, 4)
    assert pieces == (
        (0, 2, (0, 0), (1, 1)),
        (2, 2, (1, 0), (2, 1)),
        (0, 3, (0, 1), (1, 2)),
        (3, 3, (1, 1), (2, 2)),
        (1, 4, (0, 2), (1, 3)),
        (2, 4, (1, 2), (2, 3)),
        (1, 5, (0, 3), (1, 4)),
        (3, 5, (1, 3), (2, 4)),
    )


def test_shards_that_do_not_nest_meet_on_the_grid():
    halves = sharding_of(((0, 1, 2),))
    thirds = sharding_of(((0, 1, 3),))
    plan = plan_transfer(*mesh_of(2), halves, (3,), (1, 2, 3), thirds)
    assert plan == (
        (6,),
        ((0, 1, (0,), (2,)), (0, 2, (2,), (3,)), (1, 2, (3,), (4,)), (1, 3, (4,), (6,))),
    )


def test_equal_layouts_stay_where_they_are():
    sharding = sharding_of(((0, 1, 2),), ((1, 1, 4),))
    _, pieces = plan_transfer(*mesh_of(2, 4), sharding, *mesh_of(2, 4), sharding)
    assert [piece[:2] for piece in pieces] == [(d, d) for d in range(8)]


def replaced(pieces, index, **changes):
    piece = dict(zip(("sender", "receiver", "begin", "end"), pieces[index], strict=True))
    return (*pieces[:index], tuple({**piece, **changes}.values()), *pieces[index + 1 :])


SABOTAGE = {
    "drop": (lambda p: p[1:], "wrong contents"),
    "repeat": (lambda p: (p[0], *p), "not once"),
    "from a device without the block": (lambda p: replaced(p, 0, sender=3), "outside of the shard"),
    "to a device that wants another": (
        lambda p: replaced(p, 0, receiver=3),
        "outside of the shard",
    ),
    "from another though held": (lambda p: replaced(p, 1, sender=3), "sent, but held"),
    "box too large": (lambda p: replaced(p, 0, end=(2, 1)), "outside of the shard"),
    "box empty": (lambda p: replaced(p, 0, end=(0, 1)), "empty"),
    "all from one holder": (lambda p: replaced(p, 4, sender=0), "out of balance"),
    "swap": (lambda p: (p[1], p[0], *p[2:]), "out of order"),
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_checker_sees_a_sabotaged_plan(name):
    (grid, pieces), *sides = worked_transfer()
    sabotage, message = SABOTAGE[name]
    with pytest.raises(AssertionError, match=message):
        check_plan((grid, sabotage(pieces)), *sides)


def test_checker_sees_a_block_in_several_pieces():
    sides = (mesh_of(2), sharding_of(((0, 1, 2),))), (mesh_of(3), sharding_of(((0, 1, 3),)))
    grid, pieces = plan_transfer(*sides[0][0], sides[0][1], *sides[1][0], sides[1][1])
    check_plan((grid, pieces), *sides)
    assert pieces[0] == (0, 0, (0,), (2,))
    cut = ((0, 0, (0,), (1,)), (0, 0, (1,), (2,)), *pieces[1:])
    with pytest.raises(AssertionError, match="two pieces from one holder"):
        check_plan((grid, cut), *sides)


def test_sides_of_different_rank_are_refused():
    with pytest.raises(ValueError, match=r"plan.target: has 1 dimensions, the tensor has 2"):
        plan_transfer(*mesh_of(2), sharding_of((), ()), *mesh_of(2), sharding_of(()))


@pytest.mark.parametrize("side", ["source", "target"])
def test_partial_side_is_refused(side):
    partial = [[[]], [[0, 1, 2]], "sum"]
    whole = sharding_of(())
    source, target = (partial, whole) if side == "source" else (whole, partial)
    with pytest.raises(ValueError, match="what moves is partial over 'x'"):
        plan_transfer(*mesh_of(2), source, *mesh_of(2), target)


def sent_by(plan):
    """Cells that each device sends to others."""
    cells_sent = collections.Counter()
    for sender, receiver, begin, end in plan[1]:
        if sender != receiver:
            cells_sent[sender] += math.prod(e - b for b, e in zip(begin, end, strict=True))
    return cells_sent


@given(transfers(), st.integers(1, 3))
def test_pieces_are_cut_so_that_holders_send_alike(sides, factor):
    (source_mesh, source), (target_mesh, target) = sides
    # Extents that any cut divides.
    holders = math.prod(source_mesh[0])
    extents = [
        factor * holders * math.lcm(num_shards(a), num_shards(b))
        for a, b in zip(source[0], target[0], strict=True)
    ]
    plan = plan_transfer(*source_mesh, source, *target_mesh, target, extents=extents)
    check_plan(plan, *sides)
    assert all(extent % units == 0 for extent, units in zip(extents, plan[0], strict=True))
    nested = all(
        max(num_shards(a), num_shards(b)) % min(num_shards(a), num_shards(b)) == 0
        for a, b in zip(source[0], target[0], strict=True)
    )
    block_of = blocks(source_mesh, source[0])
    sent = sent_by(plan)
    for block in set(block_of.values()) if nested and extents else ():
        counts = {sent[device_id] for device_id in source_mesh[1] if block_of[device_id] == block}
        assert len(counts) == 1, "holders of one block send different amounts"


def test_two_holders_share_what_one_device_wants():
    source, target = (mesh_of(2), sharding_of(())), (((1,), (2,)), sharding_of(()))
    plan = plan_transfer(*source[0], source[1], *target[0], target[1], extents=(6,))
    assert plan == ((2,), ((0, 2, (0,), (1,)), (1, 2, (1,), (2,))))
    odd = plan_transfer(*source[0], source[1], *target[0], target[1], extents=(5,))
    assert odd == ((5,), ((0, 2, (0,), (3,)), (1, 2, (3,), (5,))))
    unknown = plan_transfer(*source[0], source[1], *target[0], target[1], extents=(0,))
    assert unknown == ((1,), ((0, 2, (0,), (1,)),))


# Mesh, source, target and extents; parts of axes as (axis, size of what is major, size).
UNEVENLY_WANTED = [
    (
        (2, 2, 3),
        sharding_of(((1, 1, 2),), ((2, 1, 3),)),
        sharding_of((), ((0, 1, 2), (1, 1, 2))),
        24,
    ),
    ((4, 6), sharding_of(((0, 1, 4),), ((1, 1, 2),)), sharding_of(((1, 1, 6),), ()), 12),
    ((4, 6, 2), sharding_of(((0, 1, 4),), ((2, 1, 2),)), sharding_of(((1, 1, 6),), ()), 24),
    ((4, 6, 5), sharding_of(((0, 1, 4),), ((2, 1, 5),)), sharding_of(((1, 1, 6),), ()), 60),
]


@pytest.mark.parametrize("case", UNEVENLY_WANTED, ids=str)
def test_nobody_sends_more_than_a_block_though_parts_of_blocks_are_wanted_unevenly(case):
    shape, source, target, extent = case
    mesh = mesh_of(*shape)
    plan = plan_transfer(*mesh, source, *mesh, target, extents=(extent, extent))
    check_plan(plan, (mesh, source), (mesh, target))
    block = math.prod(plan[0]) // math.prod(num_shards(axes) for axes in target[0])
    assert max(sent_by(plan).values()) <= block


@given(transfers(), st.sampled_from([2, 3]))
def test_the_nearest_holders_share_the_sending(sides, per_host):
    (source_mesh, source), (target_mesh, target) = sides
    devices = sorted({*source_mesh[1], *target_mesh[1]})
    devices = devices[: len(devices) // per_host * per_host]
    hosts = [devices[i : i + per_host] for i in range(0, len(devices), per_host)]
    plan = plan_transfer(*source_mesh, source, *target_mesh, target, hosts=hosts)
    host_of = {device: i for i, host in enumerate(hosts) for device in host}
    block_of = blocks(source_mesh, source[0])
    for sender, receiver, *_ in plan[1]:
        holders = [d for d in source_mesh[1] if block_of[d] == block_of[sender]]
        if sender == receiver or receiver not in host_of:
            continue
        near = [d for d in holders if host_of.get(d) == host_of[receiver]]
        assert sender in (near or holders)


def test_the_nearest_holder_sends():
    # Each half lies on one device of each host; everybody wants all and gets it from its own host.
    mesh = mesh_of(2, 2)
    hosts = ((0, 2), (1, 3))
    halves = sharding_of(((0, 1, 2),))
    _, pieces = plan_transfer(*mesh, halves, *mesh, sharding_of(()), hosts=hosts)
    assert {(sender, receiver) for sender, receiver, *_ in pieces if sender != receiver} == {
        (2, 0),
        (0, 2),
        (3, 1),
        (1, 3),
    }


@given(transfers(), st.sampled_from([0, 24]), st.sampled_from([0, 2, 3]))
def test_traffic_is_what_all_parts_add_up_to(sides, extent, per_host):
    (source_mesh, source), (target_mesh, target) = sides
    extents = (extent,) * len(source[0])
    devices = sorted({*source_mesh[1], *target_mesh[1]})
    devices = devices[: len(devices) // per_host * per_host] if per_host else []
    hosts = [devices[i : i + per_host] for i in range(0, len(devices), per_host)] if devices else ()
    text = call("TransferPlan", *source_mesh, source, *target_mesh, target, extents, hosts)
    parts = call("TransferParts", text)
    takes_part = [device for device, _, sends, receives in parts if sends or receives]
    share = Fraction(0)
    for device, grid, sends, _ in parts:
        block = Fraction(math.prod(grid), math.prod(map(num_shards, source[0])))
        sent = sum(volume(low, high) for peer, low, high in sends if peer != device)
        share = max(share, sent / block)
    assert sent_by_plan(names.transfer, text, None, 1) == (len(takes_part), float(share))


def volume(begin, end):
    return math.prod(e - b for b, e in zip(begin, end, strict=True))
