"""Meshes and shardings of other frameworks, in programs that run."""

from __future__ import annotations

import types

import pytest
from tests.mesh.frameworks import IDS, MESH, PartitionSpec, jax_mesh, torch_mesh
from tvm import relax

import distir_ext as dx


@pytest.mark.parametrize("mesh", [MESH, jax_mesh(), torch_mesh(), IDS, MESH.device_mesh])
def test_all_ways_to_annotate_take_them(mesh):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((6, 6), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.add(x, x)))
    mod = builder.finalize()
    names = dx.Mesh(mesh).axis_names
    spec = PartitionSpec(names[::-1])
    sharding = types.SimpleNamespace(mesh=mesh, spec=spec)  # jax.sharding.NamedSharding

    class OnAdd(dx.ShardingMutator):
        def place(self, call):
            return {0: sharding}

    expected = 'annotate_sharding(x, device_mesh="mesh[1]", placement="S[0], S[0]")'
    for annotated in (
        dx.annotate(mod, mesh, {"x": spec}),
        dx.annotate(mod, dx.Mesh(one=1), {"x": (mesh, spec)}),
        dx.annotate(mod, dx.Mesh(one=1), {"x": sharding}),
        OnAdd()(mod),
    ):
        assert expected in annotated.script()
    assert dx.constrain(x, sharding).op.name == "relax.dist.annotate_sharding"
    with dx.Session(mesh) as session:
        assert session.num_workers == 6
