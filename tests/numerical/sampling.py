"""Which placements of which cases are run."""

from __future__ import annotations

import itertools
import math
import random
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

PROGRAMS_PER_OPERATOR_AND_MESH = 24
"""Of the default run; every case of an operator has two at least."""

PROGRAMS_PER_CASE_AND_MESH = 400
"""With --exhaustive a case has all its combinations if they are at most so many."""


def programs_of(cases: Sequence[Case], mesh: MeshShape, exhaustive: bool) -> list[Partitioned]:
    """Programs of one operator on one mesh; the same in every run."""
    programs = []
    for case in cases:
        share = PROGRAMS_PER_OPERATOR_AND_MESH / (4 if case.expensive else 1)
        budget = max(2, math.ceil(share / len(cases)))
        if exhaustive:
            budget = PROGRAMS_PER_CASE_AND_MESH
        programs.extend(_programs_of_case(case, mesh, budget))
    return programs


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
