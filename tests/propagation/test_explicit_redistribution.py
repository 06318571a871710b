"""Calls whose operands do not fit: what is moved is no more than other systems are known to move.

The sequences are those of Shardy's explicit reshards, on axes x of 4 and y of 2.
"""

import pytest
import tvm
from tvm import relax

import distir_ext as dx

MESH = dx.Mesh((4, 2), ("x", "y"))
SIZE = 8192  # of a matrix of float32
MATRIX = SIZE * SIZE * 4


def lowered(lhs, rhs, result):
    """A product whose operands and result are annotated."""
    builder = relax.BlockBuilder()
    params = [relax.Var(name, relax.TensorType((SIZE, SIZE), "float32")) for name in "ab"]
    with builder.function("main", params):
        placed = [
            builder.emit(
                relax.op.distributed.annotate_sharding(
                    param, MESH.device_mesh, MESH.placement(*dims)
                )
            )
            for param, dims in zip(params, (lhs, rhs), strict=True)
        ]
        product = builder.emit(relax.op.matmul(*placed))
        if result is not None:
            product = builder.emit(
                relax.op.distributed.annotate_sharding(
                    product, MESH.device_mesh, MESH.placement(*result)
                )
            )
        builder.emit_func_output(product)
    mod = builder.get()
    mod.update_global_info("mesh", [MESH.device_mesh])
    return dx.lower(mod)


def sent(mod: tvm.IRModule) -> float:
    """Parts of a matrix that a device sends."""
    return sum(one.bytes_per_device * one.count for one in dx.analysis.collectives(mod)) / MATRIX


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
    assert sent(lowered(lhs, rhs, result)) <= most * (1 + 1e-9)


def test_a_partial_product_is_scattered_where_it_is_wanted():
    (only,) = dx.analysis.collectives(lowered(("x", "y"), ("y", None), ("x", "y")))
    assert (only.kind, only.group_size) == ("reduce_scatter", 2)
