"""Programs with known costs, and programs whose costs are hard to compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import relax
from tvm.relax import op

import distir_ext as dx

CPU = dx.Device(
    "test", {"float32": 1e9, "float64": 5e8}, memory=1e9, bandwidth=1e8, launch=1e-6, target="llvm"
)
GPU = dx.Device("test", {"float32": 1e9}, memory=1e9, bandwidth=1e8, launch=1e-6)


def on(device: dx.Device = GPU) -> dx.Cluster:
    return dx.Cluster.uniform(device=device)


def function(
    shapes: dict[str, Sequence[int]],
    write: Callable[..., relax.Expr],
    *,
    dtype: str | Sequence[str] = "float32",
    num_input: int | None = None,
) -> tvm.IRModule:
    """``main`` of these parameters; `write` gets a function that emits, then the parameters."""
    builder = relax.BlockBuilder()
    dtypes = [dtype] * len(shapes) if isinstance(dtype, str) else dtype
    params = [
        relax.Var(name, relax.TensorType(shape, each))
        for (name, shape), each in zip(shapes.items(), dtypes, strict=True)
    ]
    attrs = {} if num_input is None else {"num_input": num_input}
    with builder.function("main", params, attrs):
        with builder.dataflow():
            result = builder.emit_output(write(builder.emit, *params))
        builder.emit_func_output(result)
    return builder.get()


def on_two(mod: tvm.IRModule, plan: dict[str, tuple[str | None, ...]]) -> tvm.IRModule:
    return dx.annotate(mod, dx.Mesh(tp=2), plan)


def megatron(layers: int = 2, rows: int = 4, hidden: int = 8, width: int = 16) -> tvm.IRModule:
    """Blocks of two products and a residual sum, weights sharded as Megatron does; 2 devices."""
    shapes: dict[str, Sequence[int]] = {"x": (rows, hidden)}
    for i in range(layers):
        shapes[f"layers.{i}.up"] = (hidden, width)
        shapes[f"layers.{i}.down"] = (width, hidden)
    shapes["head"] = (hidden, 4)

    def write(emit, x, *weights):
        *inner, head = weights
        for up, down in zip(inner[::2], inner[1::2], strict=True):
            wide = emit(op.nn.relu(emit(op.matmul(x, up))))
            x = emit(op.add(x, emit(op.matmul(wide, down))))
        return op.matmul(x, head)

    mod = function(shapes, write, num_input=1)
    return on_two(mod, {r".*up": (None, "tp"), r".*down": ("tp", None)})
