"""Tests of the partition of lists, compared with every possible one."""

import itertools
import random

import pytest
from tests.native.library import call


def partition(work, operators, devices, transfer, slack):
    return list(call("Partition", work, operators, devices, transfer, slack))


def cost(first_items, work, devices, transfer):
    """The time of the slowest stage, and the sum of transfers."""
    ends = [*first_items[1:], len(work)]
    slowest = max(
        sum(work[begin:end]) / count
        for begin, end, count in zip(first_items, ends, devices, strict=True)
    )
    return slowest, sum(transfer[stage][item] for stage, item in enumerate(first_items) if stage)


def every_cut(operators, num_stages):
    for cuts in itertools.combinations(range(1, len(operators)), num_stages - 1):
        first_items = [0, *cuts]
        ends = [*cuts, len(operators)]
        if all(any(operators[b:e]) for b, e in zip(first_items, ends, strict=True)):
            yield first_items


@pytest.mark.parametrize("seed", range(150))
def test_no_cut_is_better(seed):
    rng = random.Random(seed)
    num_items, num_stages = rng.randint(1, 9), rng.randint(1, 4)
    operators = [rng.random() < 0.7 for _ in range(num_items)]
    work = [float(rng.randint(0, 5)) if each else 0.0 for each in operators]
    devices = [float(rng.randint(1, 3)) for _ in range(num_stages)]
    transfer = [[float(rng.randint(0, 4)) for _ in range(num_items)] for _ in range(num_stages)]
    slack = rng.choice([0.0, 0.05, 0.5])
    arguments = (work, operators, devices, transfer, slack)
    if sum(operators) < num_stages:
        with pytest.raises(ValueError, match="need at least as many operators"):
            partition(*arguments)
        return
    costs = [cost(each, work, devices, transfer) for each in every_cut(operators, num_stages)]
    slowest = min(costs)[0]
    balanced = [each for each in costs if each[0] <= slowest * (1 + slack) * (1 + 1e-9)]
    transfers = min(each[1] for each in balanced)
    expected = min(each[0] for each in balanced if each[1] == transfers)
    found = partition(*arguments)
    assert found in list(every_cut(operators, num_stages))
    assert cost(found, work, devices, transfer) == pytest.approx((expected, transfers))


def test_the_example_of_the_header():
    arguments = [4.0] * 4, [True] * 4, [1.0, 1.0], [[], [9.0, 9.0, 9.0, 1.0]]
    assert partition(*arguments, 0.0) == [0, 2]
    assert partition(*arguments, 0.5) == [0, 3]
