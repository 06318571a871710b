"""Llama's attention with small shapes and a number of heads that shards do not divide."""

from dataclasses import dataclass

import numpy as np
import tvm
from tests.padding.programs import Program
from tvm.relax import const
from tvm.relax import op as R

PLAN = {"wq.*|wk.*|wv.*|up.*": (None, "tp"), "wo.*|down.*": ("tp", None)}
"""Columns of what makes heads and features, rows of what takes them."""


@dataclass(frozen=True)
class Attention:
    """Layers of grouped-query attention, each with a feed-forward layer behind it."""

    heads: int = 16
    kv_heads: int = 8
    size: int = 4
    layers: int = 1
    repeats: bool = False  # keys and values by R.repeat, not by a broadcast
    dtype: str = "float32"
    length: int = 3
    hidden: int = 10
    features: int = 11

    def shapes(self) -> dict[str, tuple[int, ...]]:
        columns, kv_columns = self.heads * self.size, self.kv_heads * self.size
        shapes: dict[str, tuple[int, ...]] = {"x": (1, self.length, self.hidden)}
        for i in range(self.layers):
            shapes |= {
                f"wq{i}": (self.hidden, columns),
                f"wk{i}": (self.hidden, kv_columns),
                f"wv{i}": (self.hidden, kv_columns),
                f"wo{i}": (columns, self.hidden),
                f"up{i}": (self.hidden, self.features),
                f"down{i}": (self.features, self.hidden),
            }
        return shapes

    def program(self) -> Program:
        return Program(self.shapes(), self._build, self.dtype)

    def module(self) -> tvm.IRModule:
        return self.program().module()

    def _build(self, emit, x, *weights):
        for i in range(self.layers):
            wq, wk, wv, wo, up, down = weights[6 * i : 6 * i + 6]
            queries = self._split(emit, emit(R.matmul(x, wq)), self.heads)
            keys = self._repeated(emit, self._split(emit, emit(R.matmul(x, wk)), self.kv_heads))
            values = self._repeated(emit, self._split(emit, emit(R.matmul(x, wv)), self.kv_heads))
            scores = emit(R.matmul(queries, emit(R.permute_dims(keys, [0, 1, 3, 2]))))
            scale = const(np.asarray(0.25, self.dtype))
            weight = emit(R.nn.softmax(emit(R.multiply(scores, scale)), axis=-1))
            mixed = emit(R.permute_dims(emit(R.matmul(weight, values)), [0, 2, 1, 3]))
            merged = emit(R.reshape(mixed, (1, self.length, self.heads * self.size)))
            x = emit(R.add(x, emit(R.matmul(merged, wo))))
            x = emit(R.add(x, emit(R.matmul(emit(R.nn.silu(emit(R.matmul(x, up)))), down))))
        return x

    def _split(self, emit, columns, heads):
        split = emit(R.reshape(columns, (1, self.length, heads, self.size)))
        return emit(R.permute_dims(split, [0, 2, 1, 3]))

    def _repeated(self, emit, x):
        group = self.heads // self.kv_heads
        if group == 1:
            return x
        if self.repeats:
            return emit(R.repeat(x, group, axis=1))
        shape = (1, self.kv_heads, group, self.length, self.size)
        grouped = emit(R.broadcast_to(emit(R.expand_dims(x, 2)), shape))
        return emit(R.reshape(grouped, (1, self.heads, self.length, self.size)))
