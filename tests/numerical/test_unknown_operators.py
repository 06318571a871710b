"""Operators without a rule run on copies: still right, whatever the placements."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tvm.relax import op as R
from tvm.relax.op import nn

from .case import Case, Operand
from .partitioned import Partitioned, check
from .placement import Expectation, all_placements

CASES = [
    Case("relax.tile", "", (Operand((8, 6), ".."),), ("..",), lambda x: R.tile(x, (2, 3))),
    Case(
        "relax.stack",
        "",
        (Operand((8, 4), ".."), Operand((8, 4), "..")),
        ("...",),
        lambda x, y: R.stack([x, y], 1),
        numpy=lambda x, y: np.stack([x, y], 1),
        exact=True,
    ),
    Case("relax.flatten", "", (Operand((4, 6), ".."),), (".",), R.flatten),
    Case(
        "relax.einsum",
        "",
        (Operand((4, 6), ".."), Operand((6, 8), "..")),
        ("..",),
        lambda x, y: R.einsum((x, y), "ik,kj->ij"),
        numpy=lambda x, y: x @ y,
    ),
    Case(
        "relax.nn.conv2d",
        "",
        (Operand((4, 2, 6, 6), "...."), Operand((4, 2, 3, 3), "....")),
        ("....",),
        lambda x, w: nn.conv2d(x, w, padding=1),
    ),
    Case(
        "relax.nn.pad",
        "",
        (Operand((4, 6), ".."),),
        ("..",),
        lambda x: nn.pad(x, [1, 1, 2, 0]),
        numpy=lambda x: np.pad(x, ((1, 1), (2, 0))),
        exact=True,
    ),
    Case(
        "relax.scatter_elements",
        "",
        (
            Operand((8, 4), ".."),
            Operand((2, 4), "..", "int64", "index 8"),
            Operand((2, 4), ".."),
        ),
        ("..",),
        lambda x, i, u: R.scatter_elements(x, i, u, 0, "add"),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("mesh", [(2,), (2, 2)], ids=str)
def test_operators_without_a_rule_run_on_copies(case, mesh, session_of):
    choices = [list(all_placements(mesh, operand.shape)) for operand in case.operands]
    placements = list(itertools.product(*choices))[:: max(1, len(choices[0]) // 3)][:12]
    nothing = (None,) * len(case.results)
    programs = [
        Partitioned(case, mesh, placed, nothing, Expectation(runs_sharded=False))
        for placed in placements
    ]
    check(programs, session_of(mesh))
