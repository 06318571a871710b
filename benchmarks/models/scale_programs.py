"""Programs of which one thing is large: layers, parameters, functions, devices, axes, stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import relax

import distir_ext as dx

from .llama_stack import annotated, build_stack


def layers(count: int) -> tvm.IRModule:
    """A decoder of so many layers, as one function."""
    return annotated(build_stack(count))


def parameters(count: int) -> tvm.IRModule:
    """A sum of so many sharded vectors, each of which is a parameter."""
    builder = relax.BlockBuilder()
    tensor = relax.TensorType((64,), "float32")
    params = [relax.Var(f"w{i}", tensor) for i in range(count)]
    with builder.function("main", params):
        total = params[0]
        for each in params[1:]:
            total = builder.emit(relax.op.add(total, each))
        builder.emit_func_output(total)
    return dx.annotate(builder.get(), dx.Mesh((8,), ("tp",)), {r"w\d+": ("tp",)})


def functions(count: int) -> tvm.IRModule:
    """So many private functions, each called once."""
    builder = relax.BlockBuilder()
    tensor = relax.TensorType((64, 64), "float32")
    callees = []
    for i in range(count):
        x, w = relax.Var("x", tensor), relax.Var("w", tensor)
        # The builder keeps one of several equal functions.
        with builder.function(f"layer{i}", [x, w], {"index": i}, private=True):
            result = builder.emit(relax.op.tanh(relax.op.matmul(x, w)))
            callees.append(builder.emit_func_output(result))
    x, w = relax.Var("x", tensor), relax.Var("w", tensor)
    with builder.function("main", [x, w]):
        value = x
        for callee in callees:
            value = builder.emit(relax.Call(callee, [value, w]))
        builder.emit_func_output(value)
    return dx.annotate(builder.get(), dx.Mesh((8,), ("tp",)), {"w": (None, "tp")})


def _moves(mesh: dx.Mesh, size: int, all_dims: list[tuple[object, ...]]) -> tvm.IRModule:
    """A matrix that takes one sharding after the other."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((size, size), "float32"))
    with builder.function("main", [x]):
        value = x
        for dims in all_dims:
            value = builder.emit(
                relax.op.distributed.annotate_sharding(
                    value, mesh.device_mesh, mesh.placement(*dims)
                )
            )
            value = builder.emit(relax.op.exp(value))
        builder.emit_func_output(value)
    mod = builder.get()
    mod.update_global_info("mesh", [mesh.device_mesh])
    return mod


def devices(count: int) -> tvm.IRModule:
    """Six redistributes of a matrix on a mesh of so many devices."""
    mesh = dx.Mesh((count // 8, 8), ("dp", "tp"))
    dims: list[tuple[object, ...]] = [
        ("dp", "tp"),
        ("tp", "dp"),
        (("dp", "tp"), None),
        (None, ("dp", "tp")),
        (None, None),
        ("dp", None),
        ("tp", None),
    ]
    return _moves(mesh, 8 * count, dims)


def axes(count: int) -> tvm.IRModule:
    """A matrix on a mesh of so many axes of size 2: its axes change dimensions one by one."""
    names = [f"axis{i}" for i in range(count)]
    mesh = dx.Mesh((2,) * count, names)
    dims: list[tuple[object, ...]] = [
        (tuple(names[i:]) or None, tuple(names[:i]) or None) for i in range(count + 1)
    ]
    return _moves(mesh, 2**count, dims)


def stages(count: int) -> tvm.IRModule:
    """A pipeline of so many stages, a device each, with a weight each."""
    builder = relax.BlockBuilder()
    tensor = relax.TensorType((64, 64), "float32")
    x = relax.Var("x", tensor)
    weights = [relax.Var(f"w{i}", tensor) for i in range(count)]
    meshes = [dx.Mesh((1,), ("tp",), device_ids=[i]) for i in range(count)]
    with builder.function("main", [x, *weights], {"num_input": 1}):
        value = x
        for mesh, weight in zip(meshes, weights, strict=True):
            value = builder.emit(
                relax.op.distributed.annotate_sharding(
                    value, mesh.device_mesh, mesh.placement(None, None)
                )
            )
            value = builder.emit(relax.op.tanh(relax.op.matmul(value, weight)))
        builder.emit_func_output(value)
    mod = builder.get()
    mod.update_global_info("mesh", [mesh.device_mesh for mesh in meshes])
    return mod


def disjoint_meshes(count: int) -> tvm.IRModule:
    """A matrix whose rows lie on so many devices and whose columns go to as many others."""
    size = relax.TensorType((4 * count, 4 * count), "float32")
    meshes = [
        dx.Mesh((count,), ("tp",), device_ids=list(range(begin, begin + count)))
        for begin in (0, count)
    ]
    builder = relax.BlockBuilder()
    x = relax.Var("x", size)
    with builder.function("main", [x]):
        value = x
        for mesh, dims in zip(meshes, (("tp", None), (None, "tp")), strict=True):
            value = builder.emit(
                relax.op.distributed.annotate_sharding(
                    value, mesh.device_mesh, mesh.placement(*dims)
                )
            )
            value = builder.emit(relax.op.exp(value))
        builder.emit_func_output(value)
    mod = builder.get()
    mod.update_global_info("mesh", [mesh.device_mesh for mesh in meshes])
    return mod


@dataclass(frozen=True)
class ScaleProgram:
    """A program of any size.

    Attributes:
        unit: Unit of its size.
        build: The annotated program with so many of them.
        sizes: Those that the benchmark takes.
    """

    unit: str
    build: Callable[[int], tvm.IRModule]
    sizes: tuple[int, ...]

    def units(self, size: int) -> int:
        """Returns the divisor of a time; `size` axes of size 2 make 2 ** size devices."""
        return 2**size if self.unit == "axes" else size


SCALE_PROGRAMS = (
    ScaleProgram("layers", layers, (50, 200, 1000)),
    ScaleProgram("parameters", parameters, (500, 2000, 10000)),
    ScaleProgram("functions", functions, (100, 400, 2000)),
    ScaleProgram("devices", devices, (256, 1024, 4096)),
    ScaleProgram("axes", axes, (2, 4, 6)),
    ScaleProgram("stages", stages, (32, 128, 256, 512)),
    ScaleProgram("devices per disjoint mesh", disjoint_meshes, (64, 512, 2048, 4096)),
)
