"""Programs that a laptop runs in milliseconds, each bound by something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

Emit = Callable[..., relax.Var]
Layer = Callable[[Emit, relax.Expr, relax.Var, relax.Var], relax.Var]


@dataclass(frozen=True)
class Model:
    """Equal layers with two weights each, ``up`` and ``down``."""

    name: str
    layers: int
    width: int
    inner: int
    layer: Layer

    def build(self, rows: int) -> tvm.IRModule:
        """``main(x, layers.0.up, layers.0.down, ..)`` for so many rows."""
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((rows, self.width), "float32"))
        weights = [
            relax.Var(name, relax.TensorType(shape, "float32"))
            for name, shape in self._weights().items()
        ]
        with builder.function("main", [x, *weights], {"num_input": 1}):
            with builder.dataflow():
                value: relax.Expr = x
                for up, down in zip(weights[::2], weights[1::2], strict=True):
                    value = self.layer(builder.emit, value, up, down)
                result = builder.emit_output(value)
            builder.emit_func_output(result)
        return builder.get()

    def values(self, rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Weights by name, and an input."""
        rng = np.random.default_rng(0)
        weights = {
            name: rng.standard_normal(shape, "float32") / np.float32(shape[0])
            for name, shape in self._weights().items()
        }
        return weights, rng.standard_normal((rows, self.width), "float32")

    def _weights(self) -> dict[str, tuple[int, int]]:
        return {
            f"layers.{i}.{name}": shape
            for i in range(self.layers)
            for name, shape in (
                ("up", (self.width, self.inner)),
                ("down", (self.inner, self.width)),
            )
        }


def feed_forward(emit: Emit, x: relax.Expr, up: relax.Var, down: relax.Var) -> relax.Var:
    """Two products and a residual sum."""
    return emit(op.add(x, emit(op.matmul(emit(op.nn.relu(emit(op.matmul(x, up)))), down))))


def softmax_layer(emit: Emit, x: relax.Expr, up: relax.Var, down: relax.Var) -> relax.Var:
    """Emits two products like `feed_forward`, with elementwise and row-wise functions between."""
    wide = emit(op.nn.gelu(emit(op.matmul(x, up))))
    for _ in range(3):
        wide = emit(op.nn.softmax(emit(op.multiply(wide, wide)), axis=0))
    return emit(op.tanh(emit(op.matmul(wide, down))))


MODELS = (
    Model("wide", layers=4, width=512, inner=1024, layer=feed_forward),  # bound by products
    Model("deep", layers=24, width=64, inner=64, layer=feed_forward),  # bound by launches
    Model("softmax", layers=3, width=256, inner=512, layer=softmax_layer),  # bound by memory
)
