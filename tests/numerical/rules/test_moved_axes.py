"""Axes that serve another dimension during a call."""

import numpy as np
import pytest
from tests.propagation.marked import MESH, annotated, sent
from tvm import relax

import distir_ext as dx


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
