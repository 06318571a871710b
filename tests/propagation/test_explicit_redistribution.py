"""Calls whose operands do not fit: what is moved is no more than other systems are known to move.

The sequences are those of Shardy's explicit reshards, on axes x of 4 and y of 2.
"""

import numpy as np
import pytest
import tvm
from tvm import relax

import distir_ext as dx

MESH = dx.Mesh((4, 2), ("x", "y"))
SIZE = 8192  # of a matrix of float32
MATRIX = SIZE * SIZE * 4


def annotated(operator, shape, operands, result):
    """One operator whose operands and result are annotated."""
    builder = relax.BlockBuilder()
    names = "ab"[: len(operands)]
    params = [relax.Var(name, relax.TensorType(shape, "float32")) for name in names]
    with builder.function("main", params):
        placed = [
            builder.emit(
                relax.op.distributed.annotate_sharding(
                    param, MESH.device_mesh, MESH.placement(*dims)
                )
            )
            for param, dims in zip(params, operands, strict=True)
        ]
        computed = builder.emit(operator(*placed))
        wanted = MESH.placement(*result)
        builder.emit_func_output(
            builder.emit(relax.op.distributed.annotate_sharding(computed, MESH.device_mesh, wanted))
        )
    mod = builder.get()
    mod.update_global_info("mesh", [MESH.device_mesh])
    return mod


def product(lhs, rhs, result):
    return dx.lower(annotated(relax.op.matmul, (SIZE, SIZE), (lhs, rhs), result))


def sent(mod: tvm.IRModule) -> float:
    """Bytes that a device sends."""
    return sum(one.bytes_per_device * one.count for one in dx.analysis.collectives(mod))


@pytest.mark.parametrize(
    ("lhs", "rhs", "result", "most"),
    [
        # Gather x of the left side (3/8), reduce over y (1/4), gather x of the result (3/4).
        (("x", "y"), ("y", "x"), (None, None), 3 / 8 + 1 / 4 + 3 / 4),
        # Reduce and scatter over y.
        (("x", "y"), ("y", None), ("x", "y"), 1 / 8),
    ],
)
def test_a_product_moves_no_more_than_the_known_sequence(lhs, rhs, result, most):
    assert sent(product(lhs, rhs, result)) <= most * MATRIX * (1 + 1e-9)


def test_a_partial_product_is_scattered_where_it_is_wanted():
    (only,) = dx.analysis.collectives(product(("x", "y"), ("y", None), ("x", "y")))
    assert (only.kind, only.group_size) == ("reduce_scatter", 2)


def concat(a, b):
    return relax.op.concat([a, b], axis=1)


def sort(x):
    return relax.op.sort(x, axis=0)


# Only bytes count, so that small tensors move as large ones do.
NO_LATENCY = dx.Cluster.uniform(dx.Link(latency=0.0, bandwidth=1e9), launch=0.0)
SHARDED = ("x", "y", None)


@pytest.mark.parametrize(
    ("operator", "shape", "operands", "result", "most"),
    [
        # Both operands to [xy|-|-], half of a shard each; the result, twice as large, back.
        (concat, (8, 16, 12), [SHARDED, SHARDED], SHARDED, 2 * 1 / 16 + 2 / 16),
        # The same, but the result stays as it is.
        (concat, (8, 16, 12), [SHARDED, SHARDED], (("x", "y"), None, None), 2 * 1 / 16),
        # To [-|yx|-] and back, three quarters of a shard each time.
        (sort, (8, 16, 12), [SHARDED], SHARDED, 2 * 3 / 32),
        # Dimension 1 has no room for x; dimension 2 has.
        (sort, (8, 2, 12), [SHARDED], SHARDED, 2 * 3 / 32),
        # No dimension has room for x: it is gathered.
        (sort, (8, 2, 3), [SHARDED], SHARDED, 3 / 8),
    ],
)
def test_axes_of_a_dimension_that_is_needed_whole_move_to_another(
    operator, shape, operands, result, most
):
    mod = annotated(operator, shape, operands, result)
    assert sent(dx.lower(mod, cluster=NO_LATENCY)) <= 4 * np.prod(shape) * most * (1 + 1e-9)
    inputs = np.random.default_rng(0).normal(size=(len(operands), *shape)).astype("float32")
    expected = np.sort(inputs[0], 0) if operator is sort else np.concatenate(inputs, 1)
    with dx.Session(MESH) as session:
        found = session.load(dx.build(mod, cluster=NO_LATENCY))["main"](*inputs)
    np.testing.assert_array_equal(found.numpy(), expected)
