"""Programs whose tensors are stated one way and needed another: merged dimensions, results that are
smaller than operands, several readers, positions of each row, and windows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm import relax
from tvm.relax import op as R

import distir_ext as dx

from .pieces import CUBE, LINE, OBLONG, SIX, cut, reduced
from .programs import FLOAT, INT, Row
from .uneven import even

GRID = dx.Mesh(x=4, y=2)


def merged(build: Any) -> Any:
    """Returns a function that computes with merged rows, and takes them apart again."""

    def apart(x: Any, *weights: Any) -> Any:
        *rows, width = (int(size) for size in x.ty.shape.values)
        count = 1
        for size in rows:
            count *= size
        y = build(R.reshape(x, [count, width]), *weights)
        columns = width if not weights else int(weights[0].ty.shape.values[-1])
        return R.reshape(y, [*rows, columns])

    return apart


def halves_swapped(rows: Any) -> Any:
    """A rotary embedding's rotation of 1,024 columns."""
    return R.concat([cut(rows, 512, 1024, 1), cut(rows, 0, 512, -1)], 1)


def merged_dimensions() -> Iterator[Row]:
    """Reshapes that merge a major dimension with a sharded minor one."""
    for mesh, shape, dims in (
        (LINE, (8, 128, 1024), (None, "x", None)),
        (LINE, (8, 126, 1024), (None, "x", None)),
        (SIX, (8, 126, 1024), (None, "x", None)),
        (OBLONG, (2, 96, 1024), (None, ("y", "x"), None)),
        (CUBE, (4, 3, 64, 1024), ("z", None, ("x", "y"), None)),
    ):
        x, where = {"x": (shape, FLOAT)}, f"of {shape} on {mesh.shape}"
        weights = {**x, "w": ((1024, 512), FLOAT)}
        yield Row(f"product {where}", merged(R.matmul), weights, mesh, {"x": dims}, 0)
        for what, build in (
            ("relu", R.nn.relu),
            ("softmax", lambda rows: R.nn.softmax(rows, 1)),
            ("cumsum", lambda rows: R.cumsum(rows, 1)),
            ("sort", lambda rows: R.sort(rows, 1)),
            ("halves swapped", halves_swapped),
        ):
            yield Row(f"{what} {where}", merged(build), x, mesh, {"x": dims}, 0)
    # All of the merged rows are needed: columns are exchanged, and back where rows are stated.
    for mesh, shape, dims in (
        (LINE, (64, 1024, 256), (None, "x", None)),
        (LINE, (64, 1022, 256), (None, "x", None)),
        (SIX, (60, 1024, 252), (None, "x", None)),
        (OBLONG, (61, 1024, 252), (None, ("y", "x"), None)),
        (CUBE, (64, 1024, 256), (None, ("x", "y"), "z")),
    ):
        x, where = {"x": (shape, FLOAT)}, f"of {shape} on {mesh.shape}"
        shards = 4 if mesh is CUBE else int(mesh.size)
        local = 4 * shape[0] * even(shape[1], shards) * shape[2] // int(mesh.size)
        once = local * (shards - 1) // shards
        for what, build in (
            ("softmax", lambda rows: R.nn.softmax(rows, 0)),
            ("cumsum", lambda rows: R.cumsum(rows, 0)),
            ("sort", lambda rows: R.sort(rows, 0)),
        ):
            stays = {"x": dims, "return": dims}
            yield Row(f"{what} of all rows {where}", merged(build), x, mesh, {"x": dims}, once)
            yield Row(f"{what} of all rows {where}, back", merged(build), x, mesh, stays, 2 * once)
    for mesh, axes in ((LINE, "x"), (SIX, "x"), (OBLONG, ("y", "x")), (CUBE, ("x", "y", "z"))):
        n = int(mesh.size)
        x, plan = {"x": ((384, 48), FLOAT)}, {"x": (axes, None)}
        right = 384 * 48 * 4 * (n - 1) // n**2
        yield Row(f"sort of rows on {mesh.shape}", lambda x: R.sort(x, 0), x, mesh, plan, right)
    # An exchange, where what is merged is wanted in shards.
    x, plan = {"x": ((8, 128, 256), FLOAT)}, {"x": (None, "x", None), "return": ("x", None)}
    yield Row(
        "merged rows are wanted",
        lambda x: R.nn.relu(R.reshape(x, [1024, 256])),
        x,
        LINE,
        plan,
        8 * 128 * 256 * 4 * 3 // 16,
    )


