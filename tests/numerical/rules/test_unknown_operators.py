"""Operators that the table replicates run on copies: still right, whatever the placements."""

from __future__ import annotations

import itertools
import logging

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op as R

import distir_ext as dx

from ..case import Case, Operand
from ..partitioned import Partitioned, check
from ..placement import Expectation, all_placements

CASES = [
    Case("relax.eye_like", "", (Operand((6, 8), ".."),), ("..",), R.eye_like, exact=True),
    Case(
        "relax.size",
        "",
        (Operand((6, 8), ".."),),
        ("",),
        R.size,
        exact=True,
        numpy=np.size,
    ),
    # Of these the data decides the shape of the result.
    Case(
        "relax.nonzero",
        "",
        (Operand((8, 6), "..", "int32", "index 2"),),
        ("..",),
        R.nonzero,
        exact=True,
        numpy=lambda x: np.stack(np.nonzero(x)),
    ),
    Case(
        "relax.unique",
        "",
        (Operand((24,), ".", "int32", "index 7"),),
        (".",),
        R.unique,
        exact=True,
        numpy=np.unique,
    ),
    Case(
        "relax.dynamic_strided_slice",
        "",
        (Operand((8, 6), ".."), *(Operand((2,), ".", "int64", f"index {n}") for n in (2, 5))),
        ("..",),
        lambda x, begin, end: R.dynamic_strided_slice(
            x, begin, R.add(end, relax.const(1, "int64")), R.ones_like(begin)
        ),
        exact=True,
    ),
    Case(
        "relax.meshgrid",
        "xy ",
        (Operand((8,), "."), Operand((8,), ".")),
        ("..", ".."),
        lambda x, y: R.meshgrid([x, y], "xy"),
        exact=True,
        numpy=np.meshgrid,
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


def called_twice(op, *shapes):
    params = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            for _ in range(2):
                value = builder.emit(op(*params))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return builder.get()


def warnings_of(mod, caplog):
    caplog.clear()
    mesh = dx.Mesh((2,), ("x",))
    with caplog.at_level(logging.WARNING, "distir_ext"):
        dx.transform.PropagateSharding()(dx.annotate(mod, mesh, {"x0": ("x", None)}))
    return [record.getMessage() for record in caplog.records]


def test_an_operator_that_is_replicated_says_why_once(caplog):
    mod = called_twice(lambda x: R.memory.view(x, (6, 8)), (8, 6))
    first, second = warnings_of(mod, caplog), warnings_of(mod, caplog)
    assert first == [
        "distir_ext: in `main`: operator relax.memory.view keeps its operands and results "
        "replicated: manages or reinterprets memory, after partitioning"
    ]
    assert second == []


def test_tensors_that_are_made_whole_need_no_warning(caplog):
    mod = called_twice(lambda x: R.add(x, R.full((8, 6), relax.const(1.0))), (8, 6))
    assert warnings_of(mod, caplog) == []


def test_a_function_without_a_rule_is_named_once(caplog):
    def call(x):
        return relax.call_dps_packed(
            "tests.without_a_rule", [x], out_ty=relax.TensorType((8, 6), "float32")
        )

    mod = called_twice(call, (8, 6))
    first, second = warnings_of(mod, caplog), warnings_of(mod, caplog)
    assert first == [
        "distir_ext: in `main`: no sharding rule for operator tests.without_a_rule: "
        "its operands and results are replicated; "
        'state a rule with dx.register_rule("tests.without_a_rule", ...)'
    ]
    assert second == []
