"""Experts with a capacity: tokens are put into slots of experts by products with a mask."""

from dataclasses import dataclass

import numpy as np
from tvm import relax, tirx
from tvm.relax import op


@dataclass(frozen=True)
class Slots:
    """Sizes of a layer in GShard's form; what has no slot left is dropped.

    A token takes the next slot of the expert of its first choice, then of its second, ..; all first
    choices come before all second ones. The mask (tokens, experts, slots) has the score of the
    token in a slot; dispatch is its 0 and 1.

    Attributes:
        capacity: Slots of each expert.
        einsum: Whether products are einsums; else matmuls of reshaped masks.
        one_hot: Whether masks are ``R.one_hot``; else a comparison with ``R.arange``.
    """

    tokens: int = 24
    experts: int = 16
    width: int = 32
    inner: int = 48
    choices: int = 2
    capacity: int = 6
    dtype: str = "float32"
    einsum: bool = True
    one_hot: bool = True

    def module(self):
        """A function main(x, ids, scores, up, down)."""
        shapes = {
            "x": (self.tokens, self.width),
            "ids": (self.tokens, self.choices),
            "scores": (self.tokens, self.choices),
            "up": (self.experts, self.width, self.inner),
            "down": (self.experts, self.inner, self.width),
        }
        params = [
            relax.Var(name, relax.TensorType(shape, "int32" if name == "ids" else self.dtype))
            for name, shape in shapes.items()
        ]
        x, ids, scores, up, down = params
        builder = relax.BlockBuilder()
        with builder.function("main", params):
            with builder.dataflow():
                emit = builder.emit
                combine = self._mask(emit, ids, scores)
                zero = relax.const(0, self.dtype)
                dispatch = emit(op.astype(emit(op.not_equal(combine, zero)), self.dtype))
                if self.einsum:
                    given = emit(op.einsum((x, dispatch), "td,tec->ecd"))
                else:
                    flat = emit(op.reshape(dispatch, (self.tokens, self.experts * self.capacity)))
                    given = emit(op.matmul(emit(op.permute_dims(flat)), x))
                    given = emit(op.reshape(given, (self.experts, self.capacity, self.width)))
                h = emit(op.nn.silu(emit(op.matmul(given, up))))
                made = emit(op.matmul(h, down))
                if self.einsum:
                    result = builder.emit_output(op.einsum((made, combine), "ecd,tec->td"))
                else:
                    rows = emit(op.reshape(made, (self.experts * self.capacity, self.width)))
                    flat = emit(op.reshape(combine, (self.tokens, self.experts * self.capacity)))
                    result = builder.emit_output(op.matmul(flat, rows))
            builder.emit_func_output(result)
        return builder.get()

    def _one_hot(self, emit, ids, depth):
        if self.one_hot:
            one, zero = (tirx.FloatImm("float32", value) for value in (1, 0))
            return emit(op.one_hot(ids, one, zero, depth, -1))
        places = emit(op.arange(0, depth, 1, "int32"))
        return emit(op.astype(emit(op.equal(emit(op.expand_dims(ids, -1)), places)), "float32"))

    def _mask(self, emit, ids, scores):
        """(tokens, experts, slots): the score of a token in its slots, 0 elsewhere."""
        total = taken = None
        for choice in range(self.choices):
            column = emit(op.squeeze(emit(op.strided_slice(ids, [1], [choice], [choice + 1])), [1]))
            score = emit(op.strided_slice(scores, [1], [choice], [choice + 1]))
            experts = self._one_hot(emit, column, self.experts)
            counted = emit(op.cumsum(experts, 0))
            if taken is not None:
                counted = emit(op.add(counted, taken))
            before = emit(
                op.subtract(
                    emit(op.sum(emit(op.multiply(counted, experts)), 1)), relax.const(1, "float32")
                )
            )
            slots = self._one_hot(emit, emit(op.astype(before, "int32")), self.capacity)
            place = emit(
                op.multiply(emit(op.expand_dims(experts, 2)), emit(op.expand_dims(slots, 1)))
            )
            score = emit(op.expand_dims(emit(op.astype(score, "float32")), 2))
            place = emit(op.multiply(place, score))
            total = place if total is None else emit(op.add(total, place))
            number = emit(op.sum(experts, 0, keepdims=True))
            taken = number if taken is None else emit(op.add(taken, number))
        return emit(op.astype(total, self.dtype))

    def inputs(self, choose, seed=0):
        """Arguments of main; ``choose(rng)`` gives the ids."""
        rng = np.random.default_rng(seed)
        root = np.sqrt(self.width)
        return [
            rng.standard_normal((self.tokens, self.width)).astype(self.dtype),
            np.asarray(choose(rng), "int32").reshape(self.tokens, self.choices),
            rng.uniform(0.5, 1, (self.tokens, self.choices)).astype(self.dtype),
            (rng.standard_normal((self.experts, self.width, self.inner)) / root).astype(self.dtype),
            (rng.standard_normal((self.experts, self.inner, self.width)) / root).astype(self.dtype),
        ]

    def dense(self, x, ids, scores, up, down):
        """Reference of main in NumPy, token by token."""
        x, scores, up, down = (a.astype("float64") for a in (x, scores, up, down))
        out = np.zeros((self.tokens, self.width))
        taken = np.zeros(self.experts, int)
        for choice in range(self.choices):
            for token in range(self.tokens):
                expert = ids[token, choice]
                if taken[expert] < self.capacity:
                    h = x[token] @ up[expert]
                    out[token] += scores[token, choice] * ((h / (1 + np.exp(-h))) @ down[expert])
                taken[expert] += 1
        return out
