"""Redistribution plans: correct on a model of the collectives, and fastest by brute force."""

import itertools
import math
import random

import numpy as np
import pytest
import tvm_ffi

from .model import (
    NO_LATENCY,
    UNIFORM,
    Planner,
    StepChecker,
    all_shardings,
    count,
    plan,
)
from .shortest import Distances

MESHES = [(2,), (4,), (2, 2), (2, 4), (2, 2, 2), (2, 3, 2)]
CASES = [(shape, rank) for shape in MESHES for rank in (1, 2, 3)]
LINKS = (UNIFORM["launch"], *(UNIFORM[key][0] for key in ("latency", "gap", "bandwidth")))
SIZES = {"small": 2.0**12, "middle": 2.0**21, "large": 2.0**30}


MOST_PAIRS = (500, 1500, None)
"""Of one test, in the small, large and whole sample."""


def all_pairs(shape, rank):
    """Every ordered pair; sources also partial."""
    sources = list(all_shardings(shape, rank, with_partial=True))
    return itertools.product(sources, all_shardings(shape, rank))


def some_pairs(shape, rank, number):
    """A fixed sample of the pairs; all of them without a number, or if they are no more."""
    pairs = list(all_pairs(shape, rank))
    return pairs if number is None else random.Random(rank).sample(pairs, min(number, len(pairs)))


@pytest.fixture
def pairs_of(sample):
    """The pairs of a mesh and a rank that are checked."""
    return lambda shape, rank: some_pairs(shape, rank, sample(*MOST_PAIRS))


def check_all(pairs, shape, rank, size, cluster, links, dims=None):
    """Every plan arrives, and none is slower than the shortest way."""
    dims = dims or [math.prod(shape)] * rank
    shortest = Distances(shape, dims, size, *links)
    find = Planner(shape, dims, size, cluster)
    checker = StepChecker(shape, rank)
    for source, target in pairs:
        if source not in shortest.index or target not in shortest.index:
            continue
        steps, seconds, _ = find(source, target)
        checker.check(source, target, steps)
        expected = shortest.seconds[shortest.index[source], shortest.index[target]]
        assert seconds == pytest.approx(expected, rel=1e-6), (source, target, steps)


@pytest.mark.parametrize(("shape", "rank"), CASES, ids=str)
def test_every_plan_arrives_and_is_the_fastest(shape, rank, pairs_of):
    for size in SIZES.values() if rank < 3 else [SIZES["middle"]]:
        check_all(pairs_of(shape, rank), shape, rank, size, UNIFORM, LINKS)


@pytest.mark.large
@pytest.mark.parametrize(("shape", "rank"), [((2, 2), 3), ((2, 4), 2), ((2, 3), 2)], ids=str)
def test_fastest_where_links_differ(shape, rank, pairs_of):
    latency = [5e-6, 2e-6, 1e-6][: len(shape)]
    gap = [1e-6, 1e-6, 5e-7][: len(shape)]
    bandwidth = [25e9, 100e9, 400e9][: len(shape)]
    cluster = {
        "shape": list(shape),
        "device_ids": list(range(math.prod(shape))),
        "launch": 8.4e-6,
        "latency": latency,
        "gap": gap,
        "bandwidth": bandwidth,
    }
    for size in SIZES.values():
        check_all(
            pairs_of(shape, rank), shape, rank, size, cluster, (8.4e-6, latency, gap, bandwidth)
        )


@pytest.mark.parametrize(
    ("shape", "dims"), [((2, 4), [2, 8]), ((2, 3, 2), [6, 4, 1]), ((2, 2, 2), [2, 6, 4])], ids=str
)
def test_no_step_shards_what_does_not_divide(shape, dims, pairs_of):
    pairs = pairs_of(shape, len(dims))
    check_all(pairs, shape, len(dims), 2.0**21, UNIFORM, LINKS, dims)
    find = Planner(shape, dims, 2.0**21)
    for source, target in pairs:
        if divides(dims, source) and divides(dims, target):
            assert all(divides(dims, result) for _, result, _ in find(source, target)[0])


def divides(dims, sharding):
    return all(extent % count(axes) == 0 for extent, axes in zip(dims, sharding[0], strict=True))


def test_symbolic_dimensions_divide_only_as_both_sides_do():
    shape = (2, 4)
    find = Planner(shape, [0, 0])
    for source, target in all_pairs(shape, 2):
        for _, result, _ in find(source, target)[0]:
            for d, axes in enumerate(result[0]):
                common = math.lcm(count(source[0][d]), count(target[0][d]))
                assert common % count(axes) == 0


