"""DispatchMatmul: products become calls of the runtime, with transpositions folded in."""

import pytest
import tvm
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx


def check(before, expected):
    found = dx.transform.DispatchMatmul()(before)
    tvm.ir.assert_structural_equal(found, expected)
    assert relax.analysis.check_well_formed(found)
    tvm.ir.assert_structural_equal(tvm.script.from_source(found.script()), found)


def test_broadcast_batches_and_folded_transpositions():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 8, 16, 32), "float32"), w: R.Tensor((24, 32), "float32")):
            with R.dataflow():
                lv = R.permute_dims(w)
                lv1 = R.matmul(x, lv)
                lv2 = R.permute_dims(lv1, axes=[0, 2, 1, 3])
                gv = R.nn.relu(lv2)
                R.output(gv)
            return gv

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((2, 8, 16, 32), "float32"), w: R.Tensor((24, 32), "float32")):
            with R.dataflow():
                lv2 = R.call_dps_packed(
                    "distir.runtime.einsum",
                    (x, w, R.str("abcd,ed->acbe")),
                    out_ty=R.Tensor((2, 16, 8, 24), "float32"),
                )
                gv = R.nn.relu(lv2)
                R.output(gv)
            return gv

    check(Before, Expected)


def test_a_transposed_tensor_that_others_use_stays():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((64, 32), "float32"), y: R.Tensor((64, 32), "float32")):
            lv = R.permute_dims(x)
            lv1 = R.matmul(lv, y)
            lv2 = R.permute_dims(lv1)
            return (lv, lv1, lv2)

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((64, 32), "float32"), y: R.Tensor((64, 32), "float32")):
            lv = R.permute_dims(x)
            lv1 = R.call_dps_packed(
                "distir.runtime.einsum",
                (x, y, R.str("ab,ac->bc")),
                out_ty=R.Tensor((32, 32), "float32"),
            )
            lv2 = R.permute_dims(lv1)
            return (lv, lv1, lv2)

    check(Before, Expected)


def test_symbolic_sizes_vectors_and_einsum():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor(("n", 32), "float64"), v: R.Tensor((32,), "float64")):
            n = T.int64()
            a = R.matmul(x, v)
            b = R.einsum((x, x), subscripts="...j,...k->jk")
            return (a, b)

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor(("n", 32), "float64"), v: R.Tensor((32,), "float64")):
            n = T.int64()
            a = R.call_dps_packed(
                "distir.runtime.einsum",
                (x, v, R.str("ab,b->a")),
                out_ty=R.Tensor((n,), "float64"),
            )
            b = R.call_dps_packed(
                "distir.runtime.einsum",
                (x, x, R.str("ab,ac->bc")),
                out_ty=R.Tensor((32, 32), "float64"),
            )
            return (a, b)

    check(Before, Expected)


def emitted(shapes, dtype, make, out_dtype=None):
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"x{i}", relax.TensorType(shape, each))
        for i, (shape, each) in enumerate(zip(shapes, dtype, strict=True))
    ]
    with builder.function("main", params):
        builder.emit_func_output(builder.emit(make(*params)))
    return builder.get()


@pytest.mark.parametrize(
    ("shapes", "dtypes", "make"),
    [
        (((64, 64), (64, 64)), ("int32", "int32"), relax.op.matmul),
        (((4, 4), (4, 4)), ("float32", "float32"), relax.op.matmul),
        (((0, 64), (64, 64)), ("float32", "float32"), relax.op.matmul),
        (
            ((64, 64), (64, 64)),
            ("float32", "float32"),
            lambda x, y: relax.op.einsum([x, y], "ab,ab->ab"),
        ),
        (
            ((64, 64), (64, 64)),
            ("float32", "float32"),
            lambda x, y: relax.op.einsum([x, y], "aa,ab->ab"),
        ),
        (
            ((64, 64), (64, 64)),
            ("float32", "float32"),
            lambda x, y: relax.op.einsum([x, y], "ab,cc->a"),
        ),
        (((64, 64),), ("float32",), lambda x: relax.op.einsum([x], "ab->ba")),
    ],
    ids=["integers", "small", "empty", "elementwise", "diagonal", "summed alone", "one operand"],
)
def test_what_is_no_product_of_floats_stays(shapes, dtypes, make):
    mod = emitted(shapes, dtypes, make)
    assert dx.transform.DispatchMatmul()(mod).same_as(mod)


def test_products_in_branches():
    @I.ir_module
    class Before:
        @R.function
        def main(c: R.Tensor((), "bool"), x: R.Tensor((32, 32), "float32")):
            if c:
                lv = R.permute_dims(x)
                lv1 = R.matmul(x, lv)
                y = lv1
            else:
                lv2 = R.matmul(x, x)
                y = lv2
            return y

    text = dx.transform.DispatchMatmul()(Before).script()
    assert text.count("distir.runtime.einsum") == 2
    assert "permute_dims" not in text
    assert '"ab,cb->ac"' in text


def test_operands_that_are_repeated_are_read_where_they_lie():
    """Keys of a cache serve a group of queries each, without a copy for it; others use some."""

    @I.ir_module
    class Before:
        @R.function
        def main(
            q: R.Tensor((2, 4, 3, 1, 16), "float32"),
            k: R.Tensor((2, "n", 4, 16), "float32"),
            w: R.Tensor((16, 24), "float32"),
            y: R.Tensor((40, 16), "float32"),
        ):
            n = T.int64()
            with R.dataflow():
                lv = R.permute_dims(k, axes=[0, 2, 3, 1])
                lv1 = R.expand_dims(lv, axis=[2])
                lv2 = R.broadcast_to(lv1, R.shape([2, 4, 3, 16, n]))
                lv3 = R.matmul(q, lv2)
                lv4 = R.broadcast_to(w, R.shape([2, 4, 3, 16, 24]))
                lv5 = R.matmul(q, lv4)
                lv6 = R.expand_dims(w, axis=[0])
                lv7 = R.broadcast_to(lv6, R.shape([5, 16, 24]))
                lv8 = R.matmul(y, lv7)
                gv = (lv3, lv5, lv4, lv8)
                R.output(gv)
            return gv

    @I.ir_module
    class Expected:
        @R.function
        def main(
            q: R.Tensor((2, 4, 3, 1, 16), "float32"),
            k: R.Tensor((2, "n", 4, 16), "float32"),
            w: R.Tensor((16, 24), "float32"),
            y: R.Tensor((40, 16), "float32"),
        ):
            n = T.int64()
            with R.dataflow():
                lv3 = R.call_dps_packed(
                    "distir.runtime.einsum",
                    (q, k, R.str("abcde,afbe->abcdf")),
                    out_ty=R.Tensor((2, 4, 3, 1, n), "float32"),
                )
                lv4 = R.broadcast_to(w, R.shape([2, 4, 3, 16, 24]))
                lv5 = R.call_dps_packed(
                    "distir.runtime.einsum",
                    (q, w, R.str("abcde,ef->abcdf")),
                    out_ty=R.Tensor((2, 4, 3, 1, 24), "float32"),
                )
                lv6 = R.expand_dims(w, axis=[0])
                lv7 = R.broadcast_to(lv6, R.shape([5, 16, 24]))
                lv8 = R.call_dps_packed(
                    "distir.runtime.einsum",
                    (y, lv7, R.str("ab,cbd->cad")),
                    out_ty=R.Tensor((5, 40, 24), "float32"),
                )
                gv = (lv3, lv5, lv4, lv8)
                R.output(gv)
            return gv

    check(Before, Expected)