def smaller_results() -> Iterator[Row]:
    """Results that are smaller than operands, and move in their place."""
    columns = {"a": (None, "x"), "return": ("y",)}
    yield Row("sum", lambda a: R.sum(a, 0), {"a": ((4096, 1024), FLOAT)}, GRID, columns, 1536)
    yield Row(
        "sum in half", lambda a: R.sum(a, 0), {"a": ((4096, 1024), "float16")}, GRID, columns, 768
    )
    for shape, piece, right in (
        ((32, 64, 128), (4, 8), 6144),
        ((1024, 2048, 128), (32, 32), 196608),
    ):
        plan = {"a": (None, None, "x"), "return": (None, None, "y")}
        yield Row(
            f"slice of {shape}",
            lambda a, ends=piece: R.strided_slice(a, [0, 1], [0, 0], ends),
            {"a": (shape, FLOAT)},
            GRID,
            plan,
            right,
        )
    for mesh, m, k, n in ((GRID, 2048, 8192, 2048), (OBLONG, 3072, 8192, 1536)):
        shapes = {"a": ((m, k), FLOAT), "b": ((k, n), FLOAT)}
        block = m * n * 4 // int(mesh.size)
        plan = {"a": ("x", None), "b": (None, "y"), "return": ("y", "x")}
        yield Row(f"product turned on {mesh.shape}", R.matmul, shapes, mesh, plan, block)
        # A half is scattered over y, and a block moves.
        plan = {"a": ("x", "y"), "b": ("y", None), "return": (("y", "x"), None)}
        what = f"product turned and reduced on {mesh.shape}"
        yield Row(what, R.matmul, shapes, mesh, plan, 2 * block)
    shapes = {"a": ((12288,), FLOAT), "b": ((24576,), FLOAT)}
    plan = {"a": ("x",), "b": ("y",), "return": ("y", "x")}
    # A half of `a`, and a quarter of `b` of which a device has a quarter.
    yield Row("outer product", R.outer, shapes, GRID, plan, 24576 + 18432)


def of_one(a: Any) -> Any:
    return relax.Tuple((R.nn.relu(a), R.exp(a)))


