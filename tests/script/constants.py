"""Modules with constants."""

import ml_dtypes
import numpy as np
from tvm import relax

import distir_ext as dx

DTYPES = [
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("float8_e8m0fnu", "float4_e2m1fn", "bool"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
]


def constant_of(dtype):
    return np.arange(8).reshape(2, 4).astype(getattr(ml_dtypes, dtype, dtype))


def constants_of(dtypes):
    """A tensor that is sharded, and constants that are reshaped."""
    mesh = dx.Mesh((2,), ("d",))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 8), "float32"))
    with builder.function("main", [x]):
        placed = relax.op.distributed.annotate_sharding(
            x, mesh.device_mesh, mesh.placement("d", None)
        )
        results = [builder.emit(placed)]
        for dtype in dtypes:
            constant = relax.const(constant_of(dtype), dtype)
            results.append(builder.emit(relax.op.reshape(constant, (4, 2)), dtype))
        builder.emit_func_output(relax.Tuple(results))
    mod = builder.get()
    mod.update_global_info("mesh", [mesh.device_mesh])
    return mod
