"""Programs of small floats that exercise GPUs; the tests build them as well.

A product, a layer of a Llama with grouped-query attention, rotary embedding and SwiGLU (prefill and
decode), and a convolutional net.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.relax import op

from distir_ext.annotate.patterns import annotate
from distir_ext.mesh.mesh import Mesh

__all__ = ["LLAMA_8B", "TINY", "Layer", "module_of", "programs"]

Shapes = Mapping[str, tuple[int, ...]]

_PLAN = {"q|k|v|gate|up|w": (None, "tp"), "o|down": ("tp", None), "image": ("tp", None, None, None)}


@dataclass(frozen=True)
class Layer:
    """Sizes of a layer of a Llama."""

    hidden: int
    heads: int
    kv_heads: int
    feed_forward: int
    past: int
    """Positions that the cache has."""

    @property
    def size(self) -> int:
        """Size of a head."""
        return self.hidden // self.heads

    def shapes(self, rows: int) -> Shapes:
        """Returns the shapes of the arguments of :meth:`run`, by name, for `rows` new positions."""
        kv = self.kv_heads * self.size
        half = (rows, 1, self.size // 2)
        past = (1, self.past, self.kv_heads, self.size)
        return {
            "x": (rows, self.hidden),
            "cos": half,
            "sin": half,
            "past_keys": past,
            "past_values": past,
            "norm1": (self.hidden,),
            "q": (self.hidden, self.hidden),
            "k": (self.hidden, kv),
            "v": (self.hidden, kv),
            "o": (self.hidden, self.hidden),
            "norm2": (self.hidden,),
            "gate": (self.hidden, self.feed_forward),
            "up": (self.hidden, self.feed_forward),
            "down": (self.feed_forward, self.hidden),
        }

    def run(
        self,
        x: Any,
        cos: Any,
        sin: Any,
        past_keys: Any,
        past_values: Any,
        norm1: Any,
        q: Any,
        k: Any,
        v: Any,
        o: Any,
        norm2: Any,
        gate: Any,
        up: Any,
        down: Any,
    ) -> Any:
        """The layer, in Relax."""
        rows = x.ty.shape.values[0]
        h = _emit(op.nn.rms_norm(x, norm1, [-1]))
        queries, keys, values = (
            op.reshape(op.matmul(h, weight), (1, rows, heads, self.size))
            for weight, heads in ((q, self.heads), (k, self.kv_heads), (v, self.kv_heads))
        )
        keys = op.concat([past_keys, _rotated(keys, cos, sin)], axis=1)
        values = op.concat([past_values, values], axis=1)
        mixed = op.nn.attention(
            _rotated(queries, cos, sin), keys, values, causal_mask="BottomRight"
        )
        mixed = op.reshape(mixed, (rows, self.hidden))
        x = _emit(op.add(x, op.matmul(mixed, o)))
        h = _emit(op.nn.rms_norm(x, norm2, [-1]))
        h = op.multiply(op.nn.silu(_emit(op.matmul(h, gate))), op.matmul(h, up))
        return op.add(x, op.matmul(h, down))


# Llama 3 8B (arXiv:2407.21783, table 3).
LLAMA_8B = Layer(hidden=4096, heads=32, kv_heads=8, feed_forward=14336, past=128)
TINY = Layer(hidden=32, heads=4, kv_heads=2, feed_forward=64, past=8)

_PREFILL_ROWS = 128


def programs(dtype: str, mesh: Mesh, layer: Layer = LLAMA_8B, names: str = ".*") -> tvm.IRModule:
    """All programs in one module, so that one compilation serves all.

    Args:
        dtype: Of all tensors.
        mesh: A mesh with an axis ``tp``.
        layer: The layer's sizes.
        names: Regular expression on the names of programs.
    """
    listed: dict[str, tuple[Callable[..., Any], Shapes]] = {
        "product": (op.matmul, {"x": (128, 256), "w": (256, 256)}),
        "prefill": (layer.run, layer.shapes(_PREFILL_ROWS)),
        "decode": (layer.run, layer.shapes(1)),
        "convolutions": (
            _convolutions,
            {
                "image": (4, 64, 16, 16),
                "kernel1": (128, 64, 3, 3),
                "kernel2": (128, 128, 3, 3),
                "dense": (128, 100),
            },
        ),
    }
    chosen = {name: each for name, each in listed.items() if re.fullmatch(names, name)}
    mod = tvm.IRModule()
    for name, (make, shapes) in chosen.items():
        mod[name] = module_of(make, shapes, dtype, name)[name]
    for name, (_, shapes) in chosen.items():
        plan = {
            key: dims for key, dims in _PLAN.items() if any(map(re.compile(key).fullmatch, shapes))
        }
        mod = annotate(mod, mesh, plan, func=name)
    return mod


def module_of(
    make: Callable[..., Any],
    shapes: Shapes,
    dtype: str,
    name: str = "main",
    num_input: int | None = None,
) -> tvm.IRModule:
    """A function of arguments with these names and shapes.

    Args:
        make: Computes the result, in Relax.
        shapes: Of its arguments, by name.
        dtype: Of all of them.
        name: Its own.
        num_input: Number of them that are inputs of each call; the others are weights.
    """
    builder = relax.BlockBuilder()
    params = [relax.Var(each, relax.TensorType(size, dtype)) for each, size in shapes.items()]
    attributes = {} if num_input is None else {"num_input": num_input}
    with builder.function(name, params, attributes):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(make(*params)))
        builder.emit_func_output(result)
    return builder.get()


def _emit(value: Any) -> Any:
    return relax.BlockBuilder.current().emit(value)


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    halves = _emit(op.split(x, 2, axis=-1))
    left, right = _emit(halves[0]), _emit(halves[1])
    first = op.subtract(op.multiply(left, cos), op.multiply(right, sin))
    second = op.add(op.multiply(right, cos), op.multiply(left, sin))
    return op.concat([first, second], axis=-1)


def _convolutions(image: Any, kernel1: Any, kernel2: Any, dense: Any) -> Any:
    h = op.nn.relu(op.nn.conv2d(image, kernel1, padding=1))
    h = op.nn.avg_pool2d(op.nn.relu(op.nn.conv2d(h, kernel2, strides=2, padding=1)), 2, 2)
    return op.nn.softmax(op.matmul(op.mean(h, [2, 3]), dense))