def several_readers() -> Iterator[Row]:
    """A value that several readers want the same other way."""
    size = 1024 * 1024 * 4
    a, turned = {"a": ((1024, 1024), FLOAT)}, (None, "x")
    two = {"a": ("x", None), "return.0": turned, "return.1": turned}
    yield Row("two readers", of_one, a, LINE, two, size * 3 // 16)
    six = {"a": ((1026, 1026), FLOAT)}
    yield Row("two readers on six", of_one, six, SIX, two, 1026 * 1026 * 4 * 5 // 36)
    plan = {"a": ("x", "y"), "return.0": ("y", "x"), "return.1": ("y", "x")}
    yield Row("two readers on a grid", of_one, a, GRID, plan, size // 8)
    yield Row(
        "three readers",
        lambda a: relax.Tuple((R.nn.relu(a), R.exp(a), R.sum(a, 1))),
        a,
        LINE,
        {**two, "return.2": ("x",)},
        size * 3 // 16,
    )
    plan = {**two, "b": turned}
    yield Row(
        "two readers of two",
        lambda a, b: relax.Tuple((R.add(a, b), R.multiply(a, b))),
        {**a, "b": a["a"]},
        LINE,
        plan,
        size * 3 // 16,
    )


def positions_of_rows() -> Iterator[Row]:
    """Lookups and writes at a position in each row."""
    n = 48

    def both(p: Any) -> Any:
        return R.stack([R.arange(0, n, 1, INT), p], 1)

    cache, places = {"x": ((n, 64, 64), FLOAT)}, {"p": ((n,), INT)}
    for mesh, axes in ((LINE, "x"), (SIX, "x"), (OBLONG, ("y", "x")), (CUBE, ("x", "y", "z"))):
        plan, where = {"x": (axes, None, None), "p": (axes,)}, f"on {mesh.shape}"
        read = {**cache, **places}
        yield Row(f"lookup {where}", lambda x, p: R.gather_nd(x, both(p)), read, mesh, plan, 0)
        yield Row(
            f"index {where}",
            lambda x, p: R.index_tensor(x, (R.arange(0, n, 1, INT), p)),
            read,
            mesh,
            plan,
            0,
        )
        yield Row(
            f"batched lookup {where}",
            lambda x, p: R.gather_nd(x, R.expand_dims(p, 1), 1),
            read,
            mesh,
            plan,
            0,
        )
        for mode in ("update", "add", "max"):
            written = {**read, "u": ((n, 64), FLOAT)}
            rows = {**plan, "u": (axes, None), "return": (axes, None, None)}
            yield Row(
                f"write, {mode}, {where}",
                lambda x, p, u, m=mode: R.scatter_nd(x, both(p), u, m),
                written,
                mesh,
                rows,
                0,
            )
        written = {"x": ((n, 64), FLOAT), **places, "u": ((n,), FLOAT)}
        rows = {"x": (axes, None), "p": (axes,), "u": (axes,), "return": (axes, None)}
        yield Row(
            f"put {where}",
            lambda x, p, u: R.index_put(x, (R.arange(0, n, 1, INT), p), u),
            written,
            mesh,
            rows,
            0,
        )


def windows() -> Iterator[Row]:
    """Convolutions and pads of what is sharded in space, and sums over three axes."""
    space, row = (None, None, "x", None), 8 * 2 * 16 * 4
    shapes = {"x": ((8, 2, 32, 16), FLOAT), "g": ((8, 2, 32, 16), FLOAT)}
    right = 2 * row + reduced(4, 8 * 8 * 9 * 4)
    yield Row(
        "gradient of a filter",
        lambda x, g: R.nn.conv2d(x, g, padding=1),
        shapes,
        LINE,
        {"x": space, "g": space},
        right,
    )
    for width, right in ((13, 48), (5, 16)):
        plan = {"x": (None, None, "x")}
        yield Row(
            f"windows of {width}",
            lambda x, n=width: R.nn.max_pool1d(x, n, 1, n // 2, layout="NCW"),
            {"x": ((1, 1, 16), FLOAT)},
            LINE,
            plan,
            right,
        )
    rows = {"x": ((4096, 256), FLOAT)}
    yield Row(
        "pad and slice",
        lambda x: cut(R.nn.pad(x, [3, 5, 0, 0]), 2, 4098),
        rows,
        LINE,
        {"x": ("x", None)},
        1024,
    )
    for n in (4, 8, 12, 64, 4100):
        image = {"x": ((1, 2, 4096, 8), FLOAT)}
        yield Row(
            f"resize to {n}",
            lambda x, n=n: R.image.resize2d(x, (n, 8), layout="NCHW"),
            image,
            LINE,
            {"x": space},
            2 * 64,
        )
    plan = {"a": (None, ("x", "y", "z")), "b": (("x", "y", "z"), None)}
    for columns in (32, 71):
        shapes = {"a": ((1, 64), FLOAT), "b": ((64, columns), FLOAT)}
        right = reduced(8, columns * 4)
        yield Row(f"sum of {columns} over three axes", R.matmul, shapes, CUBE, plan, right)


def table() -> Iterator[Row]:
    """All rows."""
    for rows in (
        merged_dimensions,
        smaller_results,
        several_readers,
        positions_of_rows,
        windows,
    ):
        yield from rows()
