"""Routed experts: every token looks the matrices of its choices up."""

from dataclasses import dataclass

import numpy as np
from tvm import relax
from tvm.relax import op


@dataclass(frozen=True)
class Experts:
    """Sizes of a layer: silu(x gate) * (x up), times down, weighted and summed over the choices.

    Attributes:
        columns: Whether matrices are multiplied by columns, as ``torch.bmm(w, x)``.
        products: 1: only up; 3: gate, up and down.
        biases: Whether the experts' products have biases, which main takes last, in the order of
            the matrices.
        order: Of rows: "": as tokens are; else by expert, and back by the inverse permutation
            ("argsort", "scatter": how it is made), by writing them to their places ("places"), or
            by adding them up where their tokens are ("add").
    """

    tokens: int = 24
    experts: int = 16
    width: int = 32
    inner: int = 48
    choices: int = 2
    dtype: str = "float32"
    columns: bool = False
    products: int = 3
    biases: bool = False
    order: str = ""

    def module(self):
        """A function main(x, ids, scores, up, gate, down), with biases up_b, gate_b, down_b."""
        slots = self.tokens * self.choices
        shapes = {
            "x": (self.tokens, self.width),
            "ids": (self.tokens, self.choices),
            "scores": (self.tokens, self.choices),
            "up": self._matrix(self.width, self.inner),
            "gate": self._matrix(self.width, self.inner),
            "down": self._matrix(self.inner, self.width),
        }
        for name, size in zip(("up_b", "gate_b", "down_b"), self._bias_sizes(), strict=False):
            shapes[name] = (self.experts, size)
        params = [
            relax.Var(name, relax.TensorType(shape, "int32" if name == "ids" else self.dtype))
            for name, shape in shapes.items()
        ]
        x, ids, scores, up, gate, down, *biases = params
        up_b, gate_b, down_b = biases or (None, None, None)
        builder = relax.BlockBuilder()
        with builder.function("main", params):
            with builder.dataflow():
                emit = builder.emit
                flat = emit(op.reshape(ids, (slots,)))
                permutation = token = None
                if self.order:
                    permutation = emit(op.argsort(flat, dtype="int32"))
                    flat = emit(op.take(flat, permutation, axis=0))
                    choices = relax.const(self.choices, "int32")
                    token = emit(op.floor_divide(permutation, choices))
                    each = emit(op.take(x, token, axis=0))
                else:
                    wide = (self.tokens, self.choices, self.width)
                    each = emit(op.broadcast_to(emit(op.expand_dims(x, 1)), wide))
                rows = emit(op.reshape(each, self._row(slots, self.width)))
                h = self._product(emit, rows, up, up_b, flat)
                if self.products == 3:
                    g = emit(op.nn.silu(self._product(emit, rows, gate, gate_b, flat)))
                    h = self._product(emit, emit(op.multiply(g, h)), down, down_b, flat)
                last = self.width if self.products == 3 else self.inner
                result = builder.emit_output(self._weighted(emit, h, scores, permutation, token))
            builder.emit_func_output(result)
        return builder.get()

    def _weighted(self, emit, h, scores, permutation, token):
        """The sum over choices, of rows in any order."""
        slots = self.tokens * self.choices
        last = self.width if self.products == 3 else self.inner
        if self.order == "add":
            share = emit(op.take(emit(op.reshape(scores, (slots, 1))), permutation, axis=0))
            made = emit(op.multiply(emit(op.reshape(h, (slots, last))), share))
            start = emit(op.zeros((self.tokens, last), self.dtype))
            return op.scatter_nd(start, emit(op.expand_dims(token, 1)), made, "add")
        if self.order:
            h = self._in_order(emit, emit(op.reshape(h, (slots, last))), permutation)
        apart = emit(op.reshape(h, (self.tokens, self.choices, last)))
        return op.sum(emit(op.multiply(apart, emit(op.expand_dims(scores, 2)))), 1)

    def _in_order(self, emit, rows, permutation):
        slots = self.tokens * self.choices
        if self.order == "places":
            start = emit(op.zeros(rows.ty.shape, self.dtype))
            return emit(op.scatter_nd(start, emit(op.expand_dims(permutation, 1)), rows))
        if self.order == "argsort":
            inverse = emit(op.argsort(permutation, dtype="int32"))
        else:
            count = emit(op.arange(0, slots, 1, "int32"))
            start = emit(op.zeros((slots,), "int32"))
            inverse = emit(op.scatter_elements(start, permutation, count, 0))
        return emit(op.take(rows, inverse, axis=0))

    def _matrix(self, rows, columns):
        return (self.experts, columns, rows) if self.columns else (self.experts, rows, columns)

    def _row(self, slots, width):
        return (slots, width, 1) if self.columns else (slots, 1, width)

    def _product(self, emit, rows, experts, bias, flat):
        w = emit(op.take(experts, flat, axis=0))
        made = emit(op.matmul(w, rows) if self.columns else op.matmul(rows, w))
        if bias is None:
            return made
        each = emit(op.take(bias, flat, axis=0))
        return emit(op.add(made, emit(op.expand_dims(each, 2 if self.columns else 1))))

    def inputs(self, choose, seed=0):
        """Arguments of main; ``choose(rng)`` gives the ids."""
        rng = np.random.default_rng(seed)

        def normal(*shape):
            return (rng.standard_normal(shape) / np.sqrt(self.width)).astype(self.dtype)

        ids = np.asarray(choose(rng), "int32").reshape(self.tokens, self.choices)
        return [
            rng.standard_normal((self.tokens, self.width)).astype(self.dtype),
            ids,
            rng.uniform(0.5, 1, (self.tokens, self.choices)).astype(self.dtype),
            normal(*self._matrix(self.width, self.inner)),
            normal(*self._matrix(self.width, self.inner)),
            normal(*self._matrix(self.inner, self.width)),
            *(normal(self.experts, size) for size in self._bias_sizes()),
        ]

    def _bias_sizes(self):
        return (self.inner, self.inner, self.width) if self.biases else ()

    def dense(self, x, ids, scores, up, gate, down, up_b=0, gate_b=0, down_b=0):
        """Reference of main in NumPy: every token by all experts; the chosen ones count."""
        x, scores, up, gate, down = (a.astype("float64") for a in (x, scores, up, gate, down))
        if self.columns:
            up, gate, down = (w.transpose(0, 2, 1) for w in (up, gate, down))
        h = np.einsum("td,edf->tef", x, up) + up_b
        if self.products == 3:
            g = np.einsum("td,edf->tef", x, gate) + gate_b
            h = np.einsum("tef,efd->ted", h * g / (1 + np.exp(-g)), down) + down_b
        share = np.zeros((self.tokens, self.experts))
        for token, chosen in enumerate(ids):
            np.add.at(share[token], chosen, scores[token])
        return np.einsum("te,ted->td", share, h)


def balanced(layer):
    slots = layer.tokens * layer.choices
    return lambda _: np.arange(slots) % layer.experts


def one_in_eight(layer):
    """Of eight choices, seven are of the first expert."""

    def choose(rng):
        slots = layer.tokens * layer.choices
        ids = rng.integers(0, layer.experts, slots)
        return np.where(np.arange(slots) % 8 < 7, 0, ids)

    return choose
