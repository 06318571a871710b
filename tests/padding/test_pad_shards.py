"""PadShards: extents, masks, replicated dimensions. Meshes have two devices by default."""

import pytest
import tvm
from tests.meshes import meshes
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

from .checks import assert_pads, padded


def propagated(mod):
    return dx.transform.PropagateSharding()(mod)


def test_contracted_dimension_has_zeros_where_they_are_not_known():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(
            x: R.DTensor((4, 7), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((7, 4), "float32", "mesh[0]", "S[0]"),
        ):
            h = R.exp(x)
            y = R.matmul(h, w)
            return y

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(
            x: R.DTensor((4, 8), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((8, 4), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.true_extents": [[-1, 7], [7, -1], [-1, -1]]})
            h = R.exp(x)
            positions = R.arange(0, 8, 1, dtype="int64")
            positions_1 = R.dist.redistribute(positions, device_mesh="mesh[0]", placement="S[0]")
            inside = R.less(positions_1, R.dist.const(7, R.DTensor((), "int64", "mesh[0]", "R")))
            h_1 = R.where(inside, h, R.dist.const(0.0, R.DTensor((), "float32", "mesh[0]", "R")))
            y = R.matmul(h_1, w)
            return y

    assert_pads(Before, Expected)


def test_mean_divides_by_the_true_number():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.DTensor((7, 3), "float32", "mesh[0]", "S[0]")):
            y = R.mean(x, axis=[0, 1])
            return y

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.DTensor((8, 3), "float32", "mesh[0]", "S[0]")):
            R.func_attr({"distir.true_extents": [[7, -1], []]})
            y = R.sum(x, axis=[0, 1])
            y_1 = R.divide(y, R.dist.const(21.0, R.DTensor((), "float32", "mesh[0]", "R")))
            return y_1

    assert_pads(Before, Expected)


def test_shapes_that_calls_state_are_padded():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.DTensor((7, 6), "float32", "mesh[0]", "S[0]")):
            y = R.reshape(x, (7, 2, 3))
            z = R.broadcast_to(y, (5, 7, 2, 3))
            w = R.strided_slice(z, [1, 3], [0, 1], [7, 3])
            return w

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.DTensor((8, 6), "float32", "mesh[0]", "S[0]")):
            R.func_attr({"distir.true_extents": [[7, -1], [-1, 7, -1, -1]]})
            y = R.reshape(x, (8, 2, 3))
            z = R.broadcast_to(y, (5, 8, 2, 3))
            w = R.strided_slice(z, [1, 3], [0, 1], [8, 3])
            return w

    assert_pads(Before, Expected)


def test_between_two_paddings_a_dimension_has_an_extent_that_both_divide():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((3, 2)))

        @R.function
        def main(x: R.DTensor((7, 8), "float32", "mesh[0]", "S[0], S[1]")):
            y = R.dist.redistribute(x, device_mesh="mesh[0]", placement="R, S[0]")
            return y

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((3, 2)))

        @R.function
        def main(x: R.DTensor((9, 8), "float32", "mesh[0]", "S[0], S[1]")):
            R.func_attr({"distir.true_extents": [[7, -1], [7, -1]]})
            y = R.dist.segment_exchange(
                x,
                device_mesh="mesh[0]",
                placement="S[0], S[1]",
                dim=0,
                size=12,
                segments=[[0, 0, 1, 7]],
                fill="0",
            )
            y_1 = R.dist.redistribute(y, device_mesh="mesh[0]", placement="R, S[0]")
            y_2 = R.dist.segment_exchange(
                y_1,
                device_mesh="mesh[0]",
                placement="R, S[0]",
                dim=0,
                size=8,
                segments=[[0, 0, 1, 7]],
                fill="0",
            )
            return y_2

    assert_pads(Before, Expected)


def test_same_padding_is_redistributed_as_it_is():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2, 2)))

        @R.function
        def main(x: R.DTensor((7, 8), "float32", "mesh[0]", "S[0], R")):
            y = R.dist.redistribute(x, device_mesh="mesh[0]", placement="S[0], S[0]")
            return y

    text = padded(Before).script()
    assert text.count("redistribute") == 1
    assert "pad" not in text.replace("padded", "")


def test_unsharding_cuts_the_padding_off():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.DTensor((7,), "float32", "mesh[0]", "S[0]")):
            y = R.dist.redistribute(x, device_mesh="mesh[0]", placement="R")
            return y

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.DTensor((8,), "float32", "mesh[0]", "S[0]")):
            R.func_attr({"distir.true_extents": [[7], [-1]]})
            y = R.dist.redistribute(x, device_mesh="mesh[0]", placement="R")
            y_1 = R.strided_slice(y, [0], [0], [7], assume_inbound=False)
            return y_1

    assert_pads(Before, Expected)


def test_callee_gets_and_gives_tails_of_zeros():
    @I.ir_module
    class Program:
        I.module_global_infos(meshes((2,)))

        @R.function(private=True)
        def layer(x: R.Tensor((7,), "float32")) -> R.Tensor((7,), "float32"):
            y = R.exp(x)
            return y

        @R.function
        def main(x: R.Tensor((7,), "float32")):
            cls = Program
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            h = cls.layer(x0)
            e = R.exp(h)
            z = cls.layer(e)
            s = R.sum(z)
            return s

    result = padded(propagated(Program))
    layer = next(function for var, function in result.functions.items() if "main" not in str(var))
    # Of main only exp: parameters and results of calls are zero there already.
    assert _ops(layer).count("relax.where") == 1
    assert _ops(result["main"]).count("relax.where") == 1
    assert [int(size) for size in layer.params[0].ty.tensor_ty.shape] == [8]


