"""Programs for automatic sharding: models without annotations, and random ones."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

TENSORS = 4
KINDS = ("matmul", "matmul", "relu", "add", "multiply", "permute", "sum", "softmax")


def decoder(
    layers: int = 2, batch: int = 8, sequence: int = 128, hidden: int = 512, dtype: str = "float32"
) -> tvm.IRModule:
    """Attention and feed-forward layers on hidden states."""
    builder = relax.BlockBuilder()
    heads, size = 8, hidden // 8

    def weight(name: str, *shape: int) -> relax.Var:
        return relax.Var(name, relax.TensorType(shape, dtype))

    x = weight("x", batch, sequence, hidden)
    weights = [
        {
            name: weight(f"layers.{layer}.{name}", *shape)
            for name, shape in {
                "q": (hidden, hidden),
                "k": (hidden, hidden),
                "v": (hidden, hidden),
                "o": (hidden, hidden),
                "up": (hidden, 4 * hidden),
                "down": (4 * hidden, hidden),
            }.items()
        }
        for layer in range(layers)
    ]
    params = [x, *(each for own in weights for each in own.values())]
    emit = builder.emit
    with builder.function("main", params, {"num_input": 1}):
        with builder.dataflow():
            value: Any = x
            for own in weights:
                parts = []
                for name in ("q", "k", "v"):
                    part = emit(op.matmul(value, own[name]))
                    part = emit(op.reshape(part, (batch, sequence, heads, size)))
                    parts.append(emit(op.permute_dims(part, (0, 2, 1, 3))))
                scores = emit(op.matmul(parts[0], emit(op.permute_dims(parts[1], (0, 1, 3, 2)))))
                mixed = emit(op.matmul(emit(op.nn.softmax(scores, -1)), parts[2]))
                mixed = emit(op.permute_dims(mixed, (0, 2, 1, 3)))
                mixed = emit(op.reshape(mixed, (batch, sequence, hidden)))
                value = emit(op.add(value, emit(op.matmul(mixed, own["o"]))))
                inner = emit(op.nn.relu(emit(op.matmul(value, own["up"]))))
                value = emit(op.add(value, emit(op.matmul(inner, own["down"]))))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


def random_program(rng: random.Random) -> tvm.IRModule:
    """Up to twelve operators on matrices, some of which nothing reads, with up to three weights."""
    size = rng.choice([64, 512, 4096])
    extents = [size, 2 * size, size // 2]
    params = [
        relax.Var("x", relax.TensorType((rng.choice(extents), rng.choice(extents)), "float32"))
    ]
    calls: list[tuple[str, int, int]] = []
    shapes = [tuple(int(extent) for extent in params[0].ty.shape.values)]
    for _ in range(rng.randint(2, 12)):
        kind = rng.choice(
            ["matmul", "matmul", "relu", "add", "multiply", "permute", "sum", "softmax"]
        )
        at = rng.randrange(len(shapes)) if rng.random() < 0.3 else len(shapes) - 1
        rows, columns = shapes[at]
        second = at
        if kind == "matmul":
            if len(params) == TENSORS:
                continue
            width = rng.choice(extents)
            name = f"w{len(params)}"
            params.append(relax.Var(name, relax.TensorType((columns, width), "float32")))
            second, shape = len(params) - 1, (rows, width)
        elif kind in ("add", "multiply"):
            second = rng.choice([i for i, each in enumerate(shapes) if each == (rows, columns)])
            shape = (rows, columns)
        else:
            shape = {"permute": (columns, rows), "sum": (rows, 1)}.get(kind, (rows, columns))
        calls.append((kind, at, second))
        shapes.append(shape)
    builder = relax.BlockBuilder()
    with builder.function("main", params, {"num_input": 1}):
        with builder.dataflow():
            values: list[Any] = [params[0]]
            for kind, at, second in calls:
                x = values[at]
                values.append(
                    builder.emit(
                        {
                            "matmul": lambda x=x, w=second: op.matmul(x, params[w]),
                            "relu": lambda x=x: op.nn.relu(x),
                            "add": lambda x=x, y=second: op.add(x, values[y]),
                            "multiply": lambda x=x, y=second: op.multiply(x, values[y]),
                            "permute": lambda x=x: op.permute_dims(x),
                            "sum": lambda x=x: op.sum(x, axis=[1], keepdims=True),
                            "softmax": lambda x=x: op.nn.softmax(x, axis=-1),
                        }[kind]()
                    )
                )
            result = builder.emit_output(values[-1])
        builder.emit_func_output(result)
    return builder.get()


def arguments(mod: tvm.IRModule, seed: int = 0) -> list[np.ndarray]:
    """Random values for the parameters of ``main``."""
    rng = np.random.default_rng(seed)
    shapes = ([int(size) for size in param.ty.shape.values] for param in mod["main"].params)
    return [rng.standard_normal(shape).astype("float32") / shape[-1] ** 0.5 for shape in shapes]
