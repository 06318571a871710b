"""Arguments that `visualize` accepts, and those that it refuses."""

from __future__ import annotations

import types

import numpy as np
import pytest
import tvm
from tests.mesh.frameworks import PartitionSpec, jax_mesh
from tests.meshes import meshes
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import distir_ext as dx

MESH = dx.Mesh(dp=2, tp=4)


@I.ir_module
class Network:
    @R.function
    def main(
        x: R.Tensor((8, 64), "float32"),
        up: R.Tensor((64, 256), "float32"),
        down: R.Tensor((256, 64), "float32"),
    ):
        with R.dataflow():
            lv0 = R.matmul(x, up)
            lv1 = R.nn.gelu(lv0)
            lv2 = R.matmul(lv1, down)
            R.output(lv2, lv1)
        return (lv2, lv1)

    @R.function
    def other(x: R.Tensor((8, 64), "float32")):
        y = R.add(x, x)
        return y


@pytest.fixture(scope="module")
def annotated():
    plan = {"x": ("dp", None), "up": (None, "tp"), "down": ("tp", None)}
    return dx.annotate(Network, MESH, plan)


@pytest.fixture(scope="module")
def propagated(annotated):
    return dx.transform.PropagateSharding()(annotated)


@pytest.mark.parametrize(
    ("name", "shape", "dims"),
    [
        ("lv1", (8, 256), ("dp", "tp")),
        ("up", (64, 256), (None, "tp")),
        ("return.0", (8, 64), ("dp", None)),
        ("return.1", (8, 256), ("dp", "tp")),
    ],
)
def test_a_variable_of_a_module(annotated, propagated, name, shape, dims):
    for mod in (annotated, propagated, tvm.script.from_source(propagated.script())):
        sharding = dx.visualize(mod, name, func="main").sharding
        assert (sharding.shape, sharding.dims, sharding.mesh) == (shape, dims, MESH)
        assert sharding.spec.dtype == "float32"
        assert sharding.indices == dx.visualize(shape, MESH, dims).sharding.indices


def test_a_variable_as_tvm_has_it(propagated):
    (block,) = propagated["main"].body.blocks
    variable = next(each.var for each in block.bindings if each.var.name == "lv1")
    picture = dx.visualize(propagated, variable)
    assert picture.sharding == dx.visualize(propagated, "lv1").sharding
    assert "lv1 in main: float32[8, 256] sharded ('dp', 'tp') on dp=2, tp=4" in str(picture)


def test_axes_in_another_order_are_said_in_those_of_the_users_mesh():
    mod = dx.annotate(Network, MESH, {"x": (("tp", "dp"), None)})
    sharding = dx.visualize(mod, "x", func="main").sharding
    assert (sharding.mesh, sharding.dims) == (MESH, (("tp", "dp"), None))
    rows = {device: index[0].start for device, index in sharding.indices.items()}
    assert rows == {0: 0, 4: 1, 1: 2, 5: 3, 2: 4, 6: 5, 3: 6, 7: 7}
    assert sharding.indices == dx.visualize((8, 64), MESH, (("tp", "dp"), None)).sharding.indices


def test_part_of_an_axis():
    @I.ir_module
    class Split:
        I.module_attrs({"distir.mesh_axes": {"mesh": [["tp"], []]}})
        I.module_global_infos(
            {"mesh": [R.device_mesh((4,), I.Range(0, 4)), R.device_mesh((2, 2), I.Range(0, 4))]}
        )

        @R.function
        def main(x: R.DTensor((8, 3), "float32", "mesh[1]", "S[0], R")):
            y = R.add(x, x)
            return y

    picture = dx.visualize(Split, "x")
    assert picture.sharding.dims == ("tp:(1)2", None)
    assert picture.sharding.mesh == dx.Mesh(tp=4)
    assert "dim 0: 8 over tp:(1)2 (2)" in picture.text()
    assert "tp = 4  tp:(1)2 shards dim 0, the rest replicates" in picture.text()
    assert [picture.sharding.indices[device][0].start for device in range(4)] == [0, 0, 4, 4]


