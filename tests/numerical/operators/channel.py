"""Normalisation by channel, quantisation, prelu."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tvm import relax
from tvm.relax import op as R
from tvm.relax.op import nn

from ..case import Case, Operand


def batch_norms() -> Iterator[Case]:
    for shape, axis, letters, training in (
        ((4, 8, 3, 5), 1, "nchw", False),
        ((4, 3, 5, 8), 3, "nhwc", False),
        ((6, 8), -1, "nc", False),
        ((4, 8, 3, 5), 1, "nchw", True),
        ((6, 4, 8), 2, "nwc", True),
    ):
        channels = shape[axis]
        vectors = tuple(Operand((channels,), "c", values="positive") for _ in range(4))
        yield Case(
            "relax.nn.batch_norm",
            f"axis={axis} training={training} ",
            (Operand(shape, letters), *vectors),
            (letters, "c", "c"),
            lambda x, g, b, m, v, axis=axis, training=training: nn.batch_norm(
                x, g, b, m, v, axis, training=training
            ),
            decomposed=letters.replace("c", "") if training else "",
        )


def other_norms() -> Iterator[Case]:
    for shape, channel, axes, letters in (
        ((4, 8, 3, 5), 1, [2, 3], "nchw"),
        ((4, 8, 6), 1, [2], "ncw"),
    ):
        for dtype in ("float32", "float16"):
            vector = Operand((shape[channel],), "c", dtype, "positive")
            yield Case(
                "relax.nn.instance_norm",
                f"axes={axes} ",
                (Operand(shape, letters, dtype), vector, vector),
                (letters,),
                lambda x, g, b, channel=channel, axes=axes: nn.instance_norm(
                    x, g, b, channel, axes
                ),
                decomposed=letters[2:],
            )
    for shape, groups, channel, axes, letters in (
        ((2, 8, 3, 5), 4, 1, [2, 3], "n(gc)hw"),
        ((4, 6, 5), 2, 1, [2], "n(gc)w"),
        ((4, 8, 5), 8, 1, [2], "n(gc)w"),
        ((4, 8, 6), 1, 1, [2], "n(gc)w"),
        ((2, 3, 5, 8), 4, 3, [1, 2], "nhw(gc)"),
    ):
        channels = shape[channel]
        vector = Operand((channels,), "(gc)", values="positive")
        yield Case(
            "relax.nn.group_norm",
            f"groups={groups} axes={axes} ",
            (Operand(shape, letters), vector, vector),
            (letters,),
            lambda x, g, b, n=groups, channel=channel, axes=axes: nn.group_norm(
                x, g, b, n, channel, axes
            ),
            sizes={"g": groups, "c": channels // groups},
            decomposed="chw",
        )


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
    yield from batch_norms()
    yield from other_norms()
    yield from quantization()
    yield from prelu()
