"""Tests of the checker: it must fail for wrong programs and for undistributed ones."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import tvm
from tests.abi.plans import own_segments
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from .case import Case
from .operators import CASES
from .partitioned import Partitioned, check, relative_rmse
from .placement import expect_from_operands, expect_from_result

MESH = (2, 2)


def matmul(left, right, result=None) -> Partitioned:
    case = next(c for c in CASES["relax.matmul"] if c.operands[0].shape == (8, 12))
    return placed(case, (left, right), result)


def reduction(name, placement, result=None) -> Partitioned:
    case = next(c for c in CASES[f"relax.{name}"] if c.operands[0].shape == (8, 12))
    return placed(case, (placement,), result)


def decomposed(op, label, *operands) -> Partitioned:
    """The first case of an operator that is sharded along a dimension that it needs replicated."""
    case = next(c for c in CASES[f"relax.{op}"] if c.decomposed and label in c.label)
    return placed(case, operands, None)


def created(op, label, result) -> Partitioned:
    """The first case of an operator that makes a tensor from sizes."""
    case = next(c for c in CASES[f"relax.{op}"] if label in c.label)
    return Partitioned(case, MESH, (), (result,), expect_from_result(case, MESH, result))


def unless_reduced_by(reduction):
    """Leaves out the all-reduces of one kind."""
    return lambda call: call.args[0] if call.attrs["reduction"] == reduction else call


def reversed_groups(call):
    return with_attrs(call, groups=[list(group)[::-1] for group in call.attrs["groups"]])


def with_segments(call, change):
    plan = json.loads(call.attrs["plan"])
    return with_attrs(call, plan=json.dumps({**plan, "segments": change(plan)}))


def other_neighbours(call):
    """Everybody sends the first element of what it should."""
    return with_segments(call, lambda plan: [[*row[:2], 0, row[3]] for row in plan["segments"]])


def without_halo(call):
    """Nothing is sent: what lies in other shards is as padding."""
    return with_segments(call, own_segments)


def placed(case: Case, operands, result) -> Partitioned:
    expectation = expect_from_operands(case, MESH, operands)
    if result is not None:
        expectation = dataclasses.replace(expectation, result_shards=None, collectives=None)
    others = (None,) * (len(case.results) - 1)
    return Partitioned(case, MESH, operands, (result, *others), expectation)


@mutator
class Sabotage(PyExprMutator):
    """Replaces the calls of one operator of a lowered module."""

    def __init__(self, mod, op, replace):
        super().__init__(mod)
        self.op = tvm.ir.Op.get(op)
        self.replace = replace
        self.count = 0

    def visit_call_(self, call):
        call = super().visit_call_(call)
        if not call.op.same_as(self.op):
            return call
        self.count += 1
        return self.replace(call)


def sabotage(op, replace):
    def change(mod):
        sabotaged = Sabotage(mod, op, replace)
        result = tvm.IRModule(
            {
                var: sabotaged.visit_expr(f) if isinstance(f, relax.Function) else f
                for var, f in mod.functions.items()
            },
            attrs=mod.attrs,
            global_infos=mod.global_infos,
        )
        assert sabotaged.count > 0, f"nothing to sabotage in\n{mod}"
        return result

    return change


def with_attrs(call, **changes):
    attrs = tvm.ir.make_node("ir.DictAttrs", **{**dict(call.attrs.items()), **changes})
    return relax.Call(call.op, call.args, attrs, call.ty_args)


SABOTAGES = [
    pytest.param(
        matmul((-1, 1), (-1, 0)),
        "relax.ccl.all_reduce",
        lambda call: call.args[0],
        id="a sum is not reduced",
    ),
    pytest.param(
        reduction("max", (0, 1)),
        "relax.ccl.all_reduce",
        lambda call: with_attrs(call, reduction="sum"),
        id="a maximum is summed",
    ),
    pytest.param(
        matmul((0, -1), (-1, -1), (-1, -1)),
        "relax.ccl.all_gather",
        lambda call: with_attrs(call, groups=[list(g)[::-1] for g in call.attrs["groups"]]),
        id="shards are gathered in reverse",
    ),
    pytest.param(
        matmul((-1, -1), (-1, -1), (0, -1)),
        "relax.ccl.slice",
        lambda call: with_attrs(call, groups=[list(g)[::-1] for g in call.attrs["groups"]]),
        id="the wrong shard is kept",
    ),
    pytest.param(
        decomposed("nn.softmax", "axis=1 normal", (0, 1)),
        "relax.ccl.all_reduce",
        unless_reduced_by("max"),
        id="every shard of a softmax has a maximum of its own",
    ),
    pytest.param(
        decomposed("nn.log_softmax", "axis=1 wide", (0, 1)),
        "relax.ccl.all_reduce",
        unless_reduced_by("sum"),
        id="every shard of a log_softmax has a sum of its own",
    ),
    pytest.param(
        decomposed("nn.layer_norm", "axes=[-1]", (0, 1), (0, -1), (-1, 0)),
        "relax.ccl.all_reduce",
        unless_reduced_by("mean"),
        id="every shard of a norm has a mean of its own",
    ),
    pytest.param(
        decomposed("take", "axis=0", (0, 0), (-1, -1)),
        "relax.ccl.slice",
        reversed_groups,
        id="a shard of a table answers for another",
    ),
    pytest.param(
        decomposed("take", "axis=0", (0, 0), (-1, -1)),
        "relax.ccl.all_reduce",
        lambda call: with_attrs(call, reduction="max"),
        id="rows of a table are not summed",
    ),
    pytest.param(
        decomposed("gather_elements", "axis=0", (0, 0), (-1, -1)),
        "relax.ccl.slice",
        reversed_groups,
        id="a shard of elements answers for another",
    ),
    pytest.param(
        decomposed("gather_nd", "batch=0", (0, 1), (-1, -1)),
        "relax.ccl.slice",
        reversed_groups,
        id="a shard of tuples answers for another",
    ),
    pytest.param(
        decomposed("scatter_elements", "axis=1 update", (0, 1), (0, -1), (0, -1)),
        "relax.ccl.slice",
        reversed_groups,
        id="a shard is written what lies in another",
    ),
    pytest.param(
        decomposed("scatter_elements", "much axis=0 add", (-1, -1), (0, 0), (0, 0)),
        "relax.ccl.all_reduce",
        unless_reduced_by("sum"),
        id="shards of what is accumulated are not summed",
    ),
    pytest.param(
        decomposed("index_put", "accumulate=True", (0, 1), (-1, -1), (-1, -1), (-1, -1)),
        "relax.ccl.slice",
        reversed_groups,
        id="two dimensions are written what lies in another shard",
    ),
    pytest.param(
        decomposed("cumsum", "axis=1", (0, 1)),
        "relax.ccl.all_gather",
        reversed_groups,
        id="totals before a shard are those behind it",
    ),
    pytest.param(
        decomposed("topk", "indices", (0, 0)),
        "relax.ccl.slice",
        reversed_groups,
        id="positions within another shard",
    ),
    pytest.param(
        decomposed("strided_slice", "[2, 0] [8", (0, 1)),
        "relax.ccl.segment_exchange",
        other_neighbours,
        id="a slice has elements of another shard",
    ),
    pytest.param(
        decomposed("nn.conv2d", "'padding': (1, 2)", (2, 3), (-1, -1)),
        "relax.ccl.segment_exchange",
        without_halo,
        id="a convolution has no halo",
    ),
    pytest.param(
        decomposed("image.resize2d", "linear half_pixel", (2, 3)),
        "relax.ccl.segment_exchange",
        without_halo,
        id="resized pixels have no neighbours",
    ),
    pytest.param(
        decomposed("tile", "(2, 1)", (0, 1)),
        "relax.ccl.segment_exchange",
        other_neighbours,
        id="a repetition has elements of another shard",
    ),
    pytest.param(
        decomposed("slice_scatter", "axis=1", (0, 1), (0, -1)),
        "relax.ccl.slice",
        reversed_groups,
        id="a slice is written to another shard",
    ),
    pytest.param(
        decomposed("argmax", "axis=1", (0, 1)),
        "relax.ccl.all_reduce",
        unless_reduced_by("min"),
        id="every shard has a first maximum of its own",
    ),
    pytest.param(
        decomposed("nn.nll_loss", "none weighted=True", (0, 1), (0, -1), (-1, 0)),
        "relax.ccl.slice",
        reversed_groups,
        id="a shard of classes has the targets of another",
    ),
    pytest.param(
        decomposed("nn.cross_entropy_with_logits", "", (-1, 1), (-1, 1)),
        "relax.ccl.all_reduce",
        unless_reduced_by("sum"),
        id="every shard of classes has a loss of its own",
    ),
    pytest.param(
        decomposed("nn.attention", "mask=TopLeft", (0, -1), (0, 1), (0, 1)),
        "relax.ccl.all_reduce",
        unless_reduced_by("sum"),
        id="every shard of keys has an attention of its own",
    ),
    pytest.param(
        decomposed("nn.attention", "mask=BottomRight", (0, 1), (0, -1), (0, -1)),
        "relax.ccl.slice",
        reversed_groups,
        id="a shard of queries sees what another may",
    ),
    pytest.param(
        decomposed("variance", "axis=1", (0, 1)),
        "relax.ccl.all_reduce",
        unless_reduced_by("mean"),
        id="every shard has a variance of its own",
    ),
    pytest.param(
        decomposed("nn.batch_norm", "axis=1", (0, 1), *[(-1, 0)] * 4),
        "relax.ccl.all_reduce",
        unless_reduced_by("mean"),
        id="every shard of a batch has statistics of its own",
    ),
    pytest.param(
        created("arange", "3:27:2", (0, -1)),
        "relax.ccl.slice",
        reversed_groups,
        id="a shard has the positions of another",
    ),
    pytest.param(
        decomposed("triu", "k=0", (0, 1)),
        "relax.ccl.slice",
        reversed_groups,
        id="a shard keeps the triangle of another",
    ),
]


@pytest.mark.parametrize(("program", "op", "replace"), SABOTAGES)
def test_a_wrong_program_is_noticed(program, op, replace, session_of):
    check([program], session_of(MESH))
    with pytest.raises(AssertionError, match=r"result 0( differs|: relative RMSE)"):
        check([program], session_of(MESH), sabotage(op, replace))


def test_a_program_on_copies_is_noticed(session_of):
    sharded = matmul((0, -1), (-1, 1))
    copies = dataclasses.replace(sharded, operands=((-1, -1), (-1, -1)))
    check([sharded], session_of(MESH))
    with pytest.raises(AssertionError, match="runs on copies"):
        check([copies], session_of(MESH))


def test_needless_communication_is_noticed(session_of):
    # Both operands are whole along k, but the right one also has to give up its columns.
    program = matmul((0, -1), (0, -1))
    needless = dataclasses.replace(program.expectation, collectives=frozenset())
    with pytest.raises(AssertionError, match="communicates by"):
        check([dataclasses.replace(program, expectation=needless)], session_of(MESH))


def test_error_measure():
    ones = np.ones(4, "float32")
    assert relative_rmse(ones, ones) == 0
    assert relative_rmse(ones * 1.5, ones) == pytest.approx(0.5)
    with_nan = np.array([np.nan, 1], "float32")
    assert relative_rmse(with_nan, with_nan) == 0
    assert relative_rmse(ones[:2], with_nan) == float("inf")
    assert relative_rmse(with_nan, ones[:2]) == float("inf")
