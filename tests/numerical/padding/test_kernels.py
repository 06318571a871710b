"""Calls of TIR kernels along dimensions that their shards do not divide, against one device."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tvm
from tests.padding.checks import padded
from tests.padding.programs import PAIR, TALL
from tvm import relax
from tvm.relax import op
from tvm.script import tirx as T
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

from .checks import assert_same_numbers, without_masks


class Case(NamedTuple):
    make: Callable[..., Any]
    shapes: dict[str, tuple[int, ...]]
    plan: dict[str, tuple[Any, ...]]
    runs: str = "padded"
    """How the kernel runs: on "padded" shards, on what is uneven "whole", or as the "operator" that
    it was made of."""


def mirrored(x):
    return op.nn.pad(x, [0, 0, 1, 2], "reflect")


# Axis "a" of every mesh has two devices or more.
CASES = {
    "rows": Case(op.exp, {"x": (7, 5)}, {"x": ("a", None)}),
    "softmax of rows": Case(lambda x: op.nn.softmax(x, -1), {"x": (7, 5)}, {"x": ("a", None)}),
    "softmax along it": Case(
        lambda x: op.nn.softmax(x, -1), {"x": (3, 7)}, {"x": (None, "a")}, "operator"
    ),
    "turned along it": Case(lambda x: op.flip(x, 1), {"x": (3, 7)}, {"x": (None, "a")}, "operator"),
    "rows tiled": Case(lambda x: op.tile(x, (1, 2)), {"x": (7, 5)}, {"x": ("a", None)}),
    "tiled along it": Case(
        lambda x: op.tile(x, (1, 2)),
        {"x": (3, 7)},
        {"x": (None, "a"), "return": (None, None)},
        "whole",
    ),
    "mirrored along it": Case(mirrored, {"x": (3, 7)}, {"x": (None, "a")}, "whole"),
    "sum": Case(lambda x: op.sum(x, [1]), {"x": (3, 7)}, {"x": (None, "a")}),
    "maximum": Case(lambda x: op.max(x, [1]), {"x": (3, 7)}, {"x": (None, "a")}),
    "minimum": Case(lambda x: op.min(x, [0]), {"x": (7, 3)}, {"x": ("a", None)}),
    "product": Case(lambda x: op.prod(x, [1]), {"x": (3, 7)}, {"x": (None, "a")}),
    "mean": Case(lambda x: op.mean(x, [1]), {"x": (3, 7)}, {"x": (None, "a")}),
    "sum of squares": Case(lambda x: op.sum(op.square(x), [1]), {"x": (3, 7)}, {"x": (None, "a")}),
    "matmul, rows": Case(op.matmul, {"x": (7, 5), "w": (5, 9)}, {"x": ("a", None)}),
    "matmul, columns": Case(op.matmul, {"x": (7, 5), "w": (5, 11)}, {"w": (None, "a")}),
    "matmul, contracted": Case(
        op.matmul, {"x": (3, 7), "w": (7, 5)}, {"x": (None, "a"), "w": ("a", None)}
    ),
    "transposed": Case(lambda x: op.permute_dims(x), {"x": (7, 5)}, {"x": ("a", None)}),
    "merged": Case(lambda x: op.reshape(x, (35,)), {"x": (7, 5)}, {"x": ("a", None)}),
    "split": Case(lambda x: op.reshape(x, (7, 2, 3)), {"x": (7, 6)}, {"x": ("a", None)}),
    # A tail may hold anything: no position, and no divisor of integers.
    "positions": Case(
        lambda x, i: op.take(x, op.astype(i, "int32"), 0),
        {"x": (7, 5), "i": (7,)},
        {"i": ("a",)},
        "operator",
    ),
    "positions of a loss": Case(
        lambda x, i: op.nn.nll_loss(x, op.astype(i, "int32"), reduction="none"),
        {"x": (7, 7), "i": (7,)},
        {"i": ("a",)},
        "operator",
    ),
    "integers divided": Case(
        lambda x, y: op.floor_divide(op.astype(x, "int32"), op.astype(y, "int32")),
        {"x": (7, 5), "y": (7, 5)},
        {"x": ("a", None), "y": ("a", None)},
        "whole",
    ),
}


def program(case: Case) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    params = [relax.Var(n, relax.TensorType(s, "float32")) for n, s in case.shapes.items()]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(case.make(*params)))
        builder.emit_func_output(result)
    return relax.transform.LegalizeOps()(builder.get())


@pytest.mark.parametrize("mesh", [PAIR, TALL], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernel(name, mesh, session_of):
    case = CASES[name]
    mod = program(case)
    annotated = dx.annotate(mod, mesh, case.plan)
    result = dx.transform.PadShards()(dx.transform.PropagateSharding()(annotated))
    last = [line for line in result["main"].script().splitlines() if " = R." in line][-1]
    assert how_runs(last) == case.runs, last
    assert_same_numbers(mod, mesh, case.plan, inputs_of(case), session_of(mesh.shape))


def how_runs(binding: str) -> str:
    if "call_tir" not in binding:
        return "operator"
    return "padded" if "_padded" in binding else "whole"


def inputs_of(case: Case) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.uniform(1, 6.9, shape).astype("float32") for shape in case.shapes.values()]


@I.ir_module
class Fused:
    """Kernels that compute on what they reduce: ``exp`` gives no zeros of zeros, ``s`` may be
    infinite."""

    @T.prim_func(private=True, s_tir=True)
    def dot(
        x: T.Buffer((3, 7), "float32"), y: T.Buffer((3, 7), "float32"), z: T.Buffer((3,), "float32")
    ):
        for i, k in T.grid(3, 7):
            with T.sblock("dot"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    z[vi] = T.float32(0)
                z[vi] = z[vi] + x[vi, vk] * y[vi, vk]

    @T.prim_func(private=True, s_tir=True)
    def sum_of_exp(x: T.Buffer((3, 7), "float32"), z: T.Buffer((3,), "float32")):
        for i, k in T.grid(3, 7):
            with T.sblock("sum"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    z[vi] = T.float32(0)
                z[vi] = z[vi] + T.exp(x[vi, vk])

    @T.prim_func(private=True, s_tir=True)
    def scaled(
        x: T.Buffer((3, 7), "float32"), s: T.Buffer((3,), "float32"), z: T.Buffer((3,), "float32")
    ):
        for i, k in T.grid(3, 7):
            with T.sblock("sum"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    z[vi] = T.float32(0)
                z[vi] = z[vi] + x[vi, vk] * s[vi]

    @R.function
    def main(x: R.Tensor((3, 7), "float32"), s: R.Tensor((3,), "float32")):
        cls = Fused
        with R.dataflow():
            e = R.exp(x)
            dot = R.call_tir(cls.dot, (e, e), out_ty=R.Tensor((3,), "float32"))
            sums = R.call_tir(cls.sum_of_exp, (x,), out_ty=R.Tensor((3,), "float32"))
            scaled = R.call_tir(cls.scaled, (x, s), out_ty=R.Tensor((3,), "float32"))
            R.output(dot, sums, scaled)
        return (dot, sums, scaled)


def test_reductions_that_tails_may_not_change(session_of):
    """Of three kernels one is padded; its operands' tails, exp(0), are masked."""
    # Stated results keep the shards of columns, which cannot be padded, from moving to rows.
    plan = {"x": (None, "a"), **{f"return.{i}": (None,) for i in range(3)}}
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype("float32") for shape in ((3, 7), (3,))]
    made = padded(dx.transform.PropagateSharding()(dx.annotate(Fused, PAIR, plan)))
    names = {gv.name_hint for gv in made.get_global_vars()}
    assert {name for name in names if name.endswith("_padded")} == {"dot_padded"}
    run = (Fused, PAIR, plan, inputs, session_of(PAIR.shape))
    assert_same_numbers(*run)
    with pytest.raises(AssertionError, match="result 0"):
        assert_same_numbers(*run, change=without_masks)
