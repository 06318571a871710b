"""Lookups by row number and position: each device looks up in its own rows."""

import numpy as np
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
