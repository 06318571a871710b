"""Lookups and writes by row number and position: each device has to do with its own rows only."""

import numpy as np
import tvm
from tests.targets import QUICK
from tvm import relax
from tvm.relax import op as R

import distir_ext as dx


def rows_of(emit, n, dtype="int64"):
    return emit(R.arange(0, n, 1, dtype))


def by_tensors(emit, x, p):
    return R.index_tensor(x, [rows_of(emit, p.ty.shape.values[0]), p])


def by_integers_of_two_types(emit, x, p):
    n = p.ty.shape.values[0]
    return R.index_tensor(x, [rows_of(emit, n), p, emit(R.astype(p, "int32"))])


def by_matrix(emit, x, p):
    """Several positions of each row."""
    n, m = p.ty.shape.values
    rows = emit(R.broadcast_to(emit(R.expand_dims(p, 2)), [n, m, 1]))
    numbers = emit(R.expand_dims(rows_of(emit, n), 1))
    return R.index_tensor(x, [numbers, emit(R.squeeze(rows, [2]))])


def by_stack(emit, x, p):
    n = p.ty.shape.values[0]
    return R.gather_nd(x, emit(R.stack([rows_of(emit, n), p, p], 1)))


def by_concat(emit, x, p):
    n = p.ty.shape.values[0]
    numbers = emit(R.expand_dims(rows_of(emit, n), 1))
    return R.gather_nd(x, emit(R.concat([numbers, emit(R.expand_dims(p, 1))], 1)))


CASES = [
    (by_tensors, (8,), lambda x, p: x[np.arange(len(x)), p]),
    (by_tensors, (9,), lambda x, p: x[np.arange(len(x)), p]),
    (by_integers_of_two_types, (8,), lambda x, p: x[np.arange(len(x)), p, p]),
    (by_matrix, (8, 3), lambda x, p: x[np.arange(len(x))[:, None], p]),
    (by_stack, (8,), lambda x, p: x[np.arange(len(x)), p, p]),
    (by_concat, (10,), lambda x, p: x[np.arange(len(x)), p]),
]


def test_rows_look_up_in_their_own():
    rng = np.random.default_rng(0)
    for mesh, axes in ((dx.Mesh(x=4), "x"), (dx.Mesh(x=3, y=2), ("y", "x"))):
        with dx.Session(mesh, ccl="cpu") as session:
            for index, (build, shape, wanted) in enumerate(CASES):
                x = rng.standard_normal((shape[0], 6, 6)).astype("float32")
                p = rng.integers(0, 6, shape)
                builder = relax.BlockBuilder()
                params = [
                    relax.Var("x", relax.TensorType(x.shape, "float32")),
                    relax.Var("p", relax.TensorType(shape, "int64")),
                ]
                with builder.function("main", params):
                    with builder.dataflow():
                        result = builder.emit_output(build(builder.emit, *params))
                    builder.emit_func_output(result)
                plan = {"x": (axes, None, None), "p": (axes, *[None] * (len(shape) - 1))}
                mod = dx.annotate(builder.finalize(), mesh, plan)
                assert not list(dx.analysis.collectives(dx.lower(mod))), index
                found = session.load(dx.build(mod, target=QUICK))(x, p).numpy()
                np.testing.assert_array_equal(found, wanted(x, p), err_msg=str(index))


def written(mode):
    """A write at a stack of row numbers and positions, of rows of values."""

    def build(emit, x, p, u):
        n = p.ty.shape.values[0]
        return R.scatter_nd(x, emit(R.stack([rows_of(emit, n), p], 1)), u, mode)

    return build


def written_twice(emit, x, p, u):
    """Several positions of each row."""
    n, m = p.ty.shape.values
    numbers = emit(R.expand_dims(rows_of(emit, n), 1))
    both = [emit(R.broadcast_to(numbers, [n, m])), p]
    return R.scatter_nd(x, emit(R.stack(both, 2)), u, "add")


def put(emit, x, p, u, accumulate=False):
    return R.index_put(x, [rows_of(emit, p.ty.shape.values[0]), p], u, accumulate)


def accumulated(emit, x, p, u):
    return put(emit, x, p, u, accumulate=True)


# The write, the shapes of data, positions and values, their dtype.
WRITES = [
    *[(written(mode), (9, 5, 6), (9,), (9, 6), "float32") for mode in ("update", "add", "max")],
    (written("mul"), (8, 5, 2, 3), (8,), (8, 2, 3), "float16"),
    (written_twice, (8, 5, 6), (8, 3), (8, 3, 6), "float32"),
    (put, (9, 5), (9,), (9,), "int8"),
    (put, (9, 5), (9,), (9,), "bool"),
    (accumulated, (8, 5), (8,), (8,), "float32"),
]


def test_rows_are_written_where_they_are():
    rng = np.random.default_rng(0)
    for mesh, axes in ((dx.Mesh(x=4), "x"), (dx.Mesh(x=3, y=2), ("y", "x"))):
        with dx.Session(mesh, ccl="cpu") as session:
            for index, (build, *shapes, dtype) in enumerate(WRITES):
                least = -5 if build in (put, accumulated) else 0  # these count from the end, too
                x, u = (rng.integers(0, 9, shapes[i]).astype(dtype) for i in (0, 2))
                p = rng.integers(least, 5, shapes[1])
                builder = relax.BlockBuilder()
                params = [
                    relax.Var(name, relax.TensorType(each.shape, each.dtype.name))
                    for name, each in (("x", x), ("p", p), ("u", u))
                ]
                with builder.function("main", params):
                    with builder.dataflow():
                        result = builder.emit_output(build(builder.emit, *params))
                    builder.emit_func_output(result)
                plan = {v.name: (axes, *[None] * (v.ty.ndim - 1)) for v in params}
                mod = builder.finalize()
                annotated = dx.annotate(mod, mesh, plan)
                assert not list(dx.analysis.collectives(dx.lower(annotated))), index
                machine = relax.VirtualMachine(tvm.compile(mod, QUICK), tvm.cpu())
                wanted = machine["main"](*map(tvm.runtime.tensor, (x, p, u))).numpy()
                found = session.load(dx.build(annotated, target=QUICK))(x, p, u).numpy()
                np.testing.assert_array_equal(found, wanted, err_msg=str(index))