@pytest.mark.parametrize(("shape", "rank"), CASES, ids=str)
def test_without_latency_no_plan_moves_fewer_bytes(shape, rank, pairs_of):
    size = 2.0**21
    dims = [math.prod(shape)] * rank
    shortest = Distances(shape, dims, size, 0.0, 0.0, 0.0, 450e9)
    find = Planner(shape, dims, size, NO_LATENCY)
    for source, target in pairs_of(shape, rank):
        if source[1]:
            continue
        ends = shortest.index[source], shortest.index[target]
        moved = find(source, target)[2]
        assert moved == pytest.approx(shortest.seconds[ends] * 450e9, rel=1e-9)
        assert moved >= shortest.received[ends] * (1 - 1e-12)


# ---- beyond what the whole search covers

MANY_AXES = (2, 2, 2, 2, 2)


def test_a_scalar_that_all_devices_have_is_not_sent():
    """It has no index in any dimension, on either side."""
    exchange = tvm_ffi.get_global_func("distir.test.ExchangeCost")
    replicated = ((4,), [0, 1, 2, 3], [[], [], "none"])
    assert list(exchange(UNIFORM, *replicated, *replicated, 4.0)) == [0, 0, 0, 0]
    elsewhere = ((4,), [4, 5, 6, 7], [[], [], "none"])
    assert list(exchange(UNIFORM, *replicated, *elsewhere, 4.0))[1:] == [4, 1, 4]


@pytest.mark.parametrize(("shape", "rank"), [(MANY_AXES, 2), (MANY_AXES, 4), ((8, 8), 2)], ids=str)
def test_many_axes_arrive_with_the_fewest_bytes(shape, rank):
    # A reduction and an exchange bound every plan; an exchange moves the fewest bytes there are.
    rng = np.random.default_rng(0)
    checker = StepChecker(shape, rank) if rank == 2 else None
    fast = Planner(shape, [math.prod(shape)] * rank, 2.0**30, NO_LATENCY)
    real = Planner(shape, [math.prod(shape)] * rank, 2.0**12, UNIFORM)
    exchange = tvm_ffi.get_global_func("distir.test.ExchangeCost")
    ids = list(range(math.prod(shape)))
    for _ in range(60):
        source, target = random_sharding(shape, rank, rng), random_sharding(shape, rank, rng)
        steps, _, received = fast(source, target)
        if checker:
            checker.check(source, target, steps)
        ends = ([*source, "none"], shape, ids, [*target, "none"])
        _, lacking, _, sent = exchange(NO_LATENCY, shape, ids, *ends, 2.0**30)
        assert lacking * (1 - 1e-6) <= received <= max(lacking, sent) * (1 + 1e-6)
        direct = exchange(UNIFORM, shape, ids, *ends, 2.0**12)[0]
        assert real(source, target)[1] <= direct * (1 + 1e-6)


def random_sharding(shape, rank, rng):
    parts = [(axis, 2**bit, 2) for axis, n in enumerate(shape) for bit in range(int(math.log2(n)))]
    dims = [[] for _ in range(rank)]
    for part in rng.permutation(len(parts))[: rng.integers(len(parts) + 1)]:
        dims[rng.integers(rank)].append(parts[part])
    return tuple(tuple(axes) for axes in dims), ()


@pytest.mark.parametrize("partial", [(), ((1, 1, 2),)], ids=["whole", "partial"])
def test_references_without_common_parts(partial):
    # Six devices seen as 2 x 3 and as 3 x 2: no part of one is made of parts of the other.
    shape = (6, 2)
    two, three = ((0, 1, 2),), ((0, 1, 3),)
    source, target = ((two, ()), partial), (((), three), ())
    StepChecker(shape, 2).check(source, target, plan(shape, source, target))


# ---- what plans look like


@pytest.mark.parametrize(("shape", "rank"), [((2, 2, 2), 3), ((2, 3, 2), 2)], ids=str)
def test_what_every_device_holds_already_is_sliced(shape, rank):
    replicated = (((),) * rank, ())
    for target in all_shardings(shape, rank):
        kinds = {kind for kind, _, _ in plan(shape, replicated, target)}
        assert kinds <= {"slice"}


def test_nothing_to_do_is_no_step():
    for sharding in all_shardings((2, 2), 2):
        assert plan((2, 2), sharding, sharding) == []


