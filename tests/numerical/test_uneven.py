"""Every operator with dimensions that their shards do not divide, against one device."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence

import pytest

from .case import Case
from .operators import CASES
from .partitioned import Partitioned, check, result_shapes
from .placement import Dims, Expectation, MeshShape, num_shards, padded_placements

MESHES: tuple[MeshShape, ...] = ((4,), (3, 2))

PROGRAMS_PER_OPERATOR = 4
"""Of the small sample, on one mesh; the whole one has forty times as many on each."""


def is_uneven(mesh: MeshShape, shape: Sequence[int], dims: Dims | None) -> bool:
    if dims is None:
        return False
    return any(size % n for size, n in zip(shape, num_shards(mesh, dims, len(shape)), strict=True))


def programs_of(case: Case, mesh: MeshShape, count: int) -> Iterator[Partitioned]:
    """Programs with an uneven operand or result; half of them leave the results to propagation."""
    rng = random.Random(zlib.crc32(f"uneven {case} {mesh}".encode()))
    shapes = [operand.shape for operand in case.operands] + list(result_shapes(case))
    choices = [list(padded_placements(mesh, shape)) for shape in shapes]
    split = len(case.operands)
    for _ in range(count):
        leaves_results = rng.random() < 0.5
        for _ in range(32):
            placed: list[Dims | None] = [rng.choice(options) for options in choices]
            if leaves_results:
                placed[split:] = [None] * len(case.results)
            if any(is_uneven(mesh, s, dims) for s, dims in zip(shapes, placed, strict=True)):
                expectation = Expectation(runs_sharded=False)
                yield Partitioned(
                    case, mesh, tuple(placed[:split]), tuple(placed[split:]), expectation
                )
                break


@pytest.mark.every_case_in_large
@pytest.mark.parametrize("op", CASES)
def test_rule(op, sample, session_of):
    few = (MESHES[zlib.crc32(op.encode()) % 2],)
    count = PROGRAMS_PER_OPERATOR * sample(1, 2, 40)
    cases = CASES[op]
    for mesh in sample(few, few, MESHES):
        each = max(1, count // len(cases))
        programs = [program for case in cases for program in programs_of(case, mesh, each)]
        for begin in range(0, len(programs), 200):
            check(programs[begin : begin + 200], session_of(mesh))
