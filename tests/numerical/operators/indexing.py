"""Operators that cut, join or look up along a dimension."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tvm import relax
from tvm.relax import op as R
from tvm.relax.op import nn

from ..case import Case, Operand, moved_along

# Modes of padding, and NumPy's names of them.
PADDING = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def joins() -> Iterator[Case]:
    for shapes, axis, letters in (
        ([(24,), (6,)], 0, "."),
        ([(8, 4), (8, 6)], 1, "a."),
        ([(8, 4), (8, 6), (8, 2)], -1, "a."),
        ([(4, 6), (8, 6)], -2, ".a"),
        ([(4, 3, 8), (4, 5, 8)], 1, "a.b"),
        ([(4, 1, 2, 6), (4, 2, 2, 6)], 1, "a.bc"),
        ([(8, 6)], 0, ".a"),
        ([(8, 4), (8, 12), (8, 8)], 1, "a."),
    ):
        joined = np.concatenate([np.empty(shape) for shape in shapes], axis)
        letters, moved = moved_along(letters, [*shapes, joined.shape])
        for dtype in ("float32", "int32"):
            yield Case(
                "relax.concat",
                f"axis={axis} ",
                tuple(Operand(shape, letters, dtype) for shape in shapes),
                (letters,),
                lambda *xs, axis=axis: R.concat(list(xs), axis),
                exact=True,
                numpy=lambda *xs, axis=axis: np.concatenate(xs, axis),
                stays=len(shapes) > 1,
                **moved,
            )


def cuts() -> Iterator[Case]:
    for shape, where, axis, letters in (
        ((24,), 3, 0, "."),
        ((8, 12), 2, 1, "a."),
        ((8, 12), [3, 7], -1, "a."),
        ((12, 6), [4], 0, ".a"),
        ((4, 6, 8), 4, 2, "ab."),
        ((4, 6, 8), [2], 1, "a.b"),
        ((2, 8, 3, 4), 2, -3, "a.bc"),
        ((8, 24), [4, 16], 1, "a."),
    ):
        parts = np.split(np.empty(shape), where, axis)
        letters, moved = moved_along(letters, [shape, *(part.shape for part in parts)])
        yield Case(
            "relax.split",
            f"{where} axis={axis} ",
            (Operand(shape, letters),),
            (letters,) * len(parts),
            lambda x, where=where, axis=axis: R.split(x, where, axis),
            exact=True,
            numpy=lambda x, where=where, axis=axis: np.split(x, where, axis),
            stays=True,
            **moved,
        )
    for shape, letters, axes, begin, end, strides in (
        ((24,), ".", [0], [2], [20], None),
        ((8, 12), "a.", [1], [3], [9], [2]),
        ((8, 12), ".a", [0], [0], [4], None),
        ((4, 6, 8), ".a.", [0, 2], [1, 0], [4, 8], [1, 3]),
        ((4, 6, 8), "a.b", [-2], [1], [5], None),
        ((2, 3, 4, 6), "abc.", [3], [0], [3], [1]),
        # Takes all of a dimension.
        ((8, 12), "ab", [0], [0], [8], None),
        ((8, 12), "a.", [1, 0], [2, 0], [8, 2**62], [1, 1]),
        ((8, 16), "a.", [1], [-1], [-17], [-2]),
        ((4, 24, 16), "a..", [1, 2], [5, -1], [17, -17], [3, -1]),
    ):
        chosen = tuple(
            slice(*triple) for triple in zip(begin, end, strides or [1] * len(axes), strict=True)
        )

        def cut(x, axes=axes, chosen=chosen):
            index = [slice(None)] * x.ndim
            for axis, part in zip(axes, chosen, strict=True):
                index[axis] = part
            return x[tuple(index)]

        letters, moved = moved_along(letters, [shape, cut(np.empty(shape)).shape])
        yield Case(
            "relax.strided_slice",
            f"{axes} {begin} {end} {strides} ",
            (Operand(shape, letters),),
            (letters,),
            lambda x, a=axes, b=begin, e=end, s=strides: R.strided_slice(x, a, b, e, s),
            exact=True,
            numpy=cut,
            **moved,
        )
    for shape, widths, letters in (
        ((24,), [1, 2], "."),
        ((8, 6), [0, 0, 2, 1], "a."),
        ((8, 6, 4), [0, 0, 0, 3, 0, 0], "a.b"),
        ((8, 6), [0, 0, 0, 0], "ab"),
        ((8, 12), [0, 0, 2, 2], "a."),
        ((8, 12), [3, 5, 5, 7], ".."),
    ):
        pairs = list(zip(widths[::2], widths[1::2], strict=True))
        letters, moved = moved_along(letters, [shape, np.pad(np.empty(shape), pairs).shape])
        for mode, in_numpy in PADDING.items():
            yield Case(
                "relax.nn.pad",
                f"{widths} {mode} ",
                (Operand(shape, letters),),
                (letters,),
                lambda x, widths=widths, mode=mode: nn.pad(x, widths, mode),
                exact=True,
                numpy=lambda x, pairs=pairs, mode=in_numpy: np.pad(x, pairs, mode),
                **moved,
            )
    # Where the slice ends before its dimension, TVM's kernel reads behind the source and may crash.
    for shape, axis, begin, end, step, letters, source_letters in (
        ((24,), 0, 3, 24, 1, "t", "."),
        ((8, 12), 1, 3, 12, 2, "at", "a."),
        ((8, 4, 6), 0, 4, 8, 1, "tab", ".ab"),
        ((8, 12), 1, 0, 12, 1, "at", "a."),
    ):
        source = list(shape)
        source[axis] = len(range(begin, end, step))
        yield Case(
            "relax.slice_scatter",
            f"{begin}:{end}:{step} axis={axis} ",
            (Operand(shape, letters), Operand(tuple(source), source_letters)),
            (letters,),
            lambda x, y, b=begin, e=end, s=step, axis=axis: R.slice_scatter(x, y, b, e, s, axis),
            decomposed="t",
            communicates=frozenset(),
            expensive=True,
            exact=True,
        )
    for name in ("tril", "triu"):
        for shape, diagonal, letters in (
            ((8, 12), 0, "rc"),
            ((4, 6, 6), 1, "arc"),
            ((2, 4, 3, 8), -2, "abrc"),
        ):
            yield Case(
                f"relax.{name}",
                f"k={diagonal} ",
                (Operand(shape, letters),),
                (letters,),
                lambda x, name=name, k=diagonal: getattr(R, name)(x, k),
                decomposed="rc",
                communicates=frozenset(),
                exact=True,
                numpy=lambda x, name=name, k=diagonal: getattr(np, name)(x, k),
            )


def lookups() -> Iterator[Case]:
    # A table of which more is looked up than it has is gathered; else results are summed.
    for data, data_letters, indices, index_letters, axis, result, kind in (
        ((24,), "t", (8,), "i", 0, "i", "all_reduce"),
        ((24,), "t", (8,), "i", None, "i", "all_reduce"),
        ((12, 8), "ta", (12,), "i", 0, "ia", "all_reduce"),
        ((6, 16), "at", (12,), "i", 1, "ai", "all_reduce"),
        ((6, 24), "at", (4, 6), "ij", -1, "aij", "all_reduce"),
        ((4, 6, 8), "atb", (6,), "i", 1, "aib", "all_reduce"),
        ((4, 8), "ta", (2, 3, 4), "ijk", 0, "ijka", "all_gather"),
        ((4, 8), "at", (72,), "i", 1, "ai", "all_gather"),
        ((8, 6), "ta", (), "", 0, "a", "all_reduce"),
    ):
        bound = int(np.prod(data)) if axis is None else data[axis]
        yield Case(
            "relax.take",
            f"axis={axis} ",
            (
                Operand(data, data_letters),
                Operand(indices, index_letters, "int32", f"index {bound}"),
            ),
            (result,),
            lambda x, i, axis=axis: R.take(x, i, axis),
            decomposed="t",
            communicates=frozenset({kind}),
            exact=True,
            numpy=lambda x, i, axis=axis: np.take(x, i, axis),
        )
    for dtype, values in (("float16", "special"), ("bfloat16", "wide"), ("int8", "normal")):
        yield Case(
            "relax.take",
            f"{values} ",
            (Operand((12, 4), "ta", dtype, values), Operand((8,), "i", "int64", "index 12")),
            ("ia",),
            lambda x, i: R.take(x, i, 0),
            decomposed="t",
            exact=True,
        )
    yield Case(
        "relax.take",
        "of bool ",
        (Operand((12, 4), ".a", "bool"), Operand((8,), "i", "int64", "index 12")),
        ("ia",),
        lambda x, i: R.take(x, i, 0),
        exact=True,
    )
    yield Case(
        "relax.take",
        "nan ",
        (Operand((6, 8), "ta"), Operand((4,), "i", "int64", "around 12")),
        ("ia",),
        lambda x, i: R.take(x, i, 0, "nan"),
        decomposed="t",
        exact=True,
    )
    yield Case(
        "relax.take",
        "wrap ",
        (Operand((6, 8), "ta"), Operand((4,), "i", "int64", "around 12")),
        ("ia",),
        lambda x, i: R.take(x, i, 0, "wrap"),
        decomposed="t",
        exact=True,
        numpy=lambda x, i: np.take(x, i, 0, mode="wrap"),
    )
    yield Case(
        "relax.take",
        "clip ",
        (Operand((6, 8), "ta"), Operand((4,), "i", "int64", "around 12")),
        ("ia",),
        lambda x, i: R.take(x, i, 0, "clip"),
        decomposed="t",
        exact=True,
        numpy=lambda x, i: np.take(x, i, 0, mode="clip"),
    )
    for shape, axis, depth, result in (
        ((24,), -1, 5, "az"),
        ((24,), 0, 4, "za"),
        ((8, 6), 1, 6, "azb"),
        ((4, 3, 2), -1, 8, "abcz"),
    ):
        letters = "abcdefgh"[: len(shape)]
        yield Case(
            "relax.one_hot",
            f"depth={depth} axis={axis} ",
            (Operand(shape, letters, "int32", f"index {depth}"),),
            (result,),
            lambda x, depth=depth, axis=axis: R.one_hot(
                x, relax.prim_value(1), relax.prim_value(0), depth, axis
            ),
            decomposed="z",
            communicates=frozenset(),
            sizes={"z": depth},
            exact=True,
            numpy=lambda x, depth=depth, axis=axis: np.moveaxis(
                np.eye(depth, dtype="int64")[x], -1, axis
            ),
        )


def cases() -> Iterator[Case]:
    yield from joins()
    yield from cuts()
    yield from lookups()
