"""Every rule of the table against numerical truth: placed in many ways, equal to one device."""

from __future__ import annotations

import itertools

import pytest

from distir_ext.rules import operators

from ..operators import CASES
from ..partitioned import check
from ..placement import MESHES
from ..sampling import PROGRAMS, programs_of

WITHOUT_RULE = {"calls", "distribution", "manual region"}
"""Families that no rule of the table shards, or that mean something in a manual region only:
tests/manual has their numbers."""


def test_every_operator_that_is_sharded_has_cases():
    rows = (row for row in operators() if row.family not in WITHOUT_RULE)
    # What a barrier stops is another question than a rule: test_controls has its numbers.
    barrier = {"relax.dist.propagation_barrier"}
    sharded = {row.operator for row in rows if row.exploited != "replicated"}
    assert sharded == set(CASES) | barrier


def pytest_generate_tests(metafunc):
    """Every operator on every mesh; in the small sample on every other one, there with half of its
    cases, so that two meshes of an operator see all of them."""
    if "mesh" not in metafunc.fixturenames:
        return
    small = metafunc.config.getoption("--sample") == "small"
    chosen = [
        (op, mesh, (slice(place // 2 % 2, None, 2) if small and len(cases) > 1 else slice(None)))
        for number, (op, cases) in enumerate(CASES.items())
        for place, mesh in enumerate(MESHES)
        if not small or (place - number) % 2 == 0
    ]
    ids = [f"{op}-{'x'.join(map(str, mesh))}" for op, mesh, _ in chosen]
    metafunc.parametrize(("op", "mesh", "cases"), chosen, ids=ids)


@pytest.mark.every_case_in_large
def test_rule(op, mesh, cases, sample, session_of):
    programs = programs_of(CASES[op][cases], mesh, sample(*PROGRAMS))
    runs_sharded = False
    while batch := list(itertools.islice(programs, 200)):
        check(batch, session_of(mesh))
        runs_sharded |= any(program.expectation.runs_sharded for program in batch)
    assert runs_sharded or not shardable(op)


def shardable(op: str) -> bool:
    """Whether any dimension of any case has a factor."""
    letters = "".join(o.letters for case in CASES[op] for o in case.operands)
    return any(letter.isalpha() for letter in letters)
