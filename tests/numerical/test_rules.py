"""Every rule of the table against numerical truth: placed in many ways, equal to one device."""

from __future__ import annotations

import pytest

from distir_ext.rules import operators

from .operators import CASES
from .partitioned import check
from .placement import MESHES
from .sampling import programs_of

CREATED = {"arange", "eye", "full", "hamming_window", "ones", "zeros"}
"""Made on every device, then sliced: they have cases although no rule shards them."""


def test_every_operator_that_is_sharded_has_cases():
    sharded = {row.operator for row in operators() if row.parallel or row.reduced}
    assert sharded | {f"relax.{name}" for name in CREATED} == set(CASES)


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: "x".join(map(str, mesh)))
@pytest.mark.parametrize("op", CASES)
def test_rule(op, mesh, exhaustive, session_of):
    programs = programs_of(CASES[op], mesh, exhaustive)
    assert any(program.expectation.runs_sharded for program in programs) or not shardable(op)
    for begin in range(0, len(programs), 200):
        check(programs[begin : begin + 200], session_of(mesh))


def shardable(op: str) -> bool:
    """Whether any dimension of any case has a factor."""
    letters = "".join(o.letters for case in CASES[op] for o in case.operands)
    return any(letter.isalpha() for letter in letters)
