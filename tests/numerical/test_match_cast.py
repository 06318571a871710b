"""Sizes that match_cast defines, on shards."""

import numpy as np
import pytest
import tvm
from tests.lower.verified import lowered
from tests.meshes import meshes
from tests.targets import QUICK
from tvm import relax, tirx
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx


def test_match_cast_defines_local_sizes():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.Tensor(("n", 8), "float32")):
            n = T.int64()
            m = T.int64()
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            y = R.match_cast(x0, R.Tensor((m, 8), "float32"))
            z = R.reshape(y, R.shape([m * 8]))
            return z

    result = lowered(Before)
    of_sizes, of_shard = result["main"].body.blocks[0].bindings[:2]
    (m, _), (rows, _) = of_sizes.ty.values, of_shard.ty.shape
    assert isinstance(m, tirx.Var)
    tvm.ir.assert_structural_equal(rows, (m + 1) // 2)
    with dx.Session(2) as session:
        main = session.load(dx.build(Before))["main"]
        for count in (6, 5, 1):
            x = np.arange(8 * count, dtype="float32").reshape(count, 8)
            np.testing.assert_array_equal(main(x).numpy(), x.reshape(-1))


def cast_beside_an_uneven_value(size):
    """Of x (n, 4), a cast to (size, 4); y has 7 rows, which two devices do not share evenly."""
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    y = relax.Var("y", relax.TensorType((7, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        cast = builder.match_cast(
            builder.emit(relax.op.exp(x)), relax.TensorType((size, 4), "float32")
        )
        results = [builder.emit(relax.op.negative(each)) for each in (cast, y)]
        builder.emit_func_output(relax.Tuple(results))
    return builder.get()


def test_a_size_that_a_cast_states_anew_is_checked_and_not_cut_to():
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((rows, 4)).astype("float32") for rows in (5, 7))
    with dx.Session(2) as session:
        for size in (tirx.Var("m", "int64"), 5):
            mod = cast_beside_an_uneven_value(size)
            mod = dx.annotate(mod, dx.Mesh(dp=2), {"y": ("dp", None)})
            main = session.load(dx.build(mod, QUICK))["main"]
            for found, wanted in zip(main(x, y), (-np.exp(x), -y), strict=True):
                np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5)
        with pytest.raises(dx.WorkerError, match=r"7|5"):
            main(y, y)


def test_results_are_as_long_as_their_size_says_in_any_arithmetic():
    n = tirx.Var("n", "int64")
    sizes = [
        (tirx.if_then_else(n > 2, n, tirx.IntImm("int64", 2)), lambda n: n if n > 2 else 2),
        (tirx.abs(n - 7) + 1, lambda n: abs(n - 7) + 1),
        (tirx.truncmod(n, tirx.IntImm("int64", 3)) + 1, lambda n: n % 3 + 1),
    ]
    with dx.Session(2) as session:
        for size, rows in sizes:
            x = relax.Var("x", relax.TensorType((n, 4), "float32"))
            w = relax.Var("w", relax.TensorType((1, 4), "float32"))
            builder = relax.BlockBuilder()
            with builder.function("main", [x, w]):
                wide = builder.emit(relax.op.broadcast_to(w, relax.ShapeExpr([size, 4])))
                builder.emit_func_output(builder.emit(relax.op.negative(wide)))
            plan = {"return": ("dp", None)}
            mod = dx.annotate(builder.get(), dx.Mesh(dp=2), plan)
            main = session.load(dx.build(mod, QUICK))["main"]
            for length in (1, 3, 5):
                found = main(np.ones((length, 4), "float32"), np.full((1, 4), 2, "float32"))
                np.testing.assert_array_equal(found.numpy(), np.full((rows(length), 4), -2.0))


def test_parameters_in_another_order_are_refused_where_a_function_takes_sizes():
    a, b = tirx.Var("a", "int64"), tirx.Var("b", "int64")
    x, y = (
        relax.Var(name, relax.TensorType((size, 4), "float32"))
        for name, size in (("x", a), ("y", b))
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        means = [builder.emit(relax.op.mean(each, 0)) for each in (x, y)]
        builder.emit_func_output(relax.Tuple(means))
    mesh, plan = dx.Mesh(dp=2), {"x": ("dp", None), "y": ("dp", None)}
    padded = dx.lower(dx.annotate(builder.get(), mesh, plan), until="PadShards")
    main = padded["main"]
    first, second, *others = main.params
    swapped = relax.Function(
        [second, first, *others], main.body, main.ret_ty, main.is_pure, main.attrs, main.span
    )
    mod = padded.clone()
    mod["main"] = swapped
    with pytest.raises(ValueError, match=r"order|changed"):
        dx.build(mod, QUICK)
