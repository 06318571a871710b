"""Short pieces of sharded dimensions: slices, joins, splits and pads of a few rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tvm import relax, tirx
from tvm.relax import op as R

import distir_ext as dx

from .programs import FLOAT, Row

LINE, SIX = dx.Mesh(x=4), dx.Mesh(x=6)
SQUARE, OBLONG, CUBE = dx.Mesh(x=2, y=2), dx.Mesh(x=3, y=2), dx.Mesh(x=2, y=2, z=2)
ITEM = {"float32": 4, "float16": 2, "int8": 1}
TO_THE_END = 2**31 - 1


def cut(x: Any, begin: Any, end: Any, axis: int = 0) -> Any:
    return R.strided_slice(x, [axis], [begin], [end])


def last_row(x: Any) -> Any:
    return cut(x, -1, TO_THE_END)


def rolled(x: Any, by: int, rows: int) -> Any:
    by %= rows
    return R.concat([cut(x, rows - by, rows), cut(x, 0, rows - by)], 0)


def shifted(x: Any, rows: int) -> Any:
    _, *others = x.ty.shape.values
    return R.concat([R.zeros(relax.ShapeExpr([1, *others]), x.ty.dtype), cut(x, 0, rows - 1)], 0)


def of_blocks(x: Any, blocks: int) -> Any:
    """Attention of each block of tokens to itself and to the block before it."""
    _, length, width = x.ty.shape.values
    before = R.concat([R.zeros(relax.ShapeExpr([1, length, width]), FLOAT), cut(x, 0, blocks - 1)])
    keys = R.concat([before, x], 1)
    shares = R.nn.softmax(R.matmul(x, R.permute_dims(keys, [0, 2, 1])), -1)
    return R.matmul(shares, keys)


def reduced(devices: int, size: float) -> int:
    """Bytes that a device sends for a reduction of a tensor of this size."""
    return math.ceil(2 * (devices - 1) * size / devices)


def of_a_matrix() -> Iterator[Row]:
    """Rows of a matrix, on meshes of several forms and of several dtypes."""
    for mesh, axes, n, width, dtype in (
        (LINE, "x", 4096, 256, "float32"),
        (LINE, "x", 65536, 4096, "float32"),
        (SIX, "x", 4098, 256, "float16"),
        (SQUARE, ("y", "x"), 4096, 256, "int8"),
        (OBLONG, ("x", "y"), 4098, 64, "float32"),
        (CUBE, ("x", "z", "y"), 4096, 64, "float32"),
    ):
        devices, row = int(mesh.size), width * ITEM[dtype]
        x = {"x": ((n, width), dtype)}
        read, stays = {"x": (axes, None)}, {"x": (axes, None), "return": (axes, None)}
        where = f"of {n} {dtype} on {mesh.shape}"
        piece = reduced(devices, row)
        yield Row(f"first row {where}", lambda x: cut(x, 0, 1), x, mesh, read, piece)
        yield Row(f"last row {where}", last_row, x, mesh, read, piece)
        yield Row(
            f"last row as a vector {where}",
            lambda x: R.squeeze(last_row(x), [0]),
            x,
            mesh,
            read,
            piece,
        )
        yield Row(
            f"part of a row {where}",
            lambda x, n=n: R.strided_slice(x, [0, 1], [n - 1, 0], [n, 8]),
            x,
            mesh,
            read,
            reduced(devices, 8 * ITEM[dtype]),
        )
        for by in (1, -1, devices, -3):
            yield Row(
                f"roll by {by} {where}",
                lambda x, by=by, n=n: rolled(x, by, n),
                x,
                mesh,
                stays,
                abs(by) * row,
            )
        yield Row(f"token shift {where}", lambda x, n=n: shifted(x, n), x, mesh, stays, row)
        yield Row(
            f"token shift by a pad {where}",
            lambda x, n=n: R.nn.pad(cut(x, 0, n - 1), [1, 0, 0, 0]),
            x,
            mesh,
            stays,
            row,
        )
        token = {"c": ((1, width), dtype), "x": ((n - 1, width), dtype)}
        yield Row(f"class token {where}", lambda c, x: R.concat([c, x], 0), token, mesh, stays, row)


def others() -> Iterator[Row]:
    """Rows of one mesh and size."""
    x, rows = {"x": ((4096, 256), FLOAT)}, {"x": ("x", None)}
    for count in (2, 3):
        yield Row(
            f"last {count} rows",
            lambda x, n=count: cut(x, 4096 - n, 4096),
            x,
            LINE,
            rows,
            count * 1536,
        )
    # One row to each device.
    yield Row("last four rows", lambda x: cut(x, 4092, 4096), x, LINE, rows, 3072)
    yield Row("first of a split", lambda x: R.split(x, [1], 0)[0], x, LINE, rows, 1536 + 1024)
    for axis in (0, 1):
        square = {"x": ((64, 64), FLOAT)}
        plan = {"x": ("x", None) if axis == 0 else (None, "x")}
        yield Row(
            f"x[0] along {axis}",
            lambda x, a=axis: R.squeeze(cut(x, 0, 1, a), [a]),
            square,
            LINE,
            plan,
            384,
        )
    # Of shards of three rows, the padding of the last one is summed, too.
    few = {"x": ((64, 256), FLOAT)}
    on_four = {"x": (("x", "y"), None)}
    yield Row("x[:3]", lambda x: cut(x, 0, 3), few, SQUARE, on_four, 4608, sent=6144)
    # The result is longer: its third shard lacks rows that the last device has.
    for mode, width, right in (
        ("reflect", 1, 2048),
        ("replicate", 1, 2048),
        ("circular", 1, 3072),
        ("reflect", 3, 3072),
    ):
        yield Row(
            f"pad by {width}, {mode}",
            lambda x, m=mode, n=width: R.nn.pad(x, [n, n, 0, 0], m),
            x,
            LINE,
            rows,
            right,
        )
    for blocks in (4, 8, 32):
        tokens = {"x": ((blocks, 16, 32), FLOAT)}
        plan = {"x": ("x", None, None), "return": ("x", None, None)}
        yield Row(
            f"attention to the block before, of {blocks}",
            lambda x, n=blocks: of_blocks(x, n),
            tokens,
            LINE,
            plan,
            2048,
        )


def of_unknown_extent() -> Iterator[Row]:
    """Tokens of a sequence whose length is not known."""
    n = tirx.Var("n", "int64")
    tokens, plan = {"x": ((2, n, 2**16), FLOAT)}, {"x": (None, "x", None)}
    token = reduced(4, 2 * 2**16 * 4)
    for what, build, count in (
        ("last token", lambda x: cut(x, n - 1, n, 1), 1),
        ("last token, from the end", lambda x: cut(x, -1, TO_THE_END, 1), 1),
        ("last two tokens", lambda x: cut(x, -2, TO_THE_END, 1), 2),
        ("last two tokens, symbolic", lambda x: cut(x, n - 2, n, 1), 2),
        ("first four tokens", lambda x: cut(x, 0, 4, 1), 4),
        ("third and second last token", lambda x: cut(x, -3, -1, 1), 2),
    ):
        yield Row(what, build, tokens, LINE, plan, count * token)


def table() -> Iterator[Row]:
    """All rows."""
    yield from of_a_matrix()
    yield from others()
    yield from of_unknown_extent()