def test_symbolic_sizes_are_cut_in_fractions():
    @I.ir_module
    class Symbolic:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor(("n", 8), "float32", "mesh[0]", "S[0]")):
            n = T.int64()
            y = R.add(x, x)
            return y

    picture = dx.visualize(Symbolic, "y")
    for text in ("0:n/4", "n/4:n/2", "n/2:3n/4", "3n/4:n", "4 blocks of n/4 x 8"):
        assert text in picture.text()
    with pytest.raises(ValueError, match="size n is symbolic"):
        _ = picture.sharding.indices


def test_meshes_and_dims_of_other_frameworks():
    expected = dx.visualize((6, 6), dx.Mesh((2, 3), ("dp", "tp")), (None, "dp")).sharding
    spec = PartitionSpec(None, "dp")
    assert dx.visualize((6, 6), jax_mesh(), spec).sharding == expected
    named = types.SimpleNamespace(mesh=jax_mesh(), spec=spec)
    assert dx.visualize((6, 6), named).sharding == expected
    assert dx.visualize((6, 6), jax_mesh(), "S[1], R").sharding == expected
    ids = dx.visualize((6,), np.arange(6)[::-1], ("x",)).sharding
    assert ids.indices[5] == (slice(0, 1),)


def test_nothing_is_sharded_without_dims():
    sharding = dx.visualize((4, 4), MESH).sharding
    assert sharding.dims == (None, None)
    assert sharding.indices == dict.fromkeys(range(8), (slice(0, 4), slice(0, 4)))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (((8, 8), MESH, ("dpp", None)), {}, ValueError, r"'dpp'; .*; did you mean 'dp'\?"),
        (((8, 8), MESH, ("dp",)), {}, ValueError, "2 dimensions, but the plan's .* has 1 entry"),
        (((8, 8), MESH, ("dp", "dp")), {}, ValueError, "axis 'dp' already shards this tensor"),
        (((1, 8), MESH, ("dp", None)), {}, ValueError, "dimension 0 of size 1 has fewer elements"),
        (((8, 8), MESH, 3), {}, TypeError, "dims are 3, not a tuple"),
        (((8, 8),), {}, TypeError, "needs a mesh for a shape"),
        (((8, 8), 4, ("dp", None)), {}, TypeError, "the mesh is of type int"),
        (((8, "n"), MESH, None), {}, TypeError, "a shape has sizes"),
        ((3, MESH, None), {}, TypeError, "visualize takes a ShardedArray"),
        (((8, 8), MESH, None), {"devices": 9}, ValueError, "device 9 is not one of .*: 0\\.\\.7"),
        (((8, 8), MESH, None), {"devices": [0, "a"]}, ValueError, "device 'a' is not one of"),
        (((8, 8), MESH, None), {"func": "main"}, TypeError, "only a module has a function"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        dx.visualize(*arguments, **options)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("lv",), {}, ValueError, r"no variable 'lv' in main, other; did you mean 'lv\d' or"),
        (("lv1",), {"func": "mian"}, ValueError, "no Relax function named 'mian'"),
        (("lv1",), {"func": "other"}, ValueError, "no variable 'lv1' in other"),
        (("x",), {}, ValueError, "'x' is a variable of main, other; say which with func="),
        (("x",), {"func": "other"}, ValueError, "x of other has no sharding: its type is R.Tensor"),
        ((3,), {}, TypeError, "the name of a variable of the module, not int"),
        (("x", (None,)), {}, TypeError, "takes no dims"),
    ],
)
def test_what_a_module_lacks_is_named(propagated, arguments, options, error, message):
    with pytest.raises(error, match=message):
        dx.visualize(propagated, *arguments, **options)


def test_modules_without_shardings_are_refused(annotated):
    with pytest.raises(ValueError, match="nothing in the module is sharded"):
        dx.visualize(Network, "lv1")
    with pytest.raises(ValueError, match=r"lv1 of main has no sharding.*before LowerDistIR"):
        dx.visualize(dx.lower(annotated), "lv1", func="main")


def test_a_sharding_has_its_own_mesh():
    sharding = dx.visualize((4, 4), MESH).sharding
    assert dx.visualize(sharding).sharding == sharding
    with pytest.raises(TypeError, match="a Sharding has its own mesh and dims"):
        dx.visualize(sharding, MESH)
