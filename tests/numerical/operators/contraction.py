"""Matrix products of all ranks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tvm.relax import op as R

from ..case import Case, Operand

# Left shape and letters, right shape and letters, result's letters; k is contracted.
PRODUCTS = [
    ((8, 12), "ik", (12, 6), "kj", "ij"),
    ((8, 5), "ik", (5, 24), "kj", "ij"),
    ((1, 8), "ik", (8, 12), "kj", "ij"),
    ((12,), "k", (12, 8), "kj", "j"),
    ((8, 12), "ik", (12,), "k", "i"),
    ((24,), "k", (24,), "k", ""),
    ((4, 6, 8), "bik", (4, 8, 12), "bkj", "bij"),
    ((4, 6, 8), "bik", (8, 12), "kj", "bij"),
    ((6, 8), "ik", (4, 8, 12), "bkj", "bij"),
    ((1, 6, 8), ".ik", (4, 8, 3), "bkj", "bij"),
    ((2, 4, 3, 8), "abik", (2, 4, 8, 6), "abkj", "abij"),
    ((2, 1, 6, 8), "a.ik", (4, 8, 2), "bkj", "abij"),
    ((4, 12), "ik", (2, 3, 12, 2), "abkj", "abij"),
    ((8,), "k", (4, 8, 6), "bkj", "bj"),
    ((4, 6, 8), "bik", (8,), "k", "bi"),
]


def products() -> Iterator[Case]:
    for left, left_letters, right, right_letters, result in PRODUCTS:
        sizes = dict(zip(left_letters + right_letters, left + right, strict=True))
        for dtype, out_dtype in (
            ("float32", None),
            ("float64", None),
            ("int32", None),
            ("float16", "float32"),
            ("bfloat16", "float32"),
        ):
            if dtype != "float32" and left not in ((8, 12), (4, 6, 8)):
                continue
            # One sum of mixed signs can cancel, which makes its relative error mean little.
            values = "normal" if result else "positive"
            yield Case(
                "relax.matmul",
                f"{left_letters},{right_letters}->{result} out={out_dtype} ",
                (
                    Operand(left, left_letters, dtype, values),
                    Operand(right, right_letters, dtype, values),
                ),
                (result,),
                lambda x, y, out=out_dtype: R.matmul(x, y, out),
                combined="k",
                sizes={name: size for name, size in sizes.items() if name != "."},
                exact=dtype == "int32",
                numpy=np.matmul if dtype in ("float32", "int32") else None,
            )


# Subscripts, shapes, letters of operands and result where they differ from the subscripts.
EINSUMS = [
    ("ik,kj->ij", [(8, 12), (12, 6)], None, None),
    ("bik,bjk->bij", [(4, 6, 8), (4, 3, 8)], None, None),
    ("ij->ji", [(8, 6)], None, None),
    ("ij->i", [(8, 6)], None, None),
    ("ij,ij->", [(8, 6), (8, 6)], None, None),
    ("i,j->ij", [(8,), (6,)], None, None),
    ("bhsd,bhtd->bhst", [(2, 4, 3, 8), (2, 4, 5, 8)], None, None),
    ("ik, kj", [(8, 4), (4, 6)], ["ik", "kj"], "ij"),
    ("ba", [(8, 6)], ["ba"], "ab"),
    ("ii->i", [(8, 8)], [".."], "."),
    ("ii,ij->j", [(8, 8), (8, 6)], ["..", ".j"], "j"),
    ("a...,a...->...", [(4, 6, 8), (4, 6, 8)], ["axy", "axy"], "xy"),
    ("...ik,kj->...ij", [(2, 4, 6, 8), (8, 3)], ["xyik", "kj"], "xyij"),
    ("...k,...k->...", [(4, 6, 8), (6, 8)], ["xyk", "yk"], "xy"),
    ("bij,bjk->bik", [(1, 6, 8), (4, 8, 3)], [".ij", "bjk"], "bik"),
    ("ab,bc,cd->ad", [(4, 6), (6, 2), (2, 8)], None, None),
]


def einsums() -> Iterator[Case]:
    for subscripts, shapes, letters, result in EINSUMS:
        inputs, _, output = subscripts.replace(" ", "").partition("->")
        letters = inputs.split(",") if letters is None else letters
        result = output if result is None else result
        combined = "".join(sorted({c for c in "".join(letters) if c not in result and c != "."}))
        for dtype in ("float32", "int32"):
            yield Case(
                "relax.einsum",
                f"{subscripts} ",
                tuple(
                    # A sum of mixed signs can cancel, see above.
                    Operand(shape, names, dtype, "normal" if result else "positive")
                    for shape, names in zip(shapes, letters, strict=True)
                ),
                (result,),
                lambda *xs, subscripts=subscripts: R.einsum(list(xs), subscripts),
                combined=combined,
                exact=dtype == "int32",
                numpy=lambda *xs, subscripts=subscripts: np.einsum(subscripts, *xs),
            )


def cases() -> Iterator[Case]:
    yield from products()
    yield from einsums()
    for left, right in ((8, 6), (24, 5)):
        for dtype in ("float32", "int32"):
            yield Case(
                "relax.outer",
                "",
                (Operand((left,), "i", dtype), Operand((right,), "j", dtype)),
                ("ij",),
                R.outer,
                exact=dtype == "int32",
                numpy=np.outer,
            )
