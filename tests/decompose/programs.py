"""Programs of one operator."""

from tvm import relax
from tvm.relax.op.distributed import annotate_sharding

import distir_ext as dx

MESH = dx.Mesh((4,), ("x",))


def program(shapes, placements, apply, dtypes=("float32", "int64", "float32")):
    """A function of annotated parameters."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"x{i}", relax.TensorType(shape, dtype))
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False))
    ]
    with builder.function("main", params):
        with builder.dataflow():
            args = [
                builder.emit(annotate_sharding(param, MESH.device_mesh, MESH.placement(*dims)))
                for param, dims in zip(params, placements, strict=True)
            ]
            result = builder.emit_output(builder.emit(apply(*args)))
        builder.emit_func_output(result)
    mod = builder.get()
    mod.update_global_info("mesh", [MESH.device_mesh])
    return mod
