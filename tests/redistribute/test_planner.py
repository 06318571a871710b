"""Plans, executed by a model of the collectives, end at the target for every pair of shardings."""

import itertools
import math

import numpy as np
import pytest
import tvm_ffi

from .model import all_shardings, check_plan, count, plan

MOST_PAIRS = 1200
CASES = [
    (shape, rank)
    for shape in [(2,), (4,), (2, 2), (2, 4), (2, 2, 2), (2, 3, 2)]
    for rank in (1, 2, 3)
]


def pairs(shape, rank, with_partial):
    """All ordered pairs, or a sample that is the same in every run."""
    sources = list(all_shardings(shape, rank, with_partial))
    targets = list(all_shardings(shape, rank))
    if len(sources) * len(targets) <= MOST_PAIRS:
        return list(itertools.product(sources, targets))
    rng = np.random.default_rng(rank)
    return [
        (sources[rng.integers(len(sources))], targets[rng.integers(len(targets))])
        for _ in range(MOST_PAIRS)
    ]


@pytest.mark.parametrize("with_partial", [False, True], ids=["whole", "partial"])
@pytest.mark.parametrize(("shape", "rank"), CASES, ids=str)
def test_plan_arrives(shape, rank, with_partial):
    rng = np.random.default_rng(0)
    size = math.prod(shape)
    for source, target in pairs(shape, rank, with_partial):
        check_plan(shape, size, source, target, plan(shape, source, target), rng)


def test_nothing_to_do_is_no_step():
    for sharding in all_shardings((2, 2), 2):
        assert plan((2, 2), sharding, sharding) == []


def test_references_without_common_parts():
    # Six devices seen as 2 x 3 and as 3 x 2: no part of one is made of parts of the other.
    two, three = ((0, 1, 2),), ((0, 1, 3),)
    source, target = ((two, ()), ()), (((), three), ())
    check_plan((6,), 6, source, target, plan((6,), source, target), np.random.default_rng(0))


def test_plans_are_deterministic():
    for source, target in pairs((2, 2, 2), 2, True)[:50]:
        assert plan((2, 2, 2), source, target) == plan((2, 2, 2), source, target)


X, Y = (0, 1, 2), (1, 1, 2)


@pytest.mark.parametrize(
    ("source", "target", "kinds"),
    [
        ((((X,), ()), ()), (((), ()), ()), ["all_gather"]),
        ((((X, Y), ()), ()), (((), ()), ()), ["all_gather"]),
        ((((), ()), ()), (((X,), ()), ()), ["slice"]),
        ((((X,), ()), ()), (((), (X,)), ()), ["all_to_all"]),
        ((((), ()), (X,)), (((), ()), ()), ["all_reduce"]),
        ((((), ()), (X,)), (((X,), ()), ()), ["reduce_scatter"]),
        ((((X,), ()), (Y,)), (((X, Y), ()), ()), ["reduce_scatter"]),
    ],
)
def test_single_collectives(source, target, kinds):
    assert [kind for kind, _, _ in plan((2, 2), source, target)] == kinds


def sabotaged(steps):
    """Plans that are wrong in one place."""
    for index, (kind, result, reduced) in enumerate(steps):
        yield steps[:index] + steps[index + 1 :]
        turned = (result[0][::-1], result[1])
        if turned != result:
            yield [*steps[:index], (kind, turned, reduced), *steps[index + 1 :]]


def test_model_rejects_wrong_plans():
    # Each of these plans is needed in full, and every change to a step shows.
    rng = np.random.default_rng(0)
    cases = [
        ((((X,), ()), ()), (((), (X,)), ())),
        ((((X,), (Y,)), ()), (((Y,), (X,)), ())),
        ((((), ()), (X, Y)), (((X,), ()), ())),
        ((((X,), ()), ()), (((), ()), ())),
    ]
    rejected = 0
    for source, target in cases:
        steps = plan((2, 2), source, target)
        for wrong in sabotaged(steps):
            with pytest.raises((AssertionError, ValueError)):
                check_plan((2, 2), 4, source, target, wrong, rng)
            rejected += 1
    assert rejected >= 2 * len(cases)


def call(source, target):
    return tvm_ffi.get_global_func("distir.redistribute.Plan")([2, 2], [0, 1, 2, 3], source, target)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ([[[[0, 1, 2]]], [], "none"], [[[], []], [], "none"], r"\[x:\(1\)2\] to \[-\|-\]"),
        ([[[]], [], "none"], [[[]], [[0, 1, 2]], "sum"], "partial=sum"),
        ([[[[2, 1, 2]]], [], "none"], [[[]], [], "none"], "axis"),
        ([[[[0, 1, 3]]], [], "none"], [[[]], [], "none"], "3"),
    ],
)
def test_impossible_requests_are_named(source, target, message):
    with pytest.raises(ValueError, match=message):
        call(source, target)


def test_local_size_never_exceeds_what_source_or_target_or_a_gather_needs():
    # A plan that only slices and moves keeps every device's part at most as large as the larger
    # end.
    for source, target in pairs((2, 2, 2), 2, False):
        steps = plan((2, 2, 2), source, target)
        if any(kind == "all_gather" for kind, _, _ in steps):
            continue
        least = min(num_shards(source), num_shards(target))
        assert all(num_shards(result) >= least for _, result, _ in steps)


def num_shards(sharding):
    return math.prod(count(axes) for axes in sharding[0])
