"""Calls with operands of conflicting shardings: they move no more bytes than Shardy's reshards.

The sequences are those of Shardy's explicit reshards, on axes x of 4 and y of 2.
"""

import pytest
from tests.propagation.marked import annotated, sent
from tvm import relax

import distir_ext as dx

SIZE = 8192  # of a matrix of float32
MATRIX = SIZE * SIZE * 4


def product(lhs, rhs, result):
    return dx.lower(annotated(relax.op.matmul, (SIZE, SIZE), (lhs, rhs), result))


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