def test_plans_are_deterministic():
    for source, target in some_pairs((2, 2, 2), 2, 50):
        assert plan((2, 2, 2), source, target) == plan((2, 2, 2), source, target)


X, Y = (0, 1, 2), (1, 1, 2)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize(
    ("source", "target", "kinds"),
    [
        ((((X,), ()), ()), (((), ()), ()), ["all_gather"]),
        ((((X, Y), ()), ()), (((), ()), ()), ["all_gather"]),
        ((((), ()), ()), (((X,), ()), ()), ["slice"]),
        ((((), ()), ()), (((X, Y), ()), ()), ["slice"]),
        ((((X,), ()), ()), (((), (X,)), ()), ["all_to_all"]),
        ((((), ()), (X,)), (((X,), ()), ()), ["reduce_scatter"]),
        ((((X,), ()), (Y,)), (((X, Y), ()), ()), ["reduce_scatter"]),
        ((((X,), ()), ()), (((Y,), ()), ()), ["permute"]),
    ],
)
def test_single_collectives(source, target, kinds, size):
    steps = plan((2, 2), source, target, size=size)
    assert [kind for kind, _, _ in steps] == kinds


def test_large_tensors_take_one_exchange():
    source, target = (((X, Y), ()), ()), (((Y,), (X,)), ())
    large = plan((2, 2), source, target, size=2.0**30)
    assert [kind for kind, _, _ in large] == ["exchange"]


def test_where_messages_are_dear_there_are_fewer():
    # To gather eight blocks by sends and receives takes seven messages, by all-gathers three.
    source, target = ((((0, 1, 8),),), ()), (((),), ())
    dear = {"launch": 0.0, "latency": [0.0], "gap": [1.0], "bandwidth": [1e12]}
    steps, seconds, _ = Planner((8,), [8], 64.0, dear)(source, target)
    assert {kind for kind, _, _ in steps} == {"all_gather"}
    assert seconds == pytest.approx(3.0)


# ---- the checkers themselves


def sabotaged(steps):
    """Plans that are wrong in one place."""
    for index, (kind, result, reduced) in enumerate(steps):
        yield steps[:index] + steps[index + 1 :]
        turned = (result[0][::-1], result[1])
        if turned != result:
            yield [*steps[:index], (kind, turned, reduced), *steps[index + 1 :]]


def test_model_rejects_wrong_plans():
    # Each of these plans is needed in full, and every change to a step shows.
    cases = [
        ((((X,), ()), ()), (((), (X,)), ())),
        ((((X,), (Y,)), ()), (((Y,), (X,)), ())),
        ((((), ()), (X, Y)), (((X,), ()), ())),
        ((((X,), ()), ()), (((), ()), ())),
    ]
    rejected = 0
    for source, target in cases:
        for wrong in sabotaged(plan((2, 2), source, target)):
            with pytest.raises((AssertionError, ValueError)):
                StepChecker((2, 2), 2).check(source, target, wrong)
            rejected += 1
    assert rejected >= 2 * len(cases)


def test_brute_force_notices_a_dearer_plan():
    shortest = Distances((2, 2), [4, 4], 2.0**30, *LINKS)
    source, target = (((X,), (Y,)), ()), (((Y,), (X,)), ())
    through = (((), ()), ())
    find = Planner((2, 2), [4, 4], 2.0**30, UNIFORM)
    detour = find(source, through)[1] + find(through, target)[1]
    expected = shortest.seconds[shortest.index[source], shortest.index[target]]
    assert find(source, target)[1] == pytest.approx(expected, rel=1e-6)
    assert detour > 1.5 * expected


# ---- bad requests


def call(source, target, dims=(4, 4)):
    find = tvm_ffi.get_global_func("distir.test.Planner")(None)
    return find([2, 2], [0, 1, 2, 3], source, target, dims, 64.0)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (
            [[[[0, 1, 2]]], [], "none"],
            [[[], []], [], "none"],
            r"sharded \('x',\) to \(None, None\)",
        ),
        ([[[], []], [], "none"], [[[], []], [[0, 1, 2]], "sum"], "partial sum over 'x'"),
        ([[[[2, 1, 2]], []], [], "none"], [[[], []], [], "none"], "axis"),
        ([[[[0, 1, 3]], []], [], "none"], [[[], []], [], "none"], "3"),
    ],
)
def test_impossible_requests_are_named(source, target, message):
    with pytest.raises(ValueError, match=message):
        call(source, target)
