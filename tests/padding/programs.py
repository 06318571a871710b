"""Programs with odd sizes, with plans and inputs; none of the sizes divides into 2 or 4 shards."""

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

import distir_ext as dx

PAIR = dx.Mesh((2,), ("a",))
FOUR = dx.Mesh((4,), ("a",))
SQUARE = dx.Mesh((2, 2), ("a", "b"))
TALL = dx.Mesh((3, 2), ("a", "b"))


@dataclass(frozen=True)
class Program:
    """A function ``main`` of tensors; ``build`` gets its builder and parameters."""

    shapes: dict
    build: object
    dtype: str = "float32"

    def module(self) -> tvm.IRModule:
        builder = relax.BlockBuilder()
        params = [
            relax.Var(name, relax.TensorType(shape, self.dtype_of(name)))
            for name, shape in self.shapes.items()
        ]
        with builder.function("main", params):
            with builder.dataflow():
                results = self.build(builder.emit, *params)
                results = results if isinstance(results, tuple) else (results,)
                outputs = [builder.emit_output(each) for each in results]
            builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
        return builder.get()

    def dtype_of(self, name: str) -> str:
        return "int64" if name == "indices" else "bool" if name == "flag" else self.dtype

    def inputs(self) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        return [self._draw(rng, name, shape) for name, shape in self.shapes.items()]

    def _draw(self, rng, name, shape):
        dtype = self.dtype_of(name)
        if name == "indices":
            return rng.integers(1, 7, shape)
        if np.dtype(dtype).kind in "iu":
            return rng.integers(1, 9, shape).astype(dtype)
        return rng.standard_normal(shape).astype(dtype)


def _mlp(emit, x, up, down):
    h = emit(R.nn.gelu(emit(R.matmul(x, up))))
    return emit(R.add(emit(R.matmul(h, down)), x))


def _reductions(emit, x):
    e = emit(R.exp(x))
    return (
        emit(R.sum(e, axis=[0])),
        emit(R.mean(e, axis=[0], keepdims=True)),
        emit(R.mean(e)),
        emit(R.max(emit(R.negative(e)), axis=[0])),
        emit(R.min(e, axis=[0])),
        emit(R.prod(e, axis=[0, 1])),
        emit(R.variance(e, axis=[0])),
        emit(R.std(e, axis=[1])),
    )


def _norms(emit, x, gamma, beta):
    e = emit(R.exp(x))
    return (
        emit(R.nn.softmax(e, axis=1)),
        emit(R.nn.log_softmax(e, axis=0)),
        emit(R.nn.layer_norm(e, gamma, beta, axes=[-1])),
        emit(R.nn.rms_norm(e, gamma, axes=[-1])),
    )


def _attention(emit, x, wq, wk, wv, wo, gamma):
    """One decoder block: 13 positions, 4 heads of 5, causal mask stated as a constant."""
    length, width, heads, depth = 13, 20, 4, 5
    h = emit(R.nn.rms_norm(x, gamma, axes=[-1]))

    def split(weight):
        y = emit(R.reshape(emit(R.matmul(h, weight)), (1, length, heads, depth)))
        return emit(R.permute_dims(y, [0, 2, 1, 3]))

    q, k, v = split(wq), split(wk), split(wv)
    scores = emit(R.matmul(q, emit(R.permute_dims(k, [0, 1, 3, 2]))))
    ones = emit(R.ones((length, length), "float32"))
    scores = emit(R.add(scores, emit(R.multiply(emit(R.triu(ones, 1)), relax.const(-1e9)))))
    mixed = emit(R.matmul(emit(R.nn.softmax(scores, axis=-1)), v))
    mixed = emit(R.reshape(emit(R.permute_dims(mixed, [0, 2, 1, 3])), (1, length, width)))
    x = emit(R.add(x, emit(R.matmul(mixed, wo))))
    return emit(R.add(x, emit(R.nn.silu(emit(R.matmul(x, wq))))))


def _moves(emit, x):
    e = emit(R.exp(x))
    t = emit(R.permute_dims(e, [1, 0]))
    wide = emit(R.broadcast_to(emit(R.expand_dims(t, [1])), (10, 3, 7)))
    rows = emit(R.reshape(wide, (30, 7)))
    return (
        emit(R.concat([rows, rows], axis=0)),
        emit(R.reshape(e, (70,))),
        emit(R.strided_slice(e, [0], [1], [6])),
        emit(R.cumsum(e, axis=0)),
        emit(R.argmax(e, axis=0)),
        emit(R.flip(e, axis=0)),
        emit(R.sum(wide, axis=[0, 1])),
    )


