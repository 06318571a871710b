"""Lookups at constant positions that follow each other: rolls, parts, numbers of rows."""

from __future__ import annotations

import numpy as np
from tests.numerical.communication.programs import program
from tests.targets import QUICK
from tvm import relax
from tvm.relax import op as R

import distir_ext as dx

MESHES = (
    (dx.Mesh(x=4), "x"),
    (dx.Mesh(x=3, y=2), ("y", "x")),
    (dx.Mesh(x=2, y=2, z=2), ("z", "x")),
)


def sent(mod, mesh, plan):
    lowered = dx.lower(dx.annotate(mod, mesh, plan))
    return sum(each.bytes_per_device * each.count for each in dx.analysis.collectives(lowered))


def constant(positions, dtype):
    return relax.const(np.asarray(positions, dtype))


def test_lookups_are_slices_where_positions_follow_each_other():
    """Also from the end, once over, of a single one, and where they do not follow each other."""
    n = 37
    x = np.random.default_rng(0).standard_normal((2, n, 3)).astype("float32")
    cases = (
        ("int64", np.roll(np.arange(n), 1)),
        ("int32", np.roll(np.arange(n), -3)),
        ("int64", np.arange(5, 20)),
        ("int64", np.arange(-7, 0)),
        ("int32", [*range(n), *range(n)]),
        ("int64", [n - 1]),
        ("int64", [3, 1, 4, 1, 5, 9, 2, 6]),
        ("int64", np.arange(n)[::-1]),
    )
    builder = relax.BlockBuilder()
    table = relax.Var("x", relax.TensorType(x.shape, "float32"))
    with builder.function("main", [table]):
        with builder.dataflow():
            found = [
                builder.emit_output(R.take(table, constant(positions, dtype), 1, "fast"))
                for dtype, positions in cases
            ]
        builder.emit_func_output(relax.Tuple(found))
    looked_up = builder.finalize()
    for mesh, axes in MESHES:
        with dx.Session(mesh, ccl="cpu") as session:
            annotated = dx.annotate(looked_up, mesh, {"x": (None, axes, None)})
            results = session.load(dx.build(annotated, QUICK))["main"](x)
            for result, (_, positions) in zip(results, cases, strict=True):
                np.testing.assert_array_equal(result.numpy(), x[:, np.asarray(positions)])


def test_a_roll_sends_what_crosses_shards():
    rolled = program(
        lambda x: R.take(x, constant(np.roll(np.arange(64), 1), "int64"), 1),
        {"x": ((4, 64, 32), "float32")},
    )
    for mesh, axes in MESHES:
        shards = 6 if len(mesh.shape) == 2 else 4
        if 64 % shards == 0:
            assert sent(rolled, mesh, {"x": (None, axes, None)}) == 4 * 32 * 4


def test_constants_number_rows():
    """As torch's frontend folds them: lookups and writes at a position of each row send nothing."""
    n = 12
    rng = np.random.default_rng(0)
    x, p = rng.standard_normal((n, 8, 4)).astype("float32"), rng.integers(0, 8, n)
    u = rng.standard_normal((n, 4)).astype("float32")
    for mesh, axes in MESHES:
        plan = {"x": (axes, None, None), "p": (axes,)}
        rows = constant(np.arange(n), "int64")
        read = program(
            lambda x, p, rows=rows: R.index_tensor(x, (rows, p)),
            {"x": (x.shape, "float32"), "p": ((n,), "int64")},
        )
        write = program(
            lambda x, p, u, rows=rows: R.index_put(x, (rows, p), u),
            {"x": (x.shape[:2], "float32"), "p": ((n,), "int64"), "u": ((n,), "float32")},
        )
        written = {"x": (axes, None), "p": (axes,), "u": (axes,), "return": (axes, None)}
        assert sent(read, mesh, plan) == sent(write, mesh, written) == 0
        wanted = x[:, :, 0].copy()
        wanted[np.arange(n), p] = u[:, 0]
        with dx.Session(mesh, ccl="cpu") as session:
            model = session.load(dx.build(dx.annotate(read, mesh, plan), QUICK))
            np.testing.assert_array_equal(model["main"](x, p).numpy(), x[np.arange(n), p])
            model = session.load(dx.build(dx.annotate(write, mesh, written), QUICK))
            found = model["main"](x[:, :, 0].copy(), p, u[:, 0].copy()).numpy()
            np.testing.assert_array_equal(found, wanted)


def test_other_constants_number_no_rows():
    """Positions of rows in another order are looked up where they are."""
    rows = constant([1, 0, 2, 3], "int64")
    x = np.arange(32, dtype="float32").reshape(4, 8)
    p = np.array([3, 2, 1, 0])
    read = program(
        lambda x, p: R.index_tensor(x, (rows, p)),
        {"x": ((4, 8), "float32"), "p": ((4,), "int64")},
    )
    mesh = dx.Mesh(x=2)
    with dx.Session(mesh, ccl="cpu") as session:
        built = dx.build(dx.annotate(read, mesh, {"x": ("x", None), "p": ("x",)}), QUICK)
        found = session.load(built)["main"](x, p).numpy()
    np.testing.assert_array_equal(found, x[[1, 0, 2, 3], p])
