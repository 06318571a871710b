"""Operators that move, split, merge, add or drop dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from tvm.relax import op as R
from tvm.relax.op import nn

from ..case import Case, Operand, parse_letters

# Source letters and target letters; sizes of the factors.
RESHAPES = [
    ("ab", "(ab)", {"a": 8, "b": 12}),
    ("(ab)", "ab", {"a": 4, "b": 6}),
    ("(ab)", "ab", {"a": 2, "b": 12}),
    ("(ab)c", "a(bc)", {"a": 2, "b": 4, "c": 6}),
    ("a(bc)", "(ab)c", {"a": 4, "b": 2, "c": 6}),
    ("abc", "(abc)", {"a": 2, "b": 3, "c": 8}),
    ("(abc)", "abc", {"a": 2, "b": 2, "c": 4}),
    ("abcd", "(ab)(cd)", {"a": 2, "b": 4, "c": 3, "d": 2}),
    ("(ab)(cd)", "abcd", {"a": 4, "b": 3, "c": 2, "d": 4}),
    ("ab", "ab", {"a": 8, "b": 6}),
    ("a(bc)d", "abcd", {"a": 3, "b": 2, "c": 4, "d": 2}),
]

HALVES = {"b": 2, "x": 3, "z": 2}

# Shapes of which only some blocks are blocks of the other side: 6 and 4 share their halves.
CUT_ACROSS = [
    ((6, 4), "(bx)y", (4, 6), "(bz)w", HALVES),
    ((8, 6, 4), "a(bx)y", (8, 4, 6), "a(bz)w", HALVES),
    ((6, 4, 8), "(bx)ya", (4, 6, 8), "(bz)wa", HALVES),
    ((8, 3, 5), "axy", (8, 5, 3), "azw", {"z": 5, "w": 3}),
    ((8, 1, 6), "a.b", (8, 6), "ab", {}),
    ((8, 6), "ab", (1, 8, 1, 6), ".a.b", {}),
    ((1, 1), "..", (1,), ".", {}),
]


def reshapes() -> Iterator[Case]:
    for source, target, sizes in RESHAPES:
        shapes = [
            tuple(math.prod(sizes[name] for name in names) for names in parse_letters(letters))
            for letters in (source, target)
        ]
        yield Case(
            "relax.reshape",
            f"{source} to {target} ",
            (Operand(shapes[0], source),),
            (target,),
            lambda x, to=shapes[1]: R.reshape(x, to),
            sizes=sizes,
            exact=True,
            numpy=lambda x, to=shapes[1]: x.reshape(to),
        )
    for shape, letters, to, result, sizes in CUT_ACROSS:
        yield Case(
            "relax.reshape",
            f"{shape} to {to} ",
            (Operand(shape, letters),),
            (result,),
            lambda x, to=to: R.reshape(x, to),
            sizes={"y": 4, "w": 6, **sizes},
            exact=True,
            numpy=lambda x, to=to: x.reshape(to),
        )
    yield Case(
        "relax.reshape",
        "with -1 ",
        (Operand((8, 6), "ab", "int32"),),
        ("a(bc)",),
        lambda x: R.reshape(x, (8, -1)),
        sizes={"c": 1},
        exact=True,
    )


def moves() -> Iterator[Case]:
    for shape, axes in (
        ((8, 12), None),
        ((8, 12), [1, 0]),
        ((4, 5, 6), [2, 0, 1]),
        ((4, 1, 6), [-1, 0, 1]),
        ((2, 3, 4, 6), None),
        ((2, 3, 4, 6), [0, 2, 1, 3]),
        ((24,), None),
    ):
        rank = len(shape)
        letters = "abcdefgh"[:rank]
        order = [a % rank for a in axes] if axes else list(range(rank))[::-1]
        yield Case(
            "relax.permute_dims",
            f"axes={axes} ",
            (Operand(shape, letters),),
            ("".join(letters[d] for d in order),),
            lambda x, axes=axes: R.permute_dims(x, axes),
            exact=True,
            numpy=lambda x, order=order: np.transpose(x, order),
        )
    for shape, axis, result in (
        ((24,), 0, ".a"),
        ((24,), -1, "a."),
        ((8, 12), 1, "a.b"),
        ((8, 12), [0, -1], ".ab."),
        ((4, 6, 2), [2], "ab.c"),
        ((8,), [0, 1, 3], "..a."),
    ):
        yield Case(
            "relax.expand_dims",
            f"axis={axis} ",
            (Operand(shape, "abcdefgh"[: len(shape)]),),
            (result,),
            lambda x, axis=axis: R.expand_dims(x, axis),
            exact=True,
            numpy=lambda x, axis=axis: np.expand_dims(
                x, tuple(axis) if isinstance(axis, list) else axis
            ),
        )
    for shape, axis, letters, result in (
        ((24, 1), None, "a.", "a"),
        # With two shards of the first dimension a worker's shape is (1, 1, 6).
        ((2, 1, 6), None, "a.b", "ab"),
        ((1, 4, 1, 6), None, ".a.b", "ab"),
        ((8, 1, 6), 1, "a.b", "ab"),
        ((8, 1, 1), [-1], "a..", "a."),
        ((1, 8, 1), [0, 2], ".a.", "a"),
        ((8, 6), None, "ab", "ab"),
    ):
        yield Case(
            "relax.squeeze",
            f"axis={axis} ",
            (Operand(shape, letters),),
            (result,),
            lambda x, axis=axis: R.squeeze(x, axis),
            exact=True,
            numpy=lambda x, axis=axis: np.squeeze(
                x, tuple(axis) if isinstance(axis, list) else axis
            ),
        )
    for shape, repeats, axis, letters, result, sizes in (
        ((24,), 2, 0, "a", "(az)", {"z": 2}),
        ((8, 6), 3, 1, "ab", "a(bz)", {"z": 3}),
        ((8, 6), 2, -2, "ab", "(az)b", {"z": 2}),
        ((4, 6), 2, None, "ab", "(abz)", {"z": 2}),
        ((2, 3, 8), 2, 1, "abc", "a(bz)c", {"z": 2}),
    ):
        yield Case(
            "relax.repeat",
            f"{repeats} axis={axis} ",
            (Operand(shape, letters),),
            (result,),
            lambda x, n=repeats, axis=axis: R.repeat(x, n, axis),
            sizes=sizes,
            exact=True,
            numpy=lambda x, n=repeats, axis=axis: np.repeat(x, n, axis),
        )


def shapes() -> Iterator[Case]:
    for shape in ((24,), (8, 12), (2, 3, 4)):
        # The shape meant is the global one, on every worker.
        yield Case(
            "relax.shape_of",
            "",
            (Operand(shape, "." * len(shape)),),
            (".",),
            lambda x: R.shape_to_tensor(R.shape_of(x)),
            exact=True,
            numpy=lambda x: np.array(x.shape, "int64"),
        )


def flattened() -> Iterator[Case]:
    for shape, letters, result in (
        ((4, 6), "ab", "(ab)"),
        ((2, 4, 3), "abc", "(abc)"),
        ((24,), "a", "a"),
        ((1, 8, 6), ".ab", "(ab)"),
    ):
        sizes = {name: size for name, size in zip(letters, shape, strict=True) if name != "."}
        yield Case(
            "relax.flatten",
            "",
            (Operand(shape, letters),),
            (result,),
            R.flatten,
            sizes=sizes,
            exact=True,
            numpy=np.ravel,
        )
        if len(shape) > 1:
            yield Case(
                "relax.nn.batch_flatten",
                "",
                (Operand(shape, letters),),
                (letters[0] + (f"({letters[1:]})" if len(shape) > 2 else letters[1:]),),
                nn.batch_flatten,
                sizes=sizes,
                exact=True,
                numpy=lambda x: x.reshape(len(x), -1),
            )


def joined() -> Iterator[Case]:
    for shape, axis, letters, result in (
        ((24,), 0, "a", ".a"),
        ((8, 6), 1, "ab", "a.b"),
        ((8, 6), -1, "ab", "ab."),
        ((2, 3, 4), 2, "abc", "ab.c"),
    ):
        for count in (1, 3):
            yield Case(
                "relax.stack",
                f"axis={axis} ",
                tuple(Operand(shape, letters, "int32") for _ in range(count)),
                (result,),
                lambda *xs, axis=axis: R.stack(list(xs), axis),
                exact=True,
                numpy=lambda *xs, axis=axis: np.stack(xs, axis),
            )
    for sizes in ((8, 6), (4, 5, 6)):
        letters = "abc"[: len(sizes)]
        yield Case(
            "relax.meshgrid",
            "",
            tuple(Operand((n,), name) for n, name in zip(sizes, letters, strict=True)),
            (letters,) * len(sizes),
            lambda *xs: R.meshgrid(list(xs), "ij"),
            exact=True,
            numpy=lambda *xs: np.meshgrid(*xs, indexing="ij"),
        )
    for shape, repeats, letters, result in (
        ((24,), (2,), "p", "p"),
        ((8, 6), (1, 3), "ap", "ap"),
        ((8, 6), (2, 1), "pa", "pa"),
        ((8, 6), (2, 3, 2), "pq", ".pq"),
        ((8, 6), (2, 1, 1), "ab", ".ab"),
        ((4, 1, 6), (2,), "a.p", "a.p"),
        ((4, 2, 6), (1, 1, 1), "abc", "abc"),
    ):
        yield Case(
            "relax.tile",
            f"{repeats} ",
            (Operand(shape, letters),),
            (result,),
            lambda x, repeats=repeats: R.tile(x, repeats),
            decomposed="pq",
            moves=True,
            communicates=frozenset({"segment_exchange"}),
            exact=True,
            numpy=lambda x, repeats=repeats: np.tile(x, repeats),
        )


def summed() -> Iterator[Case]:
    for shape, target, letters, result in (
        ((8, 6), (6,), "ab", "b"),
        ((8, 6), (1, 6), "ab", ".b"),
        ((8, 6), (8, 1), "ab", "a."),
        ((4, 2, 6), (2, 1), "abc", "b."),
        ((4, 2, 6), (4, 2, 6), "abc", "abc"),
        ((8, 6), (), "ab", ""),
    ):
        gone = "".join(name for name in letters if name not in result)
        drawn = "positive" if target == () else "normal"
        if target:
            yield Case(
                "relax.collapse_sum_like",
                f"{target} ",
                (Operand(shape, letters, values=drawn), Operand(target, result)),
                (result,),
                R.collapse_sum_like,
                combined=gone,
            )
        yield Case(
            "relax.collapse_sum_to",
            f"{target} ",
            (Operand(shape, letters, values=drawn),),
            (result,),
            lambda x, target=target: R.collapse_sum_to(x, target),
            combined=gone,
        )


def layouts() -> Iterator[Case]:
    for shape, index_map, letters, result in (
        ((4, 8, 6), lambda a, b, c: (b, c, a), "abc", "bca"),
        ((4, 8, 6), lambda a, b, c: (a, b // 4, c, b % 4), "a.c", "a.c."),
        ((8, 6), lambda a, b: (a * 6 + b,), "..", "."),
        ((8, 6), lambda a, b: (a, b), "ab", "ab"),
    ):
        yield Case(
            "relax.layout_transform",
            f"{result} ",
            (Operand(shape, letters),),
            (result,),
            lambda x, index_map=index_map: R.layout_transform(x, index_map),
            exact=True,
        )


def cases() -> Iterator[Case]:
    yield from reshapes()
    yield from shapes()
    yield from moves()
    yield from flattened()
    yield from joined()
    yield from summed()
    yield from layouts()
