"""Values of unknown shape: results that depend on data, and parameters."""

import numpy as np
import pytest
import tvm
from tests.targets import QUICK
from tvm import relax, tirx
from tvm.relax import op

import distir_ext as dx

from .operators import CASES


def program(shape, body, dtype="float32", more=()):
    x = relax.Var("x", relax.TensorType(shape, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *more]):
        with builder.dataflow():
            result = builder.emit_output(body(builder, x))
        builder.emit_func_output(result)
    return builder.get()


def run(mod, mesh, *arguments):
    with dx.Session(mesh) as session:
        return session.load(dx.build(mod, target=QUICK))["main"](*arguments).numpy()


def field_of_unique(field, has_cast):
    def body(builder, x):
        unique = builder.emit(op.unique(x, True, True, True, True, 0))
        found = builder.emit(relax.TupleGetItem(unique, field))
        count = tvm.tirx.Var("n", "int64")
        shape = {0: (count, *list(x.ty.shape)[1:]), 2: (x.ty.shape[0],)}.get(field, (count,))
        type_ = relax.TensorType(shape, "int64" if field else x.ty.dtype)
        return builder.match_cast(found, type_) if has_cast else found

    return body


@pytest.mark.parametrize(
    ("mesh", "shape", "dims"),
    [
        (dx.Mesh(a=2), (3, 3), ("a", None)),
        (dx.Mesh(a=3, b=2), (7, 5), ("a", "b")),
        (dx.Mesh(a=2, b=2, c=2, d=2), (5, 3), (("a", "d"), "b")),
    ],
)
def test_results_of_unknown_extent_beside_uneven_shards(mesh, shape, dims):
    """Padding wrote a pad of a tensor without dimensions in front of them; a session crashed."""
    x = np.random.default_rng(0).integers(0, 2, shape).astype("float32")
    expected = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=0)
    for field, has_cast in ((0, True), (0, False), (2, True)):
        mod = dx.annotate(program(shape, field_of_unique(field, has_cast)), mesh, {"x": dims})
        np.testing.assert_array_equal(
            run(mod, mesh, x),
            expected[field].reshape(-1, *shape[1:]) if field == 0 else expected[field].reshape(-1),
        )


def test_a_slice_of_unknown_extent_is_what_padshards_left():
    bounds = [relax.Var(name, relax.TensorType((2,), "int64")) for name in ("b", "e", "s")]
    mod = program((7, 6), lambda _, x: op.dynamic_strided_slice(x, *bounds), more=bounds)
    x = np.arange(42, dtype="float32").reshape(7, 6)
    mesh = dx.Mesh(a=4)
    stated = [np.array(each) for each in ([1, 0], [6, 4], [2, 1])]
    for dims in (("a", None), (None, "a"), ("a", ...)):
        found = run(dx.annotate(mod, mesh, {"x": dims}), mesh, x, *stated)
        np.testing.assert_array_equal(found, x[1:6:2, 0:4])


def test_a_value_that_loses_its_shape_and_gets_it_back():
    def typed(builder, x):
        unknown = builder.match_cast(x, relax.TensorType(dtype="float32", ndim=2))
        count = tvm.tirx.Var("n", "int64")
        known = builder.match_cast(unknown, relax.TensorType((count, 3), "float32"))
        return builder.emit(op.exp(known))

    x = np.random.default_rng(0).standard_normal((7, 3)).astype("float32")
    for dims in (("a", None), (None, "b"), ("a", ...)):
        mesh = dx.Mesh(a=3, b=2)
        mod = dx.annotate(program((7, 3), typed), mesh, {"x": dims})
        np.testing.assert_allclose(run(mod, mesh, x), np.exp(x), rtol=1e-6)


def test_operators_on_tensors_of_unknown_shape_or_rank_are_replicated():
    """Rules read dimensions that are not there: of a tensor of unknown rank, out of bounds."""
    seen = 0
    skipped = {"relax.nn.attention", "relax.nn.attention_bias", "relax.nn.attention_var_len"}
    for name, cases in CASES.items():
        if name in skipped:  # TVM's own inference reads a null shape
            continue
        case = cases[0]
        if not case.operands:
            continue
        for rank in (None, -1):
            params = [
                relax.Var(f"x{i}", relax.TensorType(operand.shape, operand.dtype))
                for i, operand in enumerate(case.operands)
            ]
            builder = relax.BlockBuilder()
            with builder.function("main", params):
                first = case.operands[0]
                ndim = len(first.shape) if rank is None else rank
                unknown = builder.match_cast(
                    params[0], relax.TensorType(dtype=first.dtype, ndim=ndim)
                )
                try:
                    result = builder.emit(case.apply(unknown, *params[1:]))
                except (ValueError, TypeError, AttributeError, RuntimeError, LookupError):
                    builder.emit_func_output(unknown)  # it cannot be stated
                    continue
                shape = getattr(result.ty, "shape", None) or ()
                if any(isinstance(size, tirx.IntImm) and size.value < 0 for size in shape):
                    builder.emit_func_output(unknown)  # TVM types it so, and it is refused
                    continue
                builder.emit_func_output(result)
            dims = [None] * len(first.shape)
            if first.shape and first.shape[0] > 1:
                dims[0] = "a"
            mod = dx.annotate(builder.get(), dx.Mesh(a=2), {"x0": tuple(dims)})
            propagated = dx.transform.PropagateSharding()(mod)
            assert propagated["main"] is not None
            seen += 1
    assert seen > 250


def test_operators_take_what_has_no_size():
    """Kernels have sizes; what depends on data gets names for them."""
    x = np.random.default_rng(1).integers(0, 3, (6, 4)).astype("float32")

    def columns(builder, x):
        return builder.emit(op.permute_dims(builder.emit(op.nonzero(x))))

    mod = dx.annotate(program((6, 4), columns), dx.Mesh(a=2), {"x": ("a", None)})
    np.testing.assert_array_equal(run(mod, dx.Mesh(a=2), x), np.stack(np.nonzero(x)).T)


def test_positions_among_unique_elements_are_a_vector():
    """Those of a matrix have one dimension, as their type and ONNX say, not two as in NumPy 2."""
    x = np.random.default_rng(1).integers(0, 3, (6, 4)).astype("float32")

    def positions(builder, x):
        return builder.emit(builder.emit(op.unique(x, True, False, True, False))[1])

    mod = dx.annotate(program((6, 4), positions), dx.Mesh(a=2), {"x": ("a", None)})
    wanted = np.unique(x.reshape(-1), return_inverse=True)[1]
    np.testing.assert_array_equal(run(mod, dx.Mesh(a=2), x), wanted)
