"""Norms by axes, channels and groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from tvm.relax.op import nn

from ..case import Case, Operand
from .reduction import reduced


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


def scaled_to_one(x: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """Mean of the squares 1 along axes, of float64."""
    x = x.astype("float64")
    return x / np.sqrt(np.square(x).mean(tuple(axes), keepdims=True) + 1e-5)


def normalized(x: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """Mean 0 and variance 1 along axes, of float64."""
    x = x.astype("float64")
    return scaled_to_one(x - x.mean(tuple(axes), keepdims=True), axes)


def positive(axes: Sequence[int], x: np.ndarray) -> list[int]:
    return [axis % x.ndim for axis in axes]


def affine(
    x: np.ndarray, g: np.ndarray, b: np.ndarray, axes: Sequence[int], scale: bool, center: bool
) -> np.ndarray:
    """x * g + b with g and b of some axes, without what is left out."""
    shape = [size if axis in axes else 1 for axis, size in enumerate(x.shape)]
    return x * (g.reshape(shape) if scale else 1) + (b.reshape(shape) if center else 0)


def grouped(x: np.ndarray, groups: int, channel: int, axes: Sequence[int]) -> np.ndarray:
    apart = x.reshape(*x.shape[:channel], groups, -1, *x.shape[channel + 1 :])
    axes = [axis + (axis > channel) for axis in axes]
    return normalized(apart, [channel + 1, *axes]).reshape(x.shape)


LEFT_OUT = ({}, {"scale": False}, {"center": False}, {"scale": False, "center": False})
"""What norms may leave out: the scale, the offset, both."""


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
                numpy=lambda x, g, b, channel=channel, axes=axes: affine(
                    normalized(x, axes), g, b, [channel], True, True
                ),
            )
    for options in LEFT_OUT[1:]:
        flags = {"scale": True, "center": True, **options}
        vector = Operand((8,), "c", values="positive")
        yield Case(
            "relax.nn.instance_norm",
            f"{options} ",
            (Operand((4, 8, 6), "ncw"), vector, vector),
            ("ncw",),
            lambda x, g, b, flags=flags: nn.instance_norm(x, g, b, 1, [2], **flags),
            decomposed="w",
            numpy=lambda x, g, b, flags=flags: affine(normalized(x, [2]), g, b, [1], **flags),
        )
        vector = Operand((8,), "(gc)", values="positive")
        yield Case(
            "relax.nn.group_norm",
            f"{options} ",
            (Operand((4, 8, 6), "n(gc)w"), vector, vector),
            ("n(gc)w",),
            lambda x, g, b, flags=flags: nn.group_norm(x, g, b, 4, 1, [2], **flags),
            sizes={"g": 4, "c": 2},
            decomposed="cw",
            numpy=lambda x, g, b, flags=flags: affine(grouped(x, 4, 1, [2]), g, b, [1], **flags),
        )
        vector = Operand((8,), "b", values="positive")
        yield Case(
            "relax.nn.layer_norm",
            f"{options} ",
            (Operand((4, 8), "ab"), vector, vector),
            ("ab",),
            lambda x, g, b, flags=flags: nn.layer_norm(x, g, b, [-1], **flags),
            decomposed="b",
            numpy=lambda x, g, b, flags=flags: affine(normalized(x, [1]), g, b, [1], **flags),
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
            numpy=lambda x, g, b, n=groups, channel=channel, axes=axes: affine(
                grouped(x, n, channel, axes), g, b, [channel], True, True
            ),
        )


def norms_of_axes() -> Iterator[Case]:
    for shape, axes in (
        ((8, 12), [-1]),
        ((8, 4, 6), [1, 2]),
        ((4, 6, 8), [2]),
        ((2, 4, 3, 8), [-1]),
    ):
        letters = "abcdefgh"[: len(shape)]
        along = "".join(letters[d] for d in sorted(reduced(len(shape), tuple(axes))))
        scale = tuple(shape[letters.index(letter)] for letter in along)
        for dtype, values in (
            ("float32", "normal"),
            ("float32", "wide"),
            ("float16", "normal"),
            ("float16", "wide"),
        ):
            data = Operand(shape, letters, dtype, values)
            weight = Operand(scale, along, dtype)
            yield Case(
                "relax.nn.layer_norm",
                f"axes={axes} {values} ",
                (data, weight, weight),
                (letters,),
                lambda x, g, b, axes=axes: nn.layer_norm(x, g, b, axes),
                decomposed=along,
                numpy=lambda x, g, b, axes=axes: affine(
                    normalized(x, axes), g, b, positive(axes, x), True, True
                ),
            )
            yield Case(
                "relax.nn.rms_norm",
                f"axes={axes} {values} ",
                (data, weight),
                (letters,),
                lambda x, w, axes=axes: nn.rms_norm(x, w, axes),
                decomposed=along,
                numpy=lambda x, w, axes=axes: affine(
                    scaled_to_one(x, axes), w, w, positive(axes, x), True, False
                ),
            )


def cases() -> Iterator[Case]:
    yield from batch_norms()
    yield from other_norms()
    yield from norms_of_axes()
