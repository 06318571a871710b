"""Operators that read at positions that another tensor states."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tvm.relax import op as R

from ..case import Case, Operand


def by_element() -> Iterator[Case]:
    for data, indices, axis, data_letters, index_letters in (
        ((24,), (8,), 0, "t", "i"),
        ((8, 6), (8, 4), 1, "at", "ai"),
        ((8, 6), (12, 6), 0, "tb", "ib"),
        ((8, 6), (4, 6), -1, ".t", ".i"),
        ((4, 5, 8), (4, 2, 8), 1, "atc", "aic"),
    ):
        bound = data[axis]
        yield Case(
            "relax.gather_elements",
            f"axis={axis} ",
            (
                Operand(data, data_letters),
                Operand(indices, index_letters, "int64", f"index {bound}"),
            ),
            (index_letters,),
            lambda x, i, axis=axis: R.gather_elements(x, i, axis),
            decomposed="t",
            exact=True,
            numpy=(lambda x, i, axis=axis: np.take_along_axis(x, i, axis))
            if data_letters != ".t"
            else None,
        )


def by_tuple() -> Iterator[Case]:
    for data, indices, batch, data_letters, index_letters, result in (
        ((6, 8), (4, 1), 0, "ta", "i.", "ia"),
        ((6, 8), (4, 2), 0, "tu", "i.", "i"),
        ((6, 4, 8), (2, 6, 2), 0, "tua", "ij.", "ija"),
        ((4, 6, 8), (4, 3, 1), 1, "bta", "bi.", "bia"),
        ((4, 2, 6, 8), (4, 2, 1), 2, "bcta", "bc.", "bca"),
        ((4, 2, 6, 8), (4, 2, 2), 2, "bctu", "bc.", "bc"),
    ):
        yield Case(
            "relax.gather_nd",
            f"batch={batch} ",
            (
                Operand(data, data_letters),
                Operand(indices, index_letters, "int64", f"index {min(data[batch:])}"),
            ),
            (result,),
            lambda x, i, batch=batch: R.gather_nd(x, i, batch),
            decomposed="tu",
            expensive=True,
            exact=True,
        )
    for data, data_letters, indices, index_letters, result in (
        ((6, 8), "ta", [(4,)], ["i"], "ia"),
        ((6, 8), "tu", [(4,), (4,)], ["i", "i"], "i"),
        ((6, 5, 8), "tua", [(4, 1), (2,)], ["i.", "j"], "ija"),
        ((6, 4, 8), "tab", [(2, 4)], ["ij"], "ijab"),
    ):
        yield Case(
            "relax.index_tensor",
            f"{indices} ",
            (
                Operand(data, data_letters),
                *(
                    Operand(shape, letters, "int64", f"index {size}")
                    for shape, letters, size in zip(indices, index_letters, data, strict=False)
                ),
            ),
            (result,),
            lambda x, *i: R.index_tensor(x, list(i)),
            decomposed="tu",
            expensive=True,
            exact=True,
            numpy=lambda x, *i: x[i],
        )


def others() -> Iterator[Case]:
    for shape, sequence, batch, letters in (
        ((8, 6), 1, 0, "b."),
        ((6, 8, 4), 0, 1, ".ba"),
        ((4, 2, 6), 2, 0, "ba."),
    ):
        length = Operand((shape[batch],), "b", "int32", f"index {shape[sequence] + 1}")
        yield Case(
            "relax.reverse_sequence",
            f"{sequence} {batch} ",
            (Operand(shape, letters), length),
            (letters,),
            lambda x, n, s=sequence, b=batch: R.reverse_sequence(x, n, s, b),
            exact=True,
        )
    for shape in ((24,), (8, 5), (2, 3, 4)):
        for right in (False, True):
            letters = "abc"[: len(shape)]
            yield Case(
                "relax.bucketize",
                f"right={right} ",
                (Operand(shape, letters), Operand((4,), "z", values="ascending")),
                (letters,),
                lambda x, b, right=right: R.bucketize(x, b, right=right),
                combined="z",
                exact=True,
                numpy=lambda x, b, right=right: np.digitize(x, b, right=not right),
            )
    for rows, samples in ((4, 8), (6, 12)):
        yield Case(
            "relax.multinomial_from_uniform",
            "",
            (
                Operand((rows, 5), "..", values="distribution"),
                Operand((samples, 1), "n.", values="fraction"),
                Operand((samples, 1), "n.", "int64", f"index {rows}"),
            ),
            ("n.",),
            lambda p, u, i: R.multinomial_from_uniform(p, u, i),
            exact=True,
            numpy=lambda p, u, i: (
                (np.cumsum(p, 1)[i[:, 0]] < u).sum(1, keepdims=True).astype("int64")
            ),
        )


def cases() -> Iterator[Case]:
    yield from by_element()
    yield from by_tuple()
    yield from others()
