"""Programs whose shardings are stated at every step."""

import tvm
from tvm import relax

import distir_ext as dx

MESH = dx.Mesh((4, 2), ("x", "y"))


def annotated(operator, shape, operands, result):
    """One operator whose operands and result are annotated."""
    builder = relax.BlockBuilder()
    names = "ab"[: len(operands)]
    params = [relax.Var(name, relax.TensorType(shape, "float32")) for name in names]
    with builder.function("main", params):
        placed = [
            builder.emit(
                relax.op.distributed.annotate_sharding(
                    param, MESH.device_mesh, MESH.placement(*dims)
                )
            )
            for param, dims in zip(params, operands, strict=True)
        ]
        computed = builder.emit(operator(*placed))
        wanted = MESH.placement(*result)
        builder.emit_func_output(
            builder.emit(relax.op.distributed.annotate_sharding(computed, MESH.device_mesh, wanted))
        )
    mod = builder.get()
    mod.update_global_info("mesh", [MESH.device_mesh])
    return mod


def sent(mod: tvm.IRModule) -> float:
    """Bytes that a device sends."""
    return sum(one.bytes_per_device * one.count for one in dx.analysis.collectives(mod))
