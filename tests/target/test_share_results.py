"""ShareResults: workers of a group share one buffer for a collective's result that is only read."""

import pytest
import tvm
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx


def share(mod):
    found = dx.transform.ShareResults()(mod)
    assert relax.analysis.check_well_formed(found)
    return found


def test_results_that_are_only_read():
    @I.ir_module
    class Before:
        @T.prim_func(private=True, s_tir=True)
        def negative(x: T.Buffer((128, 512), "float32"), out: T.Buffer((128, 512), "float32")):
            for i, j in T.grid(128, 512):
                with T.sblock("out"):
                    v0, v1 = T.axis.remap("SS", [i, j])
                    out[v0, v1] = -x[v0, v1]

        @R.function(pure=False)
        def main(x: R.Tensor((64, 512), "float32"), w: R.Tensor((512, 8), "float32")):
            lv = R.call_dps_packed(
                "distir.runtime.all_gather",
                (x, R.str("[[0,1]]"), R.prim_value(0)),
                out_ty=R.Tensor((128, 512), "float32"),
            )
            lv1 = R.call_tir(Before.negative, (lv,), out_ty=R.Tensor((128, 512), "float32"))
            lv2 = R.call_dps_packed(
                "distir.runtime.all_reduce",
                (lv1, R.str("[[0,1]]"), R.str("sum")),
                out_ty=R.Tensor((128, 512), "float32"),
            )
            lv3 = R.reshape(lv2, R.shape([128, 512]))
            lv4 = R.call_dps_packed(
                "distir.runtime.einsum",
                (lv3, w, R.str("ab,bc->ac")),
                out_ty=R.Tensor((128, 8), "float32"),
            )
            return lv4

    @I.ir_module
    class Expected:
        @T.prim_func(private=True, s_tir=True)
        def negative(x: T.Buffer((128, 512), "float32"), out: T.Buffer((128, 512), "float32")):
            for i, j in T.grid(128, 512):
                with T.sblock("out"):
                    v0, v1 = T.axis.remap("SS", [i, j])
                    out[v0, v1] = -x[v0, v1]

        @R.function(pure=False)
        def main(x: R.Tensor((64, 512), "float32"), w: R.Tensor((512, 8), "float32")):
            lv = R.call_packed(
                "distir.runtime.shared_all_gather",
                x,
                R.str("[[0,1]]"),
                R.prim_value(0),
                ty_args=(R.Tensor((128, 512), "float32"),),
            )
            lv1 = R.call_tir(Expected.negative, (lv,), out_ty=R.Tensor((128, 512), "float32"))
            lv2 = R.call_packed(
                "distir.runtime.shared_all_reduce",
                lv1,
                R.str("[[0,1]]"),
                R.str("sum"),
                ty_args=(R.Tensor((128, 512), "float32"),),
            )
            lv3 = R.reshape(lv2, R.shape([128, 512]))
            lv4 = R.call_dps_packed(
                "distir.runtime.einsum",
                (lv3, w, R.str("ab,bc->ac")),
                out_ty=R.Tensor((128, 8), "float32"),
            )
            return lv4

    tvm.ir.assert_structural_equal(share(Before), Expected)


def gathered(use, shape=(128, 512)):
    """A function that gathers `x`, with what `use(builder, gathered, x)` makes of that."""
    builder = relax.BlockBuilder()
    local = (shape[0] // 2 if isinstance(shape[0], int) else shape[0], *shape[1:])
    x = relax.Var("x", relax.TensorType(local, "float32"))
    with builder.function("main", [x], pure=False):
        arguments = [x, tvm.ir.StringImm("[[0,1]]"), relax.prim_value(0)]
        call = relax.call_dps_packed(
            "distir.runtime.all_gather", arguments, out_ty=relax.TensorType(shape, "float32")
        )
        builder.emit_func_output(use(builder, builder.emit(call, "whole"), x))
    return builder.get()


def double(builder, value):
    return builder.emit_te(lambda t: tvm.te.compute(t.shape, lambda *i: t(*i) * 2), value)


LEAVES = {
    "is returned": lambda builder, value, _: value,
    "is returned as a view": lambda builder, value, _: builder.emit(relax.op.reshape(value, (-1,))),
    "is returned in a tuple": lambda builder, value, x: relax.Tuple([x, value]),
    "is given another name": lambda builder, value, _: builder.emit(value),
    "is seen by a packed function": lambda builder, value, _: builder.emit(
        relax.call_pure_packed("f", value, ty_args=relax.TensorType((1,), "float32"))
    ),
    "is changed in place": lambda builder, value, _: builder.emit(
        relax.op.call_inplace_packed(
            "f", value, inplace_indices=[0], ty_args=[relax.TensorType((128, 512), "float32")]
        )
    ),
}


@pytest.mark.parametrize("use", LEAVES.values(), ids=LEAVES)
def test_a_result_that_others_may_write_to_stays(use):
    mod = gathered(use)
    assert share(mod).same_as(mod)


def test_a_result_that_a_kernel_changes_in_place_stays():
    @I.ir_module
    class Before:
        @T.prim_func(private=True, s_tir=True)
        def negative(x: T.Buffer((128, 512), "float32")):
            for i, j in T.grid(128, 512):
                with T.sblock("out"):
                    v0, v1 = T.axis.remap("SS", [i, j])
                    x[v0, v1] = -x[v0, v1]

        @R.function(pure=False)
        def main(x: R.Tensor((64, 512), "float32")):
            lv = R.call_dps_packed(
                "distir.runtime.all_gather",
                (x, R.str("[[0,1]]"), R.prim_value(0)),
                out_ty=R.Tensor((128, 512), "float32"),
            )
            lv1 = R.call_tir_inplace(
                Before.negative,
                (lv,),
                inplace_indices=[0],
                out_ty=R.Tensor((128, 512), "float32"),
            )
            return lv1

    assert share(Before).same_as(Before)


def test_small_results_stay_and_symbolic_ones_do_not():
    small = gathered(lambda builder, value, _: double(builder, value), (4, 8))
    assert share(small).same_as(small)
    n = tvm.tirx.Var("n", "int64")
    symbolic = gathered(lambda builder, value, _: double(builder, value), (n, 8))
    assert "shared_all_gather" in share(symbolic).script()


def test_branches():
    @I.ir_module
    class Before:
        @R.function(pure=False)
        def main(x: R.Tensor((64, 512), "float32"), c: R.Tensor((), "bool")):
            lv = R.call_dps_packed(
                "distir.runtime.all_gather",
                (x, R.str("[[0,1]]"), R.prim_value(0)),
                out_ty=R.Tensor((128, 512), "float32"),
            )
            if c:  # noqa: SIM108
                y = R.call_dps_packed("f", (lv,), out_ty=R.Tensor((128, 512), "float32"))
            else:
                y = lv
            return y

    assert share(Before).same_as(Before), "the value of a branch leaves it"
