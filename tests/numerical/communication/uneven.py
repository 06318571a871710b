"""Operators along and beside dimensions that shards do not divide, and moves of such tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm.relax import op as R

from .pieces import CUBE, LINE, OBLONG, SIX, cut, reduced
from .programs import FLOAT, INT, Row

VOCABULARY, ROWS = {"x": (None, "x")}, {"x": ("x", None)}
STAYS, TURNED = {**ROWS, "return": ("x", None)}, {**ROWS, "return": (None, "x")}


def loss(x: Any, labels: Any) -> Any:
    return R.nn.nll_loss(R.nn.log_softmax(x, 1), labels)


def losses(x: Any, labels: Any) -> Any:
    return R.nn.nll_loss(x, labels, reduction="none")


def along(mesh: dx.Mesh, n: int) -> Iterator[Row]:
    """Operators along an extent of some 32,000."""
    devices = int(mesh.size)
    logits, table = {"x": ((2, n), FLOAT)}, {"x": ((n, 64), FLOAT)}
    where = f"of {n} on {devices}"

    def row(what: str, build: Any, shapes: Any, plan: Any, right: int) -> Row:
        return Row(f"{what} {where}", build, shapes, mesh, plan, right)

    # An extreme and its place for either row; of top elements, five of each device.
    extremes = reduced(devices, 2 * 4) + reduced(devices, 2 * 8)
    yield row("argmax", lambda x: R.argmax(x, 1), logits, VOCABULARY, extremes)
    yield row("argmin", lambda x: R.argmin(x, 1), logits, VOCABULARY, extremes)
    top = (devices - 1) * 2 * 5 * (4 + 8)
    yield row("topk", lambda x: R.topk(x, 5, 1, "both", True, INT), logits, VOCABULARY, top)
    # Maximum, sum and the labels' own logits of two rows, and a sum of both.
    labelled = {**logits, "t": ((2,), INT)}
    yield row("loss over classes", loss, labelled, VOCABULARY, reduced(devices, 20))
    of_rows = {**table, "t": ((n,), INT)}
    plan = {**ROWS, "t": ("x",)}
    yield row("loss over rows", R.nn.nll_loss, of_rows, plan, reduced(devices, 8))
    # A count of each element.
    bounds = {"i": ((64,), FLOAT), "x": ((n,), FLOAT)}
    yield row("bucketize", R.bucketize, bounds, {"x": ("x",)}, reduced(devices, 64 * 8))
    # Maxima, sums and weighted values of two queries of four heads.
    heads = {"q": ((1, 2, 4, 8), FLOAT), "k": ((1, n, 4, 8), FLOAT), "v": ((1, n, 4, 8), FLOAT)}
    keys = dict.fromkeys("kv", (None, "x", None, None))
    scores = 4 * 2 * 4
    right = reduced(devices, scores) + reduced(devices, scores * (1 + 8))
    yield row("attention", R.nn.attention, heads, keys, right)
    biased = {**heads, "b": ((1, 4, 2, n), FLOAT)}
    plan = {**keys, "b": (None, None, None, "x")}
    yield row("biased attention", R.nn.attention, biased, plan, right)
    places, values = ((6, 64), INT), ((6, 64), FLOAT)
    looked_up = {**table, "i": ((7,), INT)}
    for mode in ("fast", "clip", "wrap", "nan"):
        yield row(
            f"take {mode}",
            lambda x, i, mode=mode: R.take(x, i, 0, mode),
            looked_up,
            ROWS,
            reduced(devices, 7 * 256),
        )
    written = {**table, "i": ((6, 1), INT), "u": values}
    yield row("scatter_nd", R.scatter_nd, written, STAYS, 0)
    for mode in ("update", "add"):
        yield row(
            f"scatter_elements {mode}",
            lambda x, i, u, m=mode: R.scatter_elements(x, i, u, 0, m),
            {**table, "i": places, "u": values},
            STAYS,
            0,
        )
    yield row(
        "slice_scatter",
        lambda x, u: R.slice_scatter(x, u, 5, 6, 1, 0),
        {**table, "u": ((1, 64), FLOAT)},
        STAYS,
        0,
    )


def shifted_losses() -> Iterator[Row]:
    """A language model's loss: logits of all but the last token, labels of all but the first."""

    def of_tokens(x: Any, t: Any) -> Any:
        return loss(cut(x, 0, 63), cut(t, 1, 64))

    def of_sequences(x: Any, t: Any) -> Any:
        logits, labels = cut(x, 0, 63, 1), cut(t, 1, 64, 1)
        return loss(R.reshape(logits, [4 * 63, 1000]), R.reshape(labels, [4 * 63]))

    tokens = {"x": ((64, 1000), FLOAT), "t": ((64,), INT)}
    # A label crosses to each shard.
    plan = {"x": ("x", None), "t": ("x",)}
    yield Row("shifted loss", of_tokens, tokens, LINE, plan, 8 + reduced(4, 8))
    sequences = {"x": ((4, 64, 1000), FLOAT), "t": ((4, 64), INT)}
    plan = {"x": ("x", None, None), "t": ("x", None)}
    yield Row("shifted loss by batch", of_sequences, sequences, LINE, plan, reduced(4, 8))
    plan = {"x": (None, "x", None), "t": (None, "x")}
    yield Row("shifted loss by sequence", of_sequences, sequences, LINE, plan, 32 + reduced(4, 8))
    # Maximum and sum of each of 252 rows, and the sum of the labels' own logits.
    right = reduced(4, 2 * 252 * 4) + 6
    plan = {"x": (None, None, "x")}
    yield Row("shifted loss by vocabulary", of_sequences, sequences, LINE, plan, right)


