"""Per-worker programs on one mesh: local shapes, symbolic sizes, device groups."""

import pytest
import tvm
from tests.lower.verified import lowered
from tests.meshes import meshes
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx


def groups_of(function):
    """From collective to its device groups."""
    return {
        binding.value.op.name.removeprefix("relax.ccl."): [
            [int(device) for device in group] for group in binding.value.attrs["groups"]
        ]
        for block in function.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
        and getattr(binding.value.op, "name", "").startswith("relax.ccl.")
    }


def test_local_shapes_and_attributes():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2, 2)))

        @R.function
        def main(x: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 32), "float32")):
            R.func_attr({"num_input": 1})
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0], R")
            w0 = R.dist.annotate_sharding(w, "mesh[0]", "R, S[1]")
            a = R.matmul(x0, w0)
            b = R.reshape(a, R.shape([8, 4, 8]))
            c = R.broadcast_to(R.expand_dims(b, 0), R.shape([3, 8, 4, 8]))
            e = R.add(c, b)
            return e

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 16), "float32"), w: R.Tensor((16, 16), "float32")):
            R.func_attr({"num_input": 1, "distir.explicit_reductions": True})
            a = R.matmul(x, w)
            b = R.reshape(a, R.shape([4, 2, 8]))
            b1 = R.expand_dims(b, 0)
            c = R.broadcast_to(b1, R.shape([3, 4, 2, 8]))
            e = R.add(c, b)
            return e

    tvm.ir.assert_structural_equal(lowered(Before)["main"], Expected["main"])


@pytest.mark.parametrize(
    ("shape", "rows", "columns"),
    [
        ((2, 2), [[0, 2], [1, 3]], [[0, 1], [2, 3]]),
        ((2, 4), [[0, 4], [1, 5], [2, 6], [3, 7]], [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ((3, 2), [[0, 2, 4], [1, 3, 5]], [[0, 1], [2, 3], [4, 5]]),
    ],
)
def test_groups_run_along_the_axes_of_the_mesh(shape, rows, columns):
    mesh = dx.Mesh(shape, ("a", "b"))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((24, 24), "float32"))
    w = relax.Var("w", relax.TensorType((24, 24), "float32"))
    with builder.function("main", [x, w]):
        builder.emit_func_output(builder.emit(relax.op.matmul(x, w)))
    mod = dx.annotate(builder.get(), mesh, {"x": ("a", "b")})
    assert groups_of(lowered(mod)["main"]) == {"all_reduce": columns}

    mod = dx.annotate(builder.get(), mesh, {"x": ("b", "a")})
    assert groups_of(lowered(mod)["main"]) == {"all_reduce": rows}


def test_groups_follow_the_order_of_device_ids():
    mesh = dx.Mesh((2, 2), ("a", "b"), device_ids=[7, 5, 3, 1])
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 8), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.sum(x, axis=[1])))
    mod = dx.annotate(builder.get(), mesh, {"x": ("a", "b")})
    assert groups_of(lowered(mod)["main"]) == {"all_reduce": [[7, 5], [3, 1]]}


def test_symbolic_dimension_is_padded():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2, 2)))

        @R.function
        def main(
            x: R.Tensor(("n", 8), "float32"),
            y: R.Tensor(("n", 8), "float32"),
            sizes: R.Shape(["n"]),
        ):
            n = T.int64()
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0], R")
            y0 = R.dist.annotate_sharding(y, "mesh[0]", "R, R")
            a = R.reshape(x0, R.shape([n * 8]))
            b = R.add(x0, y0)
            return (a, b, y0)

    function = lowered(Before)["main"]
    x, y, sizes = function.params
    n = y.ty.shape[0]
    assert isinstance(n, tvm.ir.Var)
    assert n.same_as(sizes.ty.values[0])
    shard = (n + 1) // 2
    tvm.ir.assert_structural_equal(x.ty.shape[0], shard)
    tvm.ir.assert_structural_equal(function.ret_ty.fields[0].shape[0], shard * 8)
    tvm.ir.assert_structural_equal(function.ret_ty.fields[1].shape[0], shard)
    tvm.ir.assert_structural_equal(function.ret_ty.fields[2].shape[0], n)


def test_functions_that_are_not_distributed_are_left_alone():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def apart(x: R.Tensor((8,), "float32")) -> R.Tensor((8,), "float32"):
            y = R.exp(x)
            return y

        @R.function
        def main(x: R.Tensor((8,), "float32")):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            y = R.exp(x0)
            return y

    result = lowered(Before)
    assert result["apart"].same_as(Before["apart"])
    tvm.ir.assert_structural_equal(result["main"].ret_ty, relax.TensorType((4,), "float32"))


def test_module_without_dtensors_is_returned_as_it_is():
    @I.ir_module
    class Plain:
        @R.function
        def main(x: R.Tensor((8,), "float32")):
            y = R.exp(x)
            return y

    for transform in (
        dx.transform.LegalizeRedistribute(),
        dx.transform.LowerDistIR(),
        dx.transform.LowerCCL(),
    ):
        assert transform(Plain).same_as(Plain)


def test_ccl_calls_become_calls_of_the_runtime():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.Tensor((8, 4), "float32")):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            y = R.sum(x0, axis=[0])
            return y

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            R.func_attr({"distir.explicit_reductions": True})
            y = R.sum(x, axis=[0])
            z = R.call_dps_packed(
                "distir.runtime.all_reduce",
                (y, R.str("[[0,1]]"), R.str("sum")),
                out_ty=R.Tensor((4,), "float32"),
            )
            return z

    result = dx.transform.LowerCCL()(lowered(Before))
    tvm.ir.assert_structural_equal(result["main"], Expected["main"])
