"""Operators that need one whole dimension and keep the others: scans, sorts, flips."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tvm.relax import op as R

from ..case import Case, Operand

ALONG = [((24,), 0), ((8, 12), 1), ((8, 12), -2), ((4, 5, 8), 1), ((2, 3, 4, 6), -1)]


def whole_along(shape: tuple[int, ...], axis: int) -> str:
    letters = list("abcdefgh"[: len(shape)])
    letters[axis] = "."
    return "".join(letters)


def cases() -> Iterator[Case]:
    for shape, axis in ALONG:
        letters = whole_along(shape, axis)
        named = "abcdefgh"[: len(shape)]
        scanned = {"decomposed": named[axis], "communicates": frozenset({"all_gather"})}
        for name, numpy in (("cumsum", np.cumsum), ("cumprod", np.cumprod)):
            for dtype in ("float32", "int32"):
                yield Case(
                    f"relax.{name}",
                    f"axis={axis} ",
                    (Operand(shape, named, dtype, "positive"),),
                    (named,),
                    lambda x, name=name, axis=axis, dtype=dtype: getattr(R, name)(x, axis, dtype),
                    exact=dtype == "int32",
                    numpy=lambda x, numpy=numpy, axis=axis: numpy(x, axis, dtype=x.dtype),
                    **scanned,
                )
            yield Case(
                f"relax.{name}",
                f"axis={axis} exclusive ",
                (Operand(shape, named, values="positive"),),
                (named,),
                lambda x, name=name, axis=axis: getattr(R, name)(x, axis, exclusive=True),
                **scanned,
            )
        distinct = Operand(shape, letters, values="distinct")
        for descending in (False, True):
            label = f"axis={axis} descending={descending} "
            sign = -1 if descending else 1
            yield Case(
                "relax.sort",
                label,
                (distinct,),
                (letters,),
                lambda x, axis=axis, down=descending: R.sort(x, axis, down),
                exact=True,
                numpy=lambda x, axis=axis, sign=sign: sign * np.sort(sign * x, axis),
            )
            yield Case(
                "relax.argsort",
                label,
                (distinct,),
                (letters,),
                lambda x, axis=axis, down=descending: R.argsort(x, axis, down),
                exact=True,
                numpy=lambda x, axis=axis, sign=sign: np.argsort(sign * x, axis).astype("int32"),
            )
            for kind, k, values in (
                ("both", 2, "distinct"),
                ("values", 2, "distinct"),
                ("indices", 3, "distinct"),
                ("both", 4, "few"),
            ):
                yield Case(
                    "relax.topk",
                    f"{label}{kind} k={k} ",
                    (Operand(shape, named, values=values),),
                    (letters,) * (2 if kind == "both" else 1),
                    lambda x, axis=axis, kind=kind, k=k, largest=descending: R.topk(
                        x, k, axis, kind, largest
                    ),
                    decomposed=named[axis],
                    communicates=frozenset({"all_gather"}),
                    exact=True,
                )
        yield Case(
            "relax.flip",
            f"axis={axis} ",
            (Operand(shape, named),),
            (named,),
            lambda x, axis=axis: R.flip(x, axis),
            exact=True,
            numpy=lambda x, axis=axis: np.flip(x, axis),
            decomposed=named[axis],
            communicates=frozenset({"segment_exchange"}),
        )
    for name in ("cumsum", "cumprod"):
        yield Case(
            f"relax.{name}",
            "flattened ",
            (Operand((4, 6), "..", values="positive"),),
            (".",),
            lambda x, name=name: getattr(R, name)(x),
            numpy=lambda x, name=name: getattr(np, name)(x),
        )
