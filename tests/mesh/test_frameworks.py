"""Meshes and shardings of JAX, PyTorch, TVM and NumPy are understood by what they offer.

Here stand classes that have what those of JAX 0.10 and PyTorch 2.13 have; tests/models has those
of PyTorch.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tests.mesh.frameworks import IDS, MESH, PartitionSpec, jax_mesh, torch_mesh
from tvm import relax
from tvm.relax.distributed import DeviceMesh, Placement

import distir_ext as dx
from distir_ext.annotate.annotations import MeshTable


class Shard:
    def __init__(self, dim):
        self.dim = dim

    def is_shard(self, dim=None):
        return True

    def is_replicate(self):
        return False


class _StridedShard(Shard):
    pass


class Replicate:
    def is_shard(self, dim=None):
        return False

    def is_replicate(self):
        return True


MESHES = {
    "Mesh": MESH,
    "jax": jax_mesh(),
    "torch": torch_mesh(),
}


@pytest.mark.parametrize("given", MESHES.values(), ids=MESHES)
def test_meshes_with_names(given):
    assert dx.Mesh(given) == MESH
    assert dx.Mesh(given, ("a", "b")) == dx.Mesh((2, 3), ("a", "b"))


@pytest.mark.parametrize(
    "given",
    [IDS, jax_mesh().devices, DeviceMesh((2, 3), list(range(6))), torch_mesh(names=None)],
    ids=["ids", "devices", "tvm", "torch"],
)
def test_meshes_without_names_get_those_of_messages(given):
    assert dx.Mesh(given, ("dp", "tp")) == MESH
    assert dx.Mesh(given).axis_names == ("x", "y")


def test_sizes_by_name_and_ids_in_any_order():
    assert dx.Mesh(dp=2, tp=3) == MESH
    assert dx.Mesh(dp=2, tp=3, device_ids=range(6, 12)).device_ids == tuple(range(6, 12))
    assert dx.Mesh(IDS.T, ("tp", "dp")).device_ids == (0, 3, 1, 4, 2, 5)
    assert dx.Mesh(np.arange(4), ("tp",)).size == 4


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: dx.Mesh(), TypeError, "a mesh needs a shape and axis_names"),
        (lambda: dx.Mesh((2, 3)), TypeError, "a mesh needs a shape and axis_names"),
        (lambda: dx.Mesh(2, 3), TypeError, "axis_names must be a tuple of strings, not 3"),
        (lambda: dx.Mesh((2, 3), dp=2), TypeError, "or a size by name of each axis"),
        (lambda: dx.Mesh(dp=0), ValueError, "mesh axis 'dp' has size 0"),
        (lambda: dx.Mesh(IDS, ("dp",)), ValueError, "needs one name for each axis"),
        (lambda: dx.Mesh(IDS * 0, ("a", "b")), ValueError, "device id 0 occurs twice"),
        (lambda: dx.Mesh(IDS / 2, ("a", "b")), TypeError, "an array of devices has ids"),
    ],
)
def test_bad_meshes(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("order", "shape", "ids"),
    [
        ((("tp", "dp"),), (3, 2), (0, 3, 1, 4, 2, 5)),
        ((("dp", "tp"),), (2, 3), tuple(range(6))),
        (("tp", "dp"), (2, 3), tuple(range(6))),
    ],
)
def test_mesh_ordered_for_dims(order, shape, ids):
    mesh = MESH.ordered_for(*order)
    assert (mesh.shape, mesh.device_ids) == (shape, ids)


def test_only_axes_of_one_dimension_change_places():
    mesh = dx.Mesh(a=2, b=2, c=2, d=2).ordered_for(("d", "b"), ("c", "a"))
    assert mesh.axis_names == ("c", "d", "a", "b")
    placement = mesh.placement(("d", "b"), ("c", "a"))
    assert str(placement) == '"S[1], S[0], S[1], S[0]"'


DIMS = {
    "jax": PartitionSpec(("dp", "tp")),
    "jax, written out": PartitionSpec(("dp", "tp"), None),
    "torch": (Shard(0), Shard(-2)),
    "torch, a list": [Shard(0), Shard(0)],
    "tvm": Placement.from_text("S[0], S[0]"),
    "text": "S[0], S[0]",
}


@pytest.mark.parametrize("dims", DIMS.values(), ids=DIMS)
def test_dims(dims):
    x = relax.Var("x", relax.TensorType((6, 6), "float32"))
    expected = str(dx.constrain(x, MESH, (("dp", "tp"), None)))
    assert str(dx.constrain(x, MESH, dims)) == expected


def test_replicated():
    x = relax.Var("x", relax.TensorType((6, 6), "float32"))
    for dims in (PartitionSpec(), PartitionSpec((), None), [Replicate(), Replicate()], "R, R"):
        assert str(dx.constrain(x, jax_mesh(), dims)) == str(dx.constrain(x, MESH, None))


def test_unconstrained_is_open():
    x = relax.Var("x", relax.TensorType((6, 6), "float32"))
    spec = PartitionSpec("dp", PartitionSpec.UNCONSTRAINED)
    assert str(dx.constrain(x, MESH, spec)) == str(dx.constrain(x, MESH, ("dp", ...)))


def test_a_mesh_without_names_has_those_that_the_module_knows():
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType((6, 6), "float32")) for name in "xw")
    with builder.function("main", [x, w]):
        builder.emit_func_output(builder.emit(relax.op.add(x, w)))
    mod = dx.annotate(builder.finalize(), MESH, {"x": ("dp", None)})
    mod = dx.annotate(mod, MESH.device_mesh, {"w": (None, ("tp", "dp"))})
    assert dx.meshes(mod)[0] == MESH
    with pytest.raises(ValueError, match="the mesh has no axis 'x'; its axes are dp, tp"):
        dx.annotate(mod, IDS, {"w": (None, "x")})


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (PartitionSpec("dp", unreduced=frozenset({"tp"})), "x: .*has unreduced axes"),
        (PartitionSpec("dp", None, None), "x has 2 dimensions"),
        (PartitionSpec("model"), "x dimension 0: the mesh has no axis 'model'"),
        ((Shard(0),), "x: placement .* has 1 entry for a mesh with 2 axes"),
        ((Shard(0), _StridedShard(0)), "x: .* is neither Shard nor Replicate"),
        ((Shard(2), Replicate()), "x: .* shards dimension 2 of a tensor of 2 dimensions"),
        (Placement.from_text("S[0]"), "x: placement .* has 1 entry for a mesh with 2 axes"),
    ],
)
def test_dims_that_can_not_be_stated(dims, message):
    x = relax.Var("x", relax.TensorType((6, 6), "float32"))
    with pytest.raises(ValueError, match=f"parameter {message}"):
        MeshTable(tvm.IRModule({})).mark("parameter x", MESH, dims, x.ty)
