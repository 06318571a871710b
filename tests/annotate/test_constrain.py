"""dx.constrain on intermediate values in BlockBuilder, nn and TVMScript: text and numbers."""

from __future__ import annotations

import numpy as np
import pytest
from tests.annotate.constrained import MESH, placements, round_trip
from tests.meshes import meshes
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


def test_block_builder_has_the_mesh_as_soon_as_a_value_is_constrained():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(R.add(x, x))
            y = builder.emit(dx.constrain(y, MESH, ("dp", None)))
            product = R.multiply(y, y)  # has no type before it is emitted
            z = builder.emit_output(builder.emit(dx.constrain(product, MESH, None)))
        builder.emit_func_output(z)
    mod = builder.finalize()
    assert len(mod.global_infos["mesh"]) == 1
    round_trip(mod)
    assert relax.analysis.check_well_formed(mod)
    texts = [text for _, _, text in placements(dx.transform.PropagateSharding()(mod)["main"])]
    assert texts[0] == "S[0], R"
    assert texts[-1] == "R, R"


def test_tvmscript_has_the_mesh_behind_those_that_it_states():
    @I.ir_module
    class Stated:
        I.module_attrs({"system": "x"})
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
            y = R.add(x, x)
            z = dx.constrain(y, MESH, ("dp", "tp"))
            w = dx.constrain(z, MESH, (("tp", "dp"), None))
            return w

    text = Stated.script()
    assert 'annotate_sharding(y, device_mesh="mesh[1]", placement="S[0], S[1]")' in text
    assert 'annotate_sharding(z, device_mesh="mesh[2]", placement="S[0], S[0]")' in text
    assert Stated.attrs["system"] == "x"
    assert dx.meshes(Stated)[1] == MESH
    round_trip(Stated)


def test_tvmscript_without_a_mesh_gets_it():
    @I.ir_module
    class Unstated:
        @R.function
        def main(x: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
            y = dx.constrain(x, MESH, ("dp", "tp"))
            return y

    assert dx.meshes(Unstated) == (MESH,)
    round_trip(Unstated)


def test_outside_of_a_builder_it_is_an_expression():
    x = relax.Var("x", relax.TensorType((8, 8), "float32"))
    call = dx.constrain(x, MESH, ("dp", "tp"))
    assert call.op.name == "relax.dist.annotate_sharding"
    assert str(call.attrs.placement) == '"S[0], S[1]"'


@pytest.mark.parametrize(
    ("dims", "error", "message"),
    [
        (("dp",), ValueError, r"value x has 2 dimensions, but the plan's \('dp',\) has 1 entry"),
        (("dp", "model"), ValueError, r"value x dimension 1: the mesh has no axis 'model'"),
        (("dp", "dp"), ValueError, r"value x dimension 1: axis 'dp' already shards this tensor"),
        ((None, ("dp", "tp")), ValueError, r"value x dimension 1 of size 3 has fewer elements"),
        ("dp", TypeError, r"value x: dims are 'dp', not a tuple"),
    ],
)
def test_bad_dims_name_the_value(dims, error, message):
    x = relax.Var("x", relax.TensorType((8, 3), "float32"))
    with pytest.raises(error, match=message):
        dx.constrain(x, MESH, dims)


def test_what_is_no_expression_is_refused():
    with pytest.raises(TypeError, match="a value of type ndarray cannot be constrained"):
        dx.constrain(np.zeros((8, 8)), MESH, ("dp", None))
    with pytest.raises(TypeError, match="constrained value: the mesh is of type str"):
        dx.constrain(R.add(relax.const(1.0), relax.const(1.0)), "mesh[0]", None)


def test_values_of_a_group_are_a_tuple():
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((8, 8), "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        tied = builder.emit(dx.constrain(R.add(x, x), y, MESH, ("dp", ...)), "tied")
        builder.emit_func_output(builder.emit(relax.TupleGetItem(tied, 0)))
    mod = builder.finalize()
    round_trip(mod)
    assert mod.script().count("R.dist.annotate_sharding") == 2
    assert "R.dist.sharding_group((" in mod.script()
    by_name = dx.constrain(x, y, mesh=MESH, dims=("dp", ...))
    assert str(by_name) == str(dx.constrain(x, y, MESH, ("dp", ...)))


def test_barriers_in_tvmscript():
    @I.ir_module
    class Stated:
        @R.function
        def main(x: R.Tensor((8, 8), "float32")):
            y = dx.constrain(x, MESH, ("dp", None))
            z = dx.barrier(y, blocks="forward")
            g = dx.constrain(z, x)
            return g

    assert 'R.dist.propagation_barrier(y, blocks="forward")' in Stated.script()
    round_trip(Stated)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda x, v: dx.constrain(x), TypeError, "takes a value, a mesh and dims; or several"),
        (lambda x, v: dx.constrain(x, v), ValueError, "of dimensions: `x` has 2, `v` has 1"),
        (
            lambda x, v: dx.constrain(x, relax.Var("t", relax.TensorType((8, 12), "float32"))),
            ValueError,
            r"group have different sizes: `x` has R.shape\(\[8, 3\]\), `t` has R.shape\(\[8, 12",
        ),
        (lambda x, v: dx.constrain(x, MESH, None, 3), TypeError, "behind|too much"),
        (lambda x, v: dx.constrain(x, MESH, mesh=MESH), TypeError, "is given mesh twice"),
        (lambda x, v: dx.constrain(x, x, dims=("dp",)), TypeError, "dims without a mesh"),
        (lambda x, v: dx.constrain(x, relax.ShapeExpr([1])), TypeError, "value 1 .* is no tensor"),
        (lambda x, v: dx.barrier(x, "forwards"), ValueError, "did you mean 'forward'"),
        (lambda x, v: dx.barrier(3), TypeError, "a value of type int cannot be"),
    ],
)
def test_bad_controls(make, error, message):
    x = relax.Var("x", relax.TensorType((8, 3), "float32"))
    v = relax.Var("v", relax.TensorType((8,), "float32"))
    with pytest.raises(error, match=message):
        make(x, v)
