"""Quantisation, prelu."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tvm import relax
from tvm.relax import op as R
from tvm.relax.op import nn

from ..case import Case, Operand


def dequantized(x: np.ndarray, scale: np.ndarray, zero: np.ndarray, axis: int) -> np.ndarray:
    shape = [1] * x.ndim
    if scale.ndim:
        shape[axis] = -1
    return (x.astype("float64") - zero.reshape(shape)) * scale.reshape(shape)


def quantization() -> Iterator[Case]:
    for shape, axis, letters, vector in (
        ((8, 12), 1, "ab", "b"),
        ((8, 12), 0, "ab", "a"),
        ((4, 8, 3), -2, "abc", "b"),
        ((8, 12), -1, "ab", ""),
    ):
        length = (shape[axis],) if vector else ()
        for target in ("int8", "uint8"):
            zero = Operand(length, vector, target, "shift")
            yield Case(
                "relax.quantize",
                f"axis={axis} ",
                (Operand(shape, letters), Operand(length, vector, values="positive"), zero),
                (letters,),
                lambda x, s, z, axis=axis, target=target: R.quantize(x, s, z, axis, target),
                exact=True,
            )
            yield Case(
                "relax.dequantize",
                f"axis={axis} ",
                (Operand(shape, letters, target), Operand(length, vector, values="positive"), zero),
                (letters,),
                lambda x, s, z, axis=axis: R.dequantize(x, s, z, axis, "float32"),
                numpy=lambda x, s, z, axis=axis: dequantized(x, s, z, axis),
            )
    yield Case(
        "relax.quantize",
        "constants ",
        (Operand((8, 12), "ab"),),
        ("ab",),
        lambda x: R.quantize(x, relax.const(0.25, "float32"), relax.const(3, "int8"), -1, "int8"),
        exact=True,
        numpy=lambda x: np.clip(np.round(x / np.float32(0.25)) + 3, -128, 127).astype("int8"),
    )


def prelu() -> Iterator[Case]:
    for shape, axis, letters, vector in (
        ((4, 8, 3), 1, "abc", "b"),
        ((8, 12), -1, "ab", "b"),
        ((12, 6), 0, "ab", "a"),
    ):
        yield Case(
            "relax.nn.prelu",
            f"axis={axis} ",
            (Operand(shape, letters), Operand((shape[axis],), vector)),
            (letters,),
            lambda x, a, axis=axis: nn.prelu(x, a, axis),
        )


def cases() -> Iterator[Case]:
    yield from quantization()
    yield from prelu()
