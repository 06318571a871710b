"""Sample of placements and cases to run."""

from __future__ import annotations

import itertools
import math
import random
import sys
import zlib
from collections.abc import Iterator, Sequence

from .case import Case
from .partitioned import Partitioned, result_shapes
from .placement import (
    Dims,
    Expectation,
    MeshShape,
    all_placements,
    expect_from_operands,
    expect_from_result,
)

PROGRAMS = (4, 6, None)
"""Of an operator on one mesh, in the small, large and whole sample; each of its cases has two at
least."""


def programs_of(
    cases: Sequence[Case], mesh: MeshShape, count: int | None = PROGRAMS[1]
) -> Iterator[Partitioned]:
    """Programs of one operator on one mesh, the same in every run; all of them without a count."""
    for case in cases:
        if count is None:
            budget = sys.maxsize
        else:
            share = count / (4 if case.expensive else 1)
            budget = max(2, math.ceil(share / len(cases)))
        yield from _programs_of_case(case, mesh, budget)


def _programs_of_case(case: Case, mesh: MeshShape, budget: int) -> Iterator[Partitioned]:
    rng = random.Random(zlib.crc32(f"{case} {mesh}".encode()))
    operands = [list(all_placements(mesh, operand.shape)) for operand in case.operands]
    results = [list(all_placements(mesh, shape)) for shape in result_shapes(case)]
    nothing: tuple[Dims | None, ...] = (None,) * len(case.results)
    unplaced: tuple[Dims | None, ...] = (None,) * len(case.operands)

    half = math.ceil(budget / 2) if case.operands else 0
    for placed in _pick(operands, half, rng) if case.operands else ():
        expectation = expect_from_operands(case, mesh, placed)
        yield Partitioned(case, mesh, placed, nothing, expectation)
    quarter = rng.choice((0, 1)) if budget < 4 else budget // 4
    if not case.operands:
        quarter = budget
    for (dims,) in _pick(results[:1], quarter, rng):
        expectation = expect_from_result(case, mesh, dims)
        yield Partitioned(case, mesh, unplaced, (dims, *nothing[1:]), expectation)
    if case.operands:
        for placed in _pick(operands + results, budget - half - quarter, rng):
            split = len(operands)
            # Operands and results may disagree in any way: only the numbers are checked.
            yield Partitioned(
                case, mesh, placed[:split], placed[split:], Expectation(runs_sharded=False)
            )


def _pick(
    choices: Sequence[Sequence[Dims]], count: int, rng: random.Random
) -> Iterator[tuple[Dims, ...]]:
    """``count`` distinct combinations of one choice each, or all; copies everywhere come last."""
    total = math.prod(map(len, choices))
    # The first combination places everything as copies, which says little about a rule.
    if total <= count:
        yield from itertools.product(*choices)
        return
    for number in rng.sample(range(1, total), min(count, total - 1)):
        combination = []
        for options in reversed(choices):
            number, index = divmod(number, len(options))
            combination.append(options[index])
        yield tuple(reversed(combination))
