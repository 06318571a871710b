"""Every rule of the table against numerical truth: placed in many ways, equal to one device."""

from __future__ import annotations

import itertools
from zlib import crc32

import pytest

from distir_ext.explain.rules import operators

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
    """Every operator on two of five meshes, which differ from operator to operator, with half of
    its cases each; in the nightly sample all of its cases on all meshes."""
    if "mesh" not in metafunc.fixturenames:
        return
    in_halves = metafunc.config.getoption("--sample") in ("small", "large")
    chosen = []
    for op, cases in CASES.items():
        first = crc32(op.encode()) % 5
        meshes = (MESHES[first], MESHES[(first + 2) % 5]) if in_halves else MESHES
        for place, mesh in enumerate(meshes):
            half = in_halves and len(cases) > 1
            chosen.append((op, mesh, slice(place, None, 2) if half else slice(None)))
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
    """True if any dimension of any case has a factor."""
    letters = "".join(o.letters for case in CASES[op] for o in case.operands)
    return any(letter.isalpha() for letter in letters)
