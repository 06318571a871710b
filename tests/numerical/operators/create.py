"""Operators that make tensors from sizes: only their results are placed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ..case import Case, Operand


def create(
    name: str, shape: tuple[int, ...], apply: Any, numpy: Any, label: str = "", exact: bool = True
) -> Case:
    letters = "abc"[: len(shape)]
    return Case(
        f"relax.{name}",
        f"{label}{shape}",
        (),
        (letters,),
        apply,
        sizes=dict(zip(letters, shape, strict=True)),
        exact=exact,
        numpy=numpy,
    )


def cases() -> Iterator[Case]:
    for shape in ((24,), (8, 12), (2, 3, 8), (5, 4)):
        yield create(
            "full",
            shape,
            lambda shape=shape: R.full(shape, relax.const(1.5, "float32")),
            lambda shape=shape: np.full(shape, 1.5, "float32"),
        )
        for name in ("ones", "zeros"):
            for dtype in ("float32", "int32"):
                yield create(
                    name,
                    shape,
                    lambda shape=shape, name=name, dtype=dtype: getattr(R, name)(shape, dtype),
                    lambda shape=shape, name=name, dtype=dtype: getattr(np, name)(shape, dtype),
                    f"{dtype} ",
                )
    for start, stop, step in ((0, 24, 1), (3, 27, 2)):
        size = len(range(start, stop, step))
        for dtype in ("int64", "float32"):
            yield create(
                "arange",
                (size,),
                lambda s=start, e=stop, t=step, dtype=dtype: R.arange(s, e, t, dtype),
                lambda s=start, e=stop, t=step, dtype=dtype: np.arange(s, e, t, dtype),
                f"{start}:{stop}:{step} {dtype} ",
            )
    yield create(
        "arange",
        (12,),
        lambda: R.arange(-1.5, 4.5, 0.5, "float32"),
        lambda: np.arange(-1.5, 4.5, 0.5, "float32"),
        "-1.5:4.5:0.5 ",
    )
    for rows, columns, diagonal in ((8, 8, 0), (6, 12, 2), (12, 4, -1)):
        yield create(
            "eye",
            (rows, columns),
            lambda n=rows, m=columns, k=diagonal: R.eye(n, m, k, "float32"),
            lambda n=rows, m=columns, k=diagonal: np.eye(n, m, k, "float32"),
            f"k={diagonal} ",
        )
        yield Case(
            "relax.eye_like",
            f"k={diagonal} ",
            (Operand((rows, columns), "ab"),),
            ("ab",),
            lambda x, k=diagonal: R.eye_like(x, k),  # TVM computes no other type than that of x
            decomposed="ab",
            communicates=frozenset(),
            exact=True,
            numpy=lambda x, k=diagonal: np.eye(*x.shape, k),
        )
    for size in (8, 24):
        for is_periodic in (False, True):
            yield create(
                "hamming_window",
                (size,),
                lambda n=size, p=is_periodic: R.hamming_window(n, p, 0.54, 0.46, "float32"),
                lambda n=size, p=is_periodic: np.hamming(n + p)[:n].astype("float32"),
                f"periodic={is_periodic} ",
                exact=False,
            )
