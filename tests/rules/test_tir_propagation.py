"""R.call_tir in the passes: placements, warnings, errors, symbolic sizes."""

import logging

import pytest
import tvm
from tests.rules.lowering import LOWERING, collectives
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx
from distir_ext import rules

MESH = dx.Mesh((2, 2), ("a", "b"))


@I.ir_module
class Mlp:
    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"),
        up: R.Tensor((16, 32), "float32"),
        down: R.Tensor((32, 16), "float32"),
    ):
        with R.dataflow():
            hidden = R.nn.silu(R.matmul(x, up))
            y = R.add(x, R.matmul(hidden, down))
            R.output(y)
        return y


MEGATRON = {"x": ("a", None), "up": (None, "b"), "down": ("b", None)}


def test_kernels_are_placed_as_their_operators():
    before = LOWERING(dx.annotate(Mlp, MESH, MEGATRON))
    after = LOWERING(dx.annotate(relax.transform.LegalizeOps()(Mlp), MESH, MEGATRON))
    assert collectives(after) == collectives(before) == ["R.ccl.all_reduce"]
    tvm.ir.assert_structural_equal(after["main"].ret_ty, before["main"].ret_ty)


def test_local_kernels_are_shared_by_calls_that_divide_alike():
    mod = relax.transform.LegalizeOps()(Mlp)
    kernels = {gv.name_hint for gv in mod.functions} - {"main"}
    lowered = LOWERING(dx.annotate(mod, MESH, MEGATRON))
    made = {gv.name_hint for gv in lowered.functions} - kernels - {"main"}
    assert made == {name + "_local" for name in kernels}
    shape = [int(size) for size in lowered["matmul_local"].params[1].ty.shape]
    assert shape == [16, 16]


def test_propagated_text_parses_back():
    mod = dx.annotate(relax.transform.LegalizeOps()(Mlp), MESH, MEGATRON)
    mod = dx.transform.PropagateSharding()(mod)
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script(show_meta=True)), mod)


@I.ir_module(s_tir=True)
class Opaque:
    @T.prim_func(private=True, s_tir=True)
    def halves(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8, 8), "float32")):
        for i in range(8):
            with T.sblock("C"):
                vi = T.axis.spatial(8, i)
                for j in range(vi):
                    C[vi, j] = A[vi, j]

    @R.function
    def main(x: R.Tensor((8, 8), "float32")):
        cls = Opaque
        y = R.call_tir(cls.halves, (x,), out_ty=R.Tensor((8, 8), "float32"))
        return y


def test_kernel_that_is_not_understood_is_replicated_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING, logger="distir_ext"):
        mod = dx.transform.PropagateSharding()(dx.annotate(Opaque, MESH, {"x": ("a", None)}))
    assert 'y: R.DTensor((8, 8), "float32", "mesh[0]", "R, R")' in mod.script() or (
        'out_ty=R.DTensor((8, 8), "float32", "mesh[0]", "R, R")' in mod.script()
    )
    assert "kernel halves: an extent depends on another iterator" in caplog.text


@pytest.mark.parametrize(
    ("placements", "message"),
    [
        (("S[1]", "R"), "kernel `double`: result 0 is placed as"),
        (("R", "S[0]"), "kernel `double`: operand 0 is placed as"),
    ],
)
def test_call_that_does_not_fit_its_kernel_is_an_error(placements, message):
    text = """
@I.ir_module(s_tir=True)
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @T.prim_func(private=True, s_tir=True)
    def double(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8, 8), "float32")):
        for i, j in T.grid(8, 8):
            with T.sblock("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj] * T.float32(2)

    @R.function
    def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "%s")):
        cls = Module
        y = R.dist.call_tir(
            cls.double, (x,), out_ty=R.DTensor((8, 8), "float32", "mesh[0]", "%s")
        )
        return y
"""
    mod = tvm.script.from_source(text % placements)
    with pytest.raises(ValueError, match=message):
        dx.transform.LowerDistIR()(mod)


def test_reshape_of_symbolic_batches():
    n = tvm.ir.Var("n", tvm.ir.PrimType("int64"))
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((2, n, 32), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.reshape(x, (2, n, 4, 8))))
    kernel = relax.transform.LegalizeOps()(builder.get())["reshape"]
    assert rules.describe_kernel(kernel) == (
        "x[0][1][2 3] T_reshape[0][1][2][3]; "
        "0: 2 parallel, 1: ? parallel, 2: 4 parallel, 3: 8 parallel"
    )
