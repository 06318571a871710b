"""Propagation through tuples, constants, casts, operators without operands, and results."""

import numpy as np
import pytest
import tvm
from tests.meshes import meshes
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx
from distir_ext.testing.phases import verify

from .checks import assert_propagates, placements, propagated


def test_nested_tuples_share_the_placement_of_their_tensors():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(
            t: R.Tuple(
                R.Tensor((8, 8), "float32"),
                R.Tuple(R.Tensor((8, 8), "float32"), R.Tensor((4,), "float32")),
            ),
        ):
            with R.dataflow():
                inner = t[1]
                x = inner[0]
                x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
                pair = (x0, t)
                again = pair[1]
                y = again[0]
                z = R.add(x0, y)
                result = ((z, inner), again)
                R.output(result)
            return result

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(
            t: R.Tuple(
                R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
                R.Tuple(
                    R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
                    R.DTensor((4,), "float32", "mesh[0]", "R"),
                ),
            ),
        ):
            with R.dataflow():
                inner = t[1]
                x = inner[0]
                pair = (x, t)
                again = pair[1]
                y = again[0]
                z = R.add(x, y)
                result = ((z, inner), again)
                R.output(result)
            return result

    assert_propagates(Before, Expected)


def test_tuple_parameter_of_a_callee():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function(private=True)
        def swap(
            t: R.Tuple(R.Tensor((8, 8), "float32"), R.Tensor((8, 8), "float32")),
        ) -> R.Tuple(R.Tensor((8, 8), "float32"), R.Tensor((8, 8), "float32")):
            a = t[0]
            b = t[1]
            return (b, a)

        @R.function
        def main(x: R.Tensor((8, 8), "float32"), y: R.Tensor((8, 8), "float32")):
            cls = Before
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            y0 = R.dist.annotate_sharding(y, "mesh[0]", "S[1]")
            t = cls.swap((x0, y0))
            first = t[0]
            second = t[1]
            return (first, second)

    found = placements(propagated(Before))
    assert found["first"] == "mesh[0] S[1]"
    assert found["second"] == "mesh[0] S[0]"


def test_scalar_constants_are_replicated_on_the_mesh_of_their_user():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.Tensor((8, 8), "float32")):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            two = R.const(2.0, "float32")
            y = R.multiply(x0, two)
            z = R.add(y, R.const(3.0, "float32"))
            return z

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
            two = R.dist.const(2.0, R.DTensor((), "float32", "mesh[0]", "R"))
            y = R.multiply(x, two)
            z = R.add(y, R.dist.const(3.0, R.DTensor((), "float32", "mesh[0]", "R")))
            return z

    assert_propagates(Before, Expected)


def test_constant_tensor_is_sliced_where_it_is_used():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 4), "float32"))
    with builder.function("main", [x]):
        table = relax.const(np.arange(32, dtype="float32").reshape(8, 4))
        builder.emit_func_output(builder.emit(relax.op.add(x, table)))
    mod = dx.annotate(builder.get(), dx.Mesh((2,), ("x",)), {"x": ("x", None)})
    result = dx.transform.PropagateSharding()(mod)
    text = result.script(show_meta=True)  # a constant that is no scalar is in the metadata
    tvm.ir.assert_structural_equal(tvm.script.from_source(text), result)
    verify(result, "propagated")
    tvm.ir.assert_structural_equal(dx.transform.PropagateSharding()(result), result)
    bindings = [b for block in result["main"].body.blocks for b in block.bindings]
    assert [binding.value.op.name for binding in bindings] == [
        "relax.dist.redistribute",
        "relax.add",
    ]
    assert repr(bindings[0].value.args[0].ty.placement) == '"R"'
    assert repr(bindings[0].var.ty.placement) == '"S[0]"'


def test_what_is_made_from_nothing_is_placed_for_each_use():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.Tensor((8, 8), "float32")):
            with R.dataflow():
                x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
                zeros = R.zeros(R.shape([8, 8]), "float32")
                steps = R.arange(0, 8, 1, "float32")
                a = R.add(x0, zeros)
                b = R.add(a, steps)
                t = R.permute_dims(b)
                c = R.add(t, zeros)
                R.output(c)
            return c

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
            with R.dataflow():
                zeros = R.zeros(R.shape([8, 8]), "float32")
                steps = R.arange(0, 8, 1, "float32")
                rows = R.dist.redistribute(zeros, "mesh[0]", "S[0]")
                a = R.add(x, rows)
                all_steps = R.dist.redistribute(steps, "mesh[0]", "R")
                b = R.add(a, all_steps)
                t = R.permute_dims(b)
                columns = R.dist.redistribute(zeros, "mesh[0]", "S[1]")
                c = R.add(t, columns)
                R.output(c)
            return c

    assert_propagates(Before, Expected)


