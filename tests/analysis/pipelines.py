"""Programs on several meshes, whose kernels take whole seconds and whose transfers take none."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax
from tvm.relax import op

import distir_ext as dx

# One operation takes a second, and nothing else takes any time.
FREE = dx.Link(latency=0.0, bandwidth=1e300)
SECONDS = {"float32": 1.0}
CPUS = dx.Cluster.uniform(
    FREE,
    0.0,
    device=dx.Device("cpu", SECONDS, memory=1e9, bandwidth=1e300, launch=0.0, target="llvm"),
)
GPUS = dx.Cluster.uniform(
    FREE, 0.0, device=dx.Device("gpu", SECONDS, memory=1e9, bandwidth=1e300, launch=0.0)
)


def meshes(count: int, size: int = 1) -> list[dx.Mesh]:
    """Meshes of so many devices each, without common ones."""
    return [dx.Mesh((size,), ("tp",), range(i * size, (i + 1) * size)) for i in range(count)]


def placed(value: relax.Expr, mesh: dx.Mesh, *dims: str | None) -> relax.Expr:
    """The value on a mesh."""
    return op.distributed.annotate_sharding(value, mesh.device_mesh, mesh.placement(*dims))


def staged(work: Sequence[tuple[int, int]], size: int = 1, loops: bool = False) -> tvm.IRModule:
    """A chain of stages.

    Args:
        work: Of each stage, its mesh and how many seconds it takes.
        size: Devices of each mesh.
        loops: Whether the chain comes back to meshes, so that these have several stages.
    """
    on = meshes(1 + max(mesh for mesh, _ in work), size)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1,), "float32"))
    order = [on[mesh].device_ids[0] for mesh in dict.fromkeys(mesh for mesh, _ in work)]
    with builder.function("main", [x], {"distir.interleaved": order} if loops else {}):
        value: relax.Expr = x
        for mesh, seconds in work:
            value = builder.emit(placed(value, on[mesh], None))
            for _ in range(seconds):
                value = builder.emit(op.add(value, value))
        builder.emit_func_output(value)
    mod = builder.get()
    mod.update_global_info("mesh", [mesh.device_mesh for mesh in on])
    return mod