def test_tail_of_zeros_survives_moves():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(
            x: R.DTensor((4, 7), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((4, 7), "float32", "mesh[0]", "S[1]"),
        ):
            t = R.permute_dims(w, [1, 0])
            y = R.matmul(x, t)
            return y

    assert "relax.where" not in _ops(padded(Before)["main"])


def test_branches_may_be_uneven():
    @I.ir_module
    class Program:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(c: R.Tensor((), "bool"), x: R.Tensor((7,), "float32")):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            if c:
                y = R.exp(x0)
            else:
                z = R.cos(x0)
                y = R.add(z, x0)
            s = R.sum(y)
            return s

    assert _ops(padded(propagated(Program))["main"]).count("relax.where") == 1


@pytest.mark.parametrize(
    ("call", "operand", "fill"),
    [
        (lambda x, n: R.max(x, axis=0), "float32", "-inf"),
        (lambda x, n: R.min(x, axis=0), "float32", "inf"),
        (lambda x, n: R.prod(x, axis=0), "float32", "1"),
        (lambda x, n: R.max(x, axis=0), "int8", "-128"),
        (lambda x, n: R.min(x, axis=0), "int8", "127"),
        (lambda x, n: R.max(x, axis=0), "uint8", "0"),
        (lambda x, n: R.min(x, axis=0), "uint8", "255"),
        (lambda x, n: R.max(x, axis=0), "float16", "-inf"),
        (lambda x, n: R.prod(x, axis=0), "float16", "1"),
        (lambda x, n: R.sum(x, axis=0), "bfloat16", "0"),
        (lambda x, n: R.floor_divide(x, n), "int32", "1"),
        (lambda x, n: R.floor_mod(x, n), "int32", "1"),
    ],
)
def test_neutral_elements(call, operand, fill):
    builder = tvm.relax.BlockBuilder()
    mesh = dx.Mesh((2,), ("tp",))
    params = [tvm.relax.Var(name, tvm.relax.TensorType((7, 3), operand)) for name in ("x", "n")]
    with builder.function("main", params):
        x, n = (builder.emit(R.negative(R.negative(each))) for each in params)
        builder.emit_func_output(builder.emit(call(x, n)))
    mod = dx.annotate(builder.get(), mesh, {"x": ("tp", None), "n": ("tp", None)})
    result = padded(propagated(mod))
    (where,) = _calls(result["main"], "relax.where")
    assert where.args[2].ty.tensor_ty.dtype == where.args[1].ty.tensor_ty.dtype
    value = where.args[2]
    if isinstance(value, tvm.relax.Var):  # converted from a type that TVMScript has constants of
        (value,) = (each.args[0] for each in _calls(result["main"], "relax.astype"))
    assert float(value.value.numpy()) == float(fill)


def test_what_cannot_be_padded_is_whole():
    @I.ir_module
    class Program:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(
            x: R.Tensor((7, 4), "float32"),
            y: R.Tensor((4, 7), "float32"),
        ):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            y0 = R.dist.annotate_sharding(y, "mesh[0]", "S[1]")
            merged = R.reshape(y0, (28,))
            ordered = R.sort(x0, axis=0)
            m0 = R.dist.annotate_sharding(merged, "mesh[0]", "R")
            o0 = R.dist.annotate_sharding(ordered, "mesh[0]", "R")
            return (m0, o0)

    mod = propagated(Program)
    for call in ("reshape", "sort"):
        (found,) = _calls(mod["main"], f"relax.{call}")
        assert all(int(spec.axis) < 0 for spec in found.args[0].ty.placement.dim_specs), call
    padded(mod)


def test_module_that_divides_is_returned_as_it_is():
    @I.ir_module
    class Even:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.DTensor((8, 4), "float32", "mesh[0]", "S[0]")):
            y = R.sum(x, axis=[0])
            return y

    assert dx.transform.PadShards()(Even).same_as(Even)


def test_legalization_pads_what_has_not_been_padded():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.DTensor((7, 4), "float32", "mesh[0]", "S[0]")):
            y = R.sum(x, axis=[0])
            return y

    legalize = dx.transform.LegalizeRedistribute()
    tvm.ir.assert_structural_equal(legalize(Before), legalize(padded(Before)))


def _calls(function, op):
    found = []

    def visit(expr):
        if isinstance(expr, tvm.relax.Call) and getattr(expr.op, "name", None) == op:
            found.append(expr)

    tvm.relax.analysis.post_order_visit(function, visit)
    return found


def _ops(function):
    names = []

    def visit(expr):
        if isinstance(expr, tvm.relax.Call) and isinstance(expr.op, tvm.ir.Op):
            names.append(expr.op.name)

    tvm.relax.analysis.post_order_visit(function, visit)
    return names


def test_symbolic_sizes_are_padded_alike_where_they_are_gathered():
    """Between numbers of shards nothing is cut off and put on again; a reduction cuts it off."""

    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2, 4)))

        @R.function
        def main(x: R.DTensor(("n", 6), "float32", "mesh[0]", "S[0], S[0]")):
            y = R.dist.redistribute(x, device_mesh="mesh[0]", placement="S[0], R")
            z = R.exp(y)
            u = R.dist.redistribute(z, device_mesh="mesh[0]", placement="R, R")
            v = R.negative(u)
            w = R.dist.redistribute(v, device_mesh="mesh[0]", placement="S[0], S[0]")
            total = R.sum(v, axis=[0])
            return (w, total)

    text = padded(Before).script()
    assert text.count("R.strided_slice(") == 1
    assert text.count("R.concat(") == 0
    assert "(n + 1) // 2" not in text
