"""Calls of functions whose values move between meshes."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import op

import distir_ext as dx
from distir_ext.signature.signature_attr import read_signature

PASSES = ("PropagateSharding", "PadShards", "LegalizeRedistribute", "OptimizeCollectives")


def lowered(mod):
    for name in (*PASSES, "LowerDistIR"):
        mod = getattr(dx.transform, name)()(mod)
    return mod


def test_a_class_calls_what_sends_through_its_mesh():
    """Neither argument nor result of the callee lies on the mesh in the middle."""
    meshes = [dx.Mesh((1,), ("a",), device_ids=[i]) for i in range(3)]
    builder = relax.BlockBuilder()
    tensor = relax.TensorType((4, 4), "float32")

    def on(mesh, value):
        return builder.emit(
            op.distributed.annotate_sharding(value, mesh.device_mesh, mesh.placement(None, None))
        )

    x = relax.Var("x", tensor)
    with builder.function("through", [x], private=True):
        value = x
        for mesh in meshes:
            value = builder.emit(op.add(on(mesh, value), relax.const(1.0, "float32")))
        callee = builder.emit_func_output(value)
    x = relax.Var("x", tensor)
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.Call(callee, [on(meshes[0], x)])))
    mod = builder.get()
    mod.update_global_info("mesh", [mesh.device_mesh for mesh in meshes])
    programs = read_signature(lowered(mod))["functions"]["main"]
    assert [each["device_ids"] for each in programs["programs"]] == [[0], [1], [2]]
    x = np.arange(16, dtype="float32").reshape(4, 4)
    with dx.Session(3) as session:
        np.testing.assert_array_equal(session.load(dx.build(mod))["main"](x).numpy(), x + 3)