def _take(emit, table, indices):
    rows = emit(R.take(table, indices, axis=0))
    again = emit(R.take(table, emit(R.subtract(indices, relax.const(1, "int64"))), axis=0))
    return emit(R.sum(emit(R.multiply(emit(R.exp(rows)), again)), axis=[0]))


def _convolution(emit, x, w):
    y = emit(R.nn.conv2d(x, w, padding=1))
    y = emit(R.nn.conv2d(emit(R.exp(emit(R.tanh(y)))), w, padding=1))
    return emit(R.sum(emit(R.nn.max_pool2d(y, (2, 2))), axis=[0]))


def _integers(emit, x, n):
    d = emit(R.subtract(n, relax.const(0, "int32")))
    return (
        emit(R.floor_divide(x, d)),
        emit(R.floor_mod(x, d)),
        emit(R.max(emit(R.subtract(x, relax.const(100, "int32"))), axis=0)),
        emit(R.min(emit(R.add(x, d)), axis=0)),
    )


def _outer(emit, x, y):
    return emit(R.einsum((emit(R.exp(x)), emit(R.exp(y))), "bij,bjk->bik"))


MLP = Program({"x": (7, 10), "up": (10, 13), "down": (13, 10)}, _mlp)
REDUCTIONS = Program({"x": (7, 10)}, _reductions)
NORMS = Program({"x": (13, 10), "gamma": (10,), "beta": (10,)}, _norms)
BLOCK = Program(
    {
        "x": (1, 13, 20),
        **dict.fromkeys(("wq", "wk", "wv", "wo"), (20, 20)),
        "gamma": (20,),
    },
    _attention,
)
MOVES = Program({"x": (7, 10)}, _moves)
TAKE = Program({"table": (7, 10), "indices": (13,)}, _take)
CONVOLUTION = Program({"x": (7, 5, 6, 6), "w": (5, 5, 3, 3)}, _convolution)
INTEGERS = Program({"x": (7, 10), "n": (7, 10)}, _integers, "int32")
EINSUM = Program({"x": (7, 10, 13), "y": (7, 13, 10)}, _outer)

RUNS = {
    "contraction": (MLP, PAIR, {"up": (None, "a"), "down": ("a", None)}),
    "contraction in four": (MLP, FOUR, {"up": (None, "a"), "down": ("a", None)}),
    "batch": (MLP, FOUR, {"x": ("a", None)}),
    "output": (MLP, FOUR, {"down": (None, "a")}),
    "batch and contraction": (MLP, SQUARE, {"x": ("a", None), "up": (None, "b")}),
    "both axes": (MLP, SQUARE, {"up": (None, ("a", "b")), "x": ("a", None)}),
    "three and two": (MLP, TALL, {"x": ("a", None), "up": (None, "b"), "down": ("b", "a")}),
    "six shards": (MLP, TALL, {"x": (("a", "b"), None), "down": (("a", "b"), None)}),
    "reductions": (REDUCTIONS, FOUR, {"x": ("a", None)}),
    "reductions of both": (REDUCTIONS, TALL, {"x": ("b", "a")}),
    "reductions of rows": (REDUCTIONS, SQUARE, {"x": (("a", "b"), None)}),
    "norms": (NORMS, FOUR, {"x": ("a", None)}),
    "norms on columns": (NORMS, TALL, {"x": ("b", "a")}),
    "block by sequence": (BLOCK, FOUR, {"x": (None, "a", None)}),
    "block by sequence and heads": (
        BLOCK,
        SQUARE,
        {"x": (None, "a", None), "w[qkv]": (None, "b"), "wo": ("b", None)},
    ),
    "block by three heads": (BLOCK, TALL, {"w[qkv]": (None, "a"), "x": (None, "b", None)}),
    "moves": (MOVES, FOUR, {"x": ("a", None)}),
    "moves of columns": (MOVES, TALL, {"x": ("b", "a")}),
    "take": (TAKE, SQUARE, {"table": (None, "b"), "indices": ("a",)}),
    "take from shards": (TAKE, FOUR, {"table": ("a", None), "indices": (None,)}),
    "convolution batch": (CONVOLUTION, FOUR, {"x": ("a", None, None, None)}),
    "convolution channels": (CONVOLUTION, PAIR, {"x": (None, "a", None, None)}),
    "convolution of both": (CONVOLUTION, TALL, {"x": ("a", "b", None, None)}),
    "integers": (INTEGERS, FOUR, {"x": ("a", None), "n": ("a", None)}),
    "einsum": (EINSUM, TALL, {"x": ("a", None, "b")}),
}
"""Program, mesh and plan by name."""