def beside() -> Iterator[Row]:
    """Operators along an even dimension while another one is uneven."""
    for n in (4096, 4097, 4099):
        x = {"x": ((n, 64), FLOAT)}
        for what, build in (
            ("sort", lambda x: R.sort(x, 1)),
            ("argsort", lambda x: R.argsort(x, 1)),
            ("topk", lambda x: R.topk(x, 5, 1)),
            ("median", lambda x: R.median(x, 1)),
            ("cumsum", lambda x: R.cumsum(x, 1)),
        ):
            yield Row(f"{what} of rows of {n}", build, x, LINE, ROWS, 0)
        labelled = {**x, "t": ((n,), INT)}
        yield Row(f"loss of each row of {n}", losses, labelled, LINE, ROWS, 0)
        images, plan = {"x": ((n, 2, 4, 4), FLOAT)}, {"x": ("x", None, None, None)}
        yield Row(
            f"resize of {n} images",
            lambda x: R.image.resize2d(x, (8, 8), layout="NCHW"),
            images,
            LINE,
            plan,
            0,
        )


def even(n: int, shards: int) -> int:
    """An extent with its padding."""
    return -(-n // shards) * shards


def channels() -> Iterator[Row]:
    """Convolutions whose input channels are in shards: partial sums."""
    for mesh, axes in ((LINE, "x"), (OBLONG, ("y", "x"))):
        for n in (12, 13):
            shapes = {"x": ((2, n, 16), FLOAT), "w": ((4, n, 3), FLOAT)}
            plan = {"x": (None, axes, None), "w": (None, axes, None)}
            right = reduced(int(mesh.size), 2 * 4 * 14 * 4)
            yield Row(f"{n} channels on {mesh.shape}", R.nn.conv1d, shapes, mesh, plan, right)


def moves() -> Iterator[Row]:
    """Redistributions from uneven shards are those of even ones, of what is padded."""
    for mesh, axes, rows, columns in (
        (LINE, "x", 4096, 1024),
        (LINE, "x", 4099, 1024),
        (LINE, "x", 4096, 1023),
        (LINE, "x", 4097, 1021),
        (SIX, "x", 4099, 1023),
        (OBLONG, ("y", "x"), 4099, 1023),
        (CUBE, ("x", "y", "z"), 4099, 1023),
    ):
        n = int(mesh.size)
        size = even(rows, n) * even(columns, n) * 4
        where = f"of {rows} x {columns} on {mesh.shape}"
        x = {"x": ((rows, columns), FLOAT)}
        plan = {"x": (axes, None), "return": (None, axes)}
        yield Row(
            f"rows to columns {where}",
            lambda x: R.multiply(x, x),
            x,
            mesh,
            plan,
            size * (n - 1) // n**2,
        )
    for rows in (1024, 1023, 1021):
        shapes = {"x": ((rows, 512), FLOAT), "y": ((512, 256), FLOAT)}
        plan = {"x": (None, "x"), "y": ("x", None), "return": ("x", None)}
        right = 1024 * 256 * 4 * 3 // 4
        yield Row(f"partial sum to {rows} rows", R.matmul, shapes, LINE, plan, right)
    for n in (65536, 65537):
        right = 2 * even(n, 4) * 1024 * 4 * 3 // 16
        yield Row(
            f"sort of {n} rows",
            lambda x: R.sort(x, 0),
            {"x": ((n, 1024), FLOAT)},
            LINE,
            STAYS,
            right,
        )
    for rows, columns in ((1024, 4096), (1024, 4099), (1023, 4096), (1021, 4099)):
        right = 2 * even(rows, 4) * even(columns, 4) * 4 * 3 // 16
        x, plan = {"x": ((rows, columns), FLOAT)}, {"x": (None, "x"), "return": (None, "x")}
        what = f"sort of {columns} columns of {rows}"
        yield Row(what, lambda x: R.sort(x, 1), x, LINE, plan, right)


def table() -> Iterator[Row]:
    """All rows."""
    for mesh, n in ((LINE, 32000), (LINE, 32001), (LINE, 32002), (SIX, 32002)):
        yield from along(mesh, n)
    yield from shifted_losses()
    yield from beside()
    yield from channels()
    yield from moves()
