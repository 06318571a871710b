"""Reductions over dimensions, softmax and norms."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from tvm.relax import op as R
from tvm.relax.op import nn

from ..case import Case, Operand

Axis = int | tuple[int, ...] | None

# Shape, axes, keepdims.
REDUCTIONS: list[tuple[tuple[int, ...], Axis, bool]] = [
    ((24,), None, False),
    ((24,), 0, True),
    ((8, 12), None, True),
    ((8, 12), 1, False),
    ((8, 12), -2, True),
    ((8, 12), (0, 1), False),
    ((5, 8), 0, False),
    ((12, 1, 6), (-1, 0), False),
    ((4, 6, 8), (0, 2), True),
    ((4, 6, 8), 1, False),
    ((2, 3, 4, 8), (-1, 1), False),
    ((2, 4, 2, 6), (2,), True),
]


def reduced(rank: int, axis: Axis) -> set[int]:
    if axis is None:
        return set(range(rank))
    axes = (axis,) if isinstance(axis, int) else axis
    return {a % rank for a in axes}


def reduction_case(
    name: str,
    shape: tuple[int, ...],
    axis: Axis,
    keepdims: bool,
    dtype: str = "float32",
    values: str = "normal",
    combines: bool = True,
    is_decomposed: bool = False,
    exact: bool = False,
    numpy: Any = None,
) -> Case:
    gone = reduced(len(shape), axis)
    letters = "abcdefgh"[: len(shape)]
    result = "".join(
        "." if d in gone else letters[d] for d in range(len(shape)) if keepdims or d not in gone
    )
    listed = list(axis) if isinstance(axis, tuple) else axis
    return Case(
        f"relax.{name}",
        f"axis={axis} keepdims={keepdims} ",
        (Operand(shape, letters, dtype, values),),
        (result,),
        lambda x: getattr(R, name)(x, axis=listed, keepdims=keepdims),
        combined="".join(letters[d] for d in gone) if combines and not is_decomposed else "",
        decomposed="".join(letters[d] for d in gone) if is_decomposed else "",
        exact=exact,
        numpy=(lambda x: numpy(x, axis=axis, keepdims=keepdims)) if numpy else None,
    )


def statistics() -> Iterator[Case]:
    for shape, axis, keepdims in REDUCTIONS:
        for name in ("max", "min", "mean", "prod", "sum", "std", "variance"):
            # Sums of mixed signs cancel, which makes their relative error mean little.
            values = "positive" if name in ("prod", "sum", "mean") else "normal"
            numpy = getattr(np, {"variance": "var"}.get(name, name))
            yield reduction_case(
                name,
                shape,
                axis,
                keepdims,
                values=values,
                is_decomposed=name in ("std", "variance"),
                exact=name in ("max", "min"),
                numpy=numpy,
            )
    for shape, axis, keepdims in REDUCTIONS[3:10:3]:
        for name in ("max", "min", "prod", "sum"):
            for dtype in ("int32", "int64"):
                yield reduction_case(name, shape, axis, keepdims, dtype, exact=True)
            yield reduction_case(name, shape, axis, keepdims, "float64", "positive")
        for name in ("max", "min", "mean", "sum"):
            for dtype in ("float16", "bfloat16"):
                yield reduction_case(name, shape, axis, keepdims, dtype, "positive")
        # An integer mean truncates, so means of shards do not combine to it. TVM computes that of
        # int32 in int64, against the type it infers.
        yield reduction_case("mean", shape, axis, keepdims, "int64", is_decomposed=True, exact=True)
        for name in ("std", "variance"):
            yield reduction_case(name, shape, axis, keepdims, "float16", is_decomposed=True)
    for shape, axis, keepdims in REDUCTIONS:
        if isinstance(axis, tuple):
            continue
        one = axis if axis is not None else 0 if len(shape) == 1 else None
        for name in ("argmax", "argmin"):
            for dtype, values in (
                ("float32", "distinct"),
                ("int32", "few"),
                ("float32", "masked"),
                ("float16", "few"),
            ):
                case = reduction_case(
                    name,
                    shape,
                    axis,
                    keepdims,
                    dtype,
                    values,
                    combines=False,
                    exact=True,
                    numpy=None if values == "masked" else getattr(np, name),
                )
                decomposed = "" if one is None else case.operands[0].letters[one]
                yield dataclasses.replace(case, decomposed=decomposed)


def medians() -> Iterator[Case]:
    for shape, axis, keepdims in REDUCTIONS:
        # Of all elements, TVM's result has another rank than its type says.
        if isinstance(axis, tuple) or (axis is None and keepdims and len(shape) > 1):
            continue
        case = reduction_case(
            "median", shape, axis, keepdims, values="distinct", combines=False, exact=True
        )
        if axis is None:
            yield case
        else:  # the positions, too
            yield dataclasses.replace(case, results=case.results * 2)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    shifted = np.exp(x - x.max(axis=axis, keepdims=True))
    return shifted / shifted.sum(axis=axis, keepdims=True)


def normalizations() -> Iterator[Case]:
    for shape, axis in (
        ((24,), -1),
        ((8, 12), 1),
        ((8, 12), 0),
        ((4, 5, 8), -2),
        ((2, 3, 8, 4), 3),
    ):
        letters = "abcdefgh"[: len(shape)]
        for op, numpy in (
            (nn.softmax, softmax),
            (nn.log_softmax, lambda x, axis: np.log(softmax(x, axis))),
        ):
            for dtype, values in (
                ("float32", "normal"),
                ("float32", "wide"),
                ("float32", "masked"),
                ("float16", "wide"),
            ):
                yield Case(
                    f"relax.nn.{op.__name__}",
                    f"axis={axis} {values} ",
                    (Operand(shape, letters, dtype, values),),
                    (letters,),
                    lambda x, op=op, axis=axis: op(x, axis),
                    decomposed=letters[axis],
                    numpy=(lambda x, numpy=numpy, axis=axis: numpy(x, axis))
                    if values == "normal"
                    else None,
                )


def cases() -> Iterator[Case]:
    yield from statistics()
    yield from medians()
    yield from normalizations()
