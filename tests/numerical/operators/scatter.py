"""Operators that write at positions that another tensor states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from tvm.relax import op as R
from tvm.relax.op.grad import take_backward

from ..case import Case, Operand

# What is written to may be sharded: shards get nothing from each other.
WRITTEN: dict[str, Any] = {
    "decomposed": "tuv",
    "communicates": frozenset(),
    "expensive": True,
}
IN_NUMPY = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def elements() -> Iterator[Case]:
    for data, shape, axis, letters, update_letters, reduction in (
        # The last write of several to one place wins, so each place is written once.
        ((24,), (1,), 0, "t", ".", "update"),
        ((8, 6), (8, 4), 1, "at", "a.", "add"),
        ((8, 12), (8, 1), 1, "at", "a.", "update"),
        # What is shorter elsewhere is aligned with the beginning.
        ((8, 6), (4, 3), 0, "t.", "..", "max"),
        ((4, 5, 8), (4, 2, 8), 1, "atb", "a.b", "mul"),
    ):
        yield Case(
            "relax.scatter_elements",
            f"axis={axis} {reduction} ",
            (
                Operand(data, letters),
                Operand(shape, update_letters, "int64", f"around {data[axis]}"),
                Operand(shape, update_letters),
            ),
            (letters,),
            lambda x, i, u, axis=axis, r=reduction: R.scatter_elements(x, i, u, axis, r),
            **WRITTEN,
        )
    yield Case(
        "relax.scatter_elements",
        "mean ",
        (
            Operand((8, 12), "at"),
            Operand((8, 5), "a.", "int32", "index 12"),
            Operand((8, 5), "a."),
        ),
        ("at",),
        lambda x, i, u: R.scatter_elements(x, i, u, 1, "mean"),
        **WRITTEN,
    )
    yield Case(
        "relax.scatter_elements",
        "of bool ",
        (
            Operand((8, 12), "at", "bool"),
            Operand((8, 1), "a.", "int64", "index 12"),
            Operand((8, 1), "a.", "bool"),
        ),
        ("at",),
        lambda x, i, u: R.scatter_elements(x, i, u, 1, "update"),
        **WRITTEN,
    )
    # Of much that is accumulated the shards are reduced.
    for reduction, data, letters, update_letters, axis in (
        ("add", (6,), "t", "i", 0),
        ("max", (4, 8), "at", "ai", 1),
        ("min", (6,), "t", "i", 0),
        ("mul", (8, 4), "ta", "ia", 0),
    ):
        function = IN_NUMPY[reduction]
        shape = tuple(24 if d == axis else n for d, n in enumerate(data))

        def expected(x, i, u, axis=axis, function=function):
            places = np.indices(i.shape)
            places[axis] = i
            result = x.copy()
            function.at(result, tuple(places), u)
            return result

        yield Case(
            "relax.scatter_elements",
            f"much axis={axis} {reduction} ",
            (
                Operand(data, letters, values="positive"),
                Operand(shape, update_letters, "int64", f"around {data[axis]}"),
                Operand(shape, update_letters, values="positive"),
            ),
            (letters,),
            lambda x, i, u, axis=axis, r=reduction: R.scatter_elements(x, i, u, axis, r),
            combined="i",
            numpy=expected,
            **WRITTEN,
        )


def tuples() -> Iterator[Case]:
    for data, indices, updates, data_letters, update_letters, reduction in (
        ((6, 8), (1, 1), (1, 8), "ta", ".a", "update"),
        ((6, 8), (4, 2), (4,), "tu", ".", "add"),
        ((6, 8, 4), (3, 2), (3, 4), "tua", ".a", "min"),
        ((6, 4, 8), (2, 3, 1), (2, 3, 4, 8), "tab", "..ab", "max"),
    ):
        yield Case(
            "relax.scatter_nd",
            f"{reduction} ",
            (
                Operand(data, data_letters),
                Operand(indices, "." * len(indices), "int64", "index 6"),
                Operand(updates, update_letters),
            ),
            (data_letters,),
            lambda x, i, u, r=reduction: R.scatter_nd(x, i, u, r),
            **WRITTEN,
        )
    for data, indices, updates, letters, reduction in (
        ((6,), (4, 6, 1), (4, 6), ("t", "ij.", "ij"), "add"),
        ((4, 2, 3), (24, 2), (24, 3), ("tua", "i.", "ia"), "mul"),
    ):
        yield Case(
            "relax.scatter_nd",
            f"much {reduction} ",
            (
                Operand(data, letters[0], values="positive"),
                Operand(indices, letters[1], "int64", "index 2"),
                Operand(updates, letters[2], values="positive"),
            ),
            (letters[0],),
            lambda x, i, u, r=reduction: R.scatter_nd(x, i, u, r),
            combined="ij",
            **WRITTEN,
        )
    for data, indices, values, accumulates in (
        ((24,), [(1,)], (1,), False),
        ((6, 8), [(1,), (3,)], (3,), True),
        ((4, 6, 8), [(2, 1), (3,), (1, 3)], (2, 3), True),
        ((4, 6), [(2, 1), (3,)], (6,), True),
    ):
        yield Case(
            "relax.index_put",
            f"accumulate={accumulates} ",
            (
                Operand(data, "tuv"[: len(data)]),
                *(
                    Operand(shape, "." * len(shape), "int64", f"around {size}")
                    for shape, size in zip(indices, data, strict=True)
                ),
                Operand(values, "." * len(values)),
            ),
            ("tuv"[: len(data)],),
            lambda x, *rest, a=accumulates: R.index_put(x, rest[:-1], rest[-1], a),
            **WRITTEN,
        )
    yield Case(
        "relax.index_put",
        "much ",
        (
            Operand((4, 3), "tu"),
            Operand((4, 1), "i.", "int64", "around 4"),
            Operand((6,), "j", "int32", "around 3"),
            Operand((4, 6), "ij"),
        ),
        ("tu",),
        lambda x, i, j, v: R.index_put(x, (i, j), v, accumulate=True),
        combined="ij",
        **WRITTEN,
    )


def gradients() -> Iterator[Case]:
    for table, letters, indices, gradient, axis in (
        ((6, 8), "ta", (12,), "ia", 0),
        ((8, 6), "at", (4,), "ai", 1),
        ((4, 5, 8), "atb", (6,), "aib", 1),
    ):
        shape = tuple(indices[0] if d == axis else n for d, n in enumerate(table))
        yield Case(
            "relax.grad.take_backward",
            f"axis={axis} ",
            (
                Operand(shape, gradient),
                Operand(table, letters),
                Operand(indices, "i", "int32", f"index {table[axis]}"),
            ),
            (letters,),
            lambda dy, x, i, axis=axis: take_backward(dy, x, i, axis),
            combined="i",
            **WRITTEN,
        )


def cases() -> Iterator[Case]:
    yield from elements()
    yield from tuples()
    yield from gradients()
