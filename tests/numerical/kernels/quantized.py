"""Weights of 4 and 8 bits in groups, as MLC-LLM, AWQ and GPTQ lay them out, and products with them.

Each format dequantises a matrix (IN, OUT) of float32, or (OUT, IN) where its rows are outputs, from
arrays that ``make`` gives. Shapes: IN = 192 in groups of 32, OUT = 48.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te

IN, OUT, GROUP = 192, 48, 32
GROUPS, WORD = IN // GROUP, 8  # numbers of 4 bits in a word
AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]  # the place of each number of a word
ROWS = 5


def packed(numbers, axis, order=range(WORD), dtype="uint32"):
    """Words of eight numbers each along an axis."""
    apart = np.moveaxis(numbers, axis, -1).reshape(-1, numbers.shape[axis] // WORD, WORD)
    words = sum(apart[..., i].astype("uint64") << np.uint64(4 * order[i]) for i in range(WORD))
    rest = np.delete(numbers.shape, axis)
    return np.moveaxis(words.astype("uint32").view(dtype).reshape(*rest, -1), -1, axis)


def number(words, at, place):
    """The number of 4 bits at a place of a word, in TE."""
    shift = (place * 4).astype(words.dtype)
    return ((words(*at) >> shift) & 15).astype("float32")


@dataclass(frozen=True)
class Format:
    """A layout of quantised weights.

    Attributes:
        inputs: By array its shape, its dtype, and which of its dimensions are inputs and outputs.
        dequantize: In TE, the matrix from the arrays.
        is_transposed: Whether the matrix is (OUT, IN).
    """

    name: str
    arrays: dict[str, tuple[tuple[int, ...], str, str]]
    dequantize: Any
    reference: Any
    is_transposed: bool = False

    def plan(self, along):
        """Shards the dimensions that are inputs ("k") or outputs ("n")."""
        plan = {
            name: tuple("tp" if dim == along else None for dim in dims)
            for name, (_, _, dims) in self.arrays.items()
        }
        return {name: spec for name, spec in plan.items() if any(spec)}

    def make(self):
        """Random arrays."""
        rng = np.random.default_rng(0)
        made = {}
        for name, (shape, dtype, _) in self.arrays.items():
            if dtype == "float32":
                made[name] = rng.uniform(0.1, 1, shape).astype(dtype)
            elif name == "g_idx":
                made[name] = rng.permutation(np.arange(IN) // GROUP).astype(dtype)
            else:
                info = np.iinfo(dtype)
                made[name] = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        return made

    def product(self, x, *arrays):
        """In TE, x by the dequantised matrix."""
        matrix = self.dequantize(*arrays)
        k = te.reduce_axis((0, IN), "k")

        def value(i, j):
            return te.sum(x(i, k) * (matrix(j, k) if self.is_transposed else matrix(k, j)), k)

        return te.compute((ROWS, OUT), value, "product")

    def module(self, in_one_kernel=False):
        """main(x, arrays ..): x (ROWS, IN) by the dequantised matrix."""
        x = relax.Var("x", relax.TensorType((ROWS, IN), "float32"))
        arrays = [
            relax.Var(name, relax.TensorType(shape, dtype))
            for name, (shape, dtype, _) in self.arrays.items()
        ]
        builder = relax.BlockBuilder()
        with builder.function("main", [x, *arrays], attrs={"num_input": 1}):
            with builder.dataflow():
                if in_one_kernel:
                    made = builder.emit_te(self.product, x, *arrays, primfunc_name_hint="product")
                else:
                    named = {"primfunc_name_hint": "dequantize"}
                    matrix = builder.emit_te(self.dequantize, *arrays, **named)
                    if self.is_transposed:
                        matrix = builder.emit(relax.op.permute_dims(matrix))
                    made = relax.op.matmul(x, matrix)
                result = builder.emit_output(made)
            builder.emit_func_output(result)
        return builder.get()

    def of_blocks(self, points):
        """main(x, arrays .., out): the columns in blocks, which are multiplied, by ``out``."""
        width = points[0]
        x = relax.Var("x", relax.TensorType((ROWS, IN), "float32"))
        out = relax.Var("out", relax.TensorType((width, ROWS), "float32"))
        arrays = [
            relax.Var(name, relax.TensorType(shape, dtype))
            for name, (shape, dtype, _) in self.arrays.items()
        ]
        builder = relax.BlockBuilder()
        with builder.function("main", [x, *arrays, out], attrs={"num_input": 1}):
            with builder.dataflow():
                matrix = builder.emit_te(self.dequantize, *arrays, primfunc_name_hint="dequantize")
                if self.is_transposed:
                    matrix = builder.emit(relax.op.permute_dims(matrix))
                product = builder.emit(relax.op.matmul(x, matrix))
                parts = builder.emit(relax.op.split(product, points, 1))
                value = builder.emit(relax.TupleGetItem(parts, 0))
                for index in range(1, len(points) + 1):
                    part = builder.emit(relax.TupleGetItem(parts, index))
                    value = builder.emit(relax.op.multiply(value, part))
                result = builder.emit_output(relax.op.matmul(value, out))
            builder.emit_func_output(result)
        return builder.get()

    def dense(self, x, arrays):
        """The product, by NumPy."""
        matrix = self.reference(**arrays)
        return x @ (matrix.T if self.is_transposed else matrix)


def unpacked(words, axis, order=range(WORD)):
    """The numbers of words along an axis."""
    words = np.moveaxis(words, axis, -1).astype("int64") & 0xFFFFFFFF
    numbers = np.stack([(words >> (4 * place)) & 15 for place in order], -1)
    return np.moveaxis(numbers.reshape(*words.shape[:-1], -1), -1, axis).astype("float32")


def _mlc(w, s):
    def value(i, j):
        return (number(w, (i, j // WORD), j % WORD) - 7) * s(i, j // GROUP)

    return te.compute((OUT, IN), value, "dequantize")


def _int8(w, s):
    return te.compute((OUT, IN), lambda i, j: w(i, j).astype("float32") * s(i, j // GROUP), "int8")


def _awq(w, z, s):
    def value(k, n):
        place = n % WORD // 2 + n % 2 * 4
        zero = number(z, (k // GROUP, n // WORD), place)
        return (number(w, (k, n // WORD), place) - zero) * s(k // GROUP, n)

    return te.compute((IN, OUT), value, "awq")


def _gptq(w, z, s, g_idx):
    def value(k, n):
        zero = number(z, (g_idx(k), n // WORD), n % WORD) + 1
        return (number(w, (k // WORD, n), k % WORD) - zero) * s(g_idx(k), n)

    return te.compute((IN, OUT), value, "gptq")


def _by_group(array, axis):
    return np.repeat(array, GROUP, axis)


FORMATS = [
    Format(
        "q4f16_1",
        {"w": ((OUT, IN // WORD), "uint32", "nk"), "s": ((OUT, GROUPS), "float32", "nk")},
        _mlc,
        lambda w, s: (unpacked(w, 1) - 7) * _by_group(s, 1),
        is_transposed=True,
    ),
    Format(
        "int8",
        {"w": ((OUT, IN), "int8", "nk"), "s": ((OUT, GROUPS), "float32", "nk")},
        _int8,
        lambda w, s: w * _by_group(s, 1),
        is_transposed=True,
    ),
    Format(
        "awq",
        {
            "w": ((IN, OUT // WORD), "int32", "kn"),
            "z": ((GROUPS, OUT // WORD), "int32", "kn"),
            "s": ((GROUPS, OUT), "float32", "kn"),
        },
        _awq,
        lambda w, z, s: (
            (unpacked(w, 1, AWQ_ORDER) - _by_group(unpacked(z, 1, AWQ_ORDER), 0)) * _by_group(s, 0)
        ),
    ),
    Format(
        "gptq",
        {
            "w": ((IN // WORD, OUT), "int32", "kn"),
            "z": ((GROUPS, OUT // WORD), "int32", "-n"),
            "s": ((GROUPS, OUT), "float32", "-n"),
            "g_idx": ((IN,), "int32", "k"),
        },
        _gptq,
        lambda w, z, s, g_idx: (unpacked(w, 0) - unpacked(z, 1)[g_idx] - 1) * s[g_idx],
    ),
]