def test_returned_and_tupled_zeros_become_dtensors():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.Tensor((8, 8), "float32")):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            zeros = R.zeros(R.shape([8, 8]), "float32")
            pair = (x0, zeros)
            second = pair[1]
            return (zeros, second)

    result = propagated(Before)
    assert all(
        isinstance(field, relax.distributed.DTensorType) for field in result["main"].ret_ty.fields
    )


def test_full_takes_its_fill_value_from_the_mesh():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.Tensor((8, 8), "float32"), v: R.Tensor((), "float32")):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            f = R.full(R.shape([8, 8]), v, "float32")
            y = R.add(x0, f)
            return y

    found = placements(propagated(Before))
    assert found["v"] == "mesh[0] R"
    assert found["y"] == "mesh[0] S[0]"


@pytest.mark.parametrize("dataflow", [False, True])
def test_unused_and_returned_parameters(dataflow):
    @I.ir_module
    class Plain:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(
            x: R.Tensor((8, 8), "float32"),
            y: R.Tensor((8, 8), "float32"),
            unused: R.Tensor((4,), "float32"),
        ):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            return (x, (y, x0))

    @I.ir_module
    class Dataflow:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(
            x: R.Tensor((8, 8), "float32"),
            y: R.Tensor((8, 8), "float32"),
            unused: R.Tensor((4,), "float32"),
        ):
            with R.dataflow():
                x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
                R.output(x0)
            return (x, (y, x0))

    result = propagated(Dataflow if dataflow else Plain)
    found = placements(result)
    assert found["x"] == "mesh[0] S[0]"
    assert found["y"] == found["unused"] == "mesh[0] R"
    assert repr(result["main"].ret_ty.fields[1].fields[1].placement) == '"S[0]"'


def test_match_cast_keeps_the_placement():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.Tensor(("n", 8), "float32"), t: R.Tuple(R.Tensor(("k", 8), "float32"))):
            m = T.int64()
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            y = R.match_cast(x0, R.Tensor((m, 8), "float32"))
            z = R.nn.relu(y)
            u = R.match_cast(t, R.Tuple(R.Tensor((16, 8), "float32")))
            v = u[0]
            w = R.dist.annotate_sharding(v, "mesh[0]", "S[1]")
            return (z, w)

    result = propagated(Before)
    found = placements(result)
    assert found["y"] == found["z"] == "mesh[0] S[0]"
    assert repr(result["main"].params[1].ty.fields[0].placement) == '"S[1]"'


def test_parts_of_a_sharded_dimension_are_sharded_as_they_are_used():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2, 2)))

        @R.function
        def main(x: R.Tensor((8, 12), "float32")):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0], S[1]")
            parts = R.split(x0, 3, axis=1)
            a = parts[0]
            b = parts[2]
            c = R.concat((a, b), axis=1)
            return c

    found = placements(propagated(Before))
    assert found["a"] == found["b"] == found["c"] == "mesh[0] S[0], R"

    @I.ir_module
    class Used:
        I.module_global_infos(meshes((2, 2)))

        @R.function
        def main(x: R.Tensor((8, 12), "float32")):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0], S[1]")
            parts = R.split(x0, 3, axis=1)
            a = R.exp(parts[0])
            b = R.dist.annotate_sharding(a, "mesh[0]", "S[0], S[1]")
            return b

    found = placements(propagated(Used))
    assert found["a"] == "mesh[0] S[0], S[1]"


def test_parts_that_shards_do_not_divide_are_whole():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2, 2)))

        @R.function
        def main(x: R.Tensor((8, 12), "float32")):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0], S[1]")
            parts = R.split(x0, [3], axis=1)
            a = parts[0]
            return a

    assert placements(propagated(Before))["a"] == "mesh[0] S[0], R"


def test_shape_of_is_the_global_shape():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.Tensor(("n", 8), "float32")):
            n = T.int64()
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            sizes = R.shape_of(x0)
            y = R.zeros(sizes, "float32")
            z = R.add(x0, y)
            return z

    result = propagated(Before)
    assert "shape_of" not in result["main"].script()
    assert placements(result)["z"] == "mesh[0] S[0]"


def test_explicit_redistribution_is_kept():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.Tensor((8, 8), "float32")):
            with R.dataflow():
                x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
                y = R.dist.redistribute(x0, "mesh[0]", "S[1]")
                z = R.nn.relu(y)
                R.output(z)
            return z

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
            with R.dataflow():
                y = R.dist.redistribute(x, "mesh[0]", "S[1]")
                z = R.nn.relu(y)
                R.output(z)
            return z

    assert_propagates(Before, Expected)


def test_views_that_the_root_cannot_name_become_global_infos():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.Tensor((8,), "float32")):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            y = R.reshape(x0, (2, 4))
            return y

    result = propagated(Before)
    infos = result.global_infos["mesh"]
    assert [tuple(mesh.shape) for mesh in infos] == [(4,), (2, 2)]
    assert placements(result)["y"] == "mesh[1] S[0], S[1]"
