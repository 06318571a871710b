"""Dimensions that reshapes merge though a minor one is sharded: what is sent, and the numbers."""

from __future__ import annotations

import numpy as np
import tvm
from tests.targets import QUICK
from tvm import relax, tirx
from tvm.relax import op as R

import distir_ext as dx

FOUR = dx.Mesh(x=4)
CUBE = dx.Mesh(x=2, y=2, z=2)
OBLONG = dx.Mesh(x=3, y=2)


def program(build, shapes):
    """``main`` of float32 tensors, by name; ``build`` gets `emit` and the parameters."""
    builder = relax.BlockBuilder()
    params = [relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in shapes.items()]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(build(builder.emit, *params))
        builder.emit_func_output(result)
    return builder.finalize()


def sent(mod, mesh, plan):
    lowered = dx.lower(dx.annotate(mod, mesh, plan))
    return sum(each.bytes_per_device * each.count for each in dx.analysis.collectives(lowered))


def unpartitioned(mod, values):
    machine = relax.VirtualMachine(tvm.compile(mod, QUICK), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, values))


def rows_of(x):
    """The shape of (rows, columns), the rows merged."""
    *rows, columns = x.ty.shape.values
    count = rows[0]
    for size in rows[1:]:
        count = count * size
    return [count, columns]


def with_columns(x, like):
    return [*like.ty.shape.values[:-1], x.ty.shape.values[-1]]


def linear(emit, x, w, bias):
    """PyTorch's F.linear, GPT-2's Conv1D, ONNX's Gemm: a product of rows, and a bias."""
    rows = emit(R.reshape(x, rows_of(x)))
    y = emit(R.add(emit(R.matmul(rows, w)), bias))
    return R.reshape(y, with_columns(y, x))


def layers(emit, x, w, bias):
    """Several in a row, with a residual, a norm and a softmax."""
    y = x
    for _ in range(2):
        made = emit(linear(emit, y, w, bias))
        merged = emit(R.reshape(made, rows_of(made)))
        normed = emit(R.nn.layer_norm(merged, bias, bias, axes=[-1]))
        shares = emit(R.nn.softmax(normed, axis=1))
        added = emit(R.add(shares, emit(R.reshape(y, rows_of(y)))))
        y = emit(R.reshape(added, with_columns(added, y)))
    return y


def heads(emit, x, w, bias):
    """Columns become heads in front of the sequence, and rows of all heads are multiplied."""
    b, s, d = x.ty.shape.values
    split = emit(R.reshape(x, [b, s, 3, d // 3]))
    moved = emit(R.permute_dims(split, [0, 2, 1, 3]))
    merged = emit(R.reshape(moved, [b * 3, s, d // 3]))
    made = emit(R.matmul(merged, w))
    apart = emit(R.reshape(emit(R.add(made, bias)), [b, 3, s, made.ty.shape.values[-1]]))
    back = emit(R.permute_dims(apart, [0, 2, 1, 3]))
    return R.reshape(back, [b, s, 3 * made.ty.shape.values[-1]])


def of_rows(emit, x, w, bias):
    """A transposition, an arg max and a sum of rows, and one of all of them."""
    rows = emit(R.reshape(x, rows_of(x)))
    columns = emit(R.permute_dims(rows, [1, 0]))
    largest = emit(R.max(columns, axis=0, keepdims=False))
    weighted = emit(R.multiply(columns, largest))
    total = emit(R.sum(weighted, axis=[0]))
    mean = emit(R.mean(total, axis=[0]))
    places = emit(R.astype(emit(R.argmax(rows, axis=1)), "float32"))
    shifted = emit(R.add(emit(R.subtract(total, mean)), places))
    return R.reshape(shifted, x.ty.shape.values[:-1])


def along_rows(emit, x, w, bias):
    """A running sum, a sort and a softmax of all merged rows."""
    rows = emit(R.reshape(x, rows_of(x)))
    sums = emit(R.cumsum(rows, 0))
    shares = emit(R.nn.softmax(emit(R.sort(sums, 0)), 0))
    return R.reshape(emit(R.add(shares, bias)), list(x.ty.shape.values))


N = tirx.Var("n", "int64")
WEIGHTS = {"w": (6, 6), "b": (6,)}
# What is computed, of which x and weights, the mesh, how x is sharded, and the bytes sent.
CASES = [
    (linear, (8, 128, 6), WEIGHTS, FOUR, (None, "x", None), 0),
    (linear, (8, 126, 6), {"w": (6, 10), "b": (10,)}, FOUR, (None, "x", None), 0),
    (linear, (2, 3, 8, 6), WEIGHTS, CUBE, (None, None, ("y", "x"), None), 0),
    (linear, (4, 3, 8, 6), WEIGHTS, CUBE, ("z", None, "x", None), 0),
    (linear, (4, 7, 5, 6), WEIGHTS, OBLONG, (None, ("x", "y"), None, None), 0),
    (linear, (N, 12, 6), WEIGHTS, FOUR, (None, "x", None), 0),
    (linear, (3, N, 6), WEIGHTS, FOUR, (None, "x", None), 0),
    (layers, (3, 8, 6), WEIGHTS, FOUR, (None, "x", None), 0),
    (layers, (3, 9, 6), WEIGHTS, OBLONG, (None, "y", None), 0),
    (heads, (3, 8, 6), {"w": (2, 4), "b": (4,)}, FOUR, (None, "x", None), 0),
    (heads, (3, 8, 6), {"w": (2, 4), "b": (4,)}, OBLONG, (None, None, "x"), 0),
    # Columns are exchanged, once.
    (along_rows, (3, 8, 6), {"w": (1, 1), "b": (6,)}, dx.Mesh(x=2), (None, "x", None), 144),
    (along_rows, (3, 8, 8), {"w": (1, 1), "b": (8,)}, FOUR, (None, "x", None), 144),
    (along_rows, (2, 7, 12), {"w": (1, 1), "b": (12,)}, OBLONG, (None, ("x", "y"), None), 252),
    (along_rows, (2, 3, 8, 8), {"w": (1, 1), "b": (8,)}, CUBE, ("z", None, ("x", "y"), None), 248),
    # All devices reduce one number.
    (of_rows, (3, 8, 6), WEIGHTS, FOUR, (None, "x", None), 2 * 3 * 4 // 4 + 1),
]  # fmt: skip


def test_minor_dimensions_stay_sharded():
    generator = np.random.default_rng(0)
    for index, (build, shape, weights, mesh, dims, right) in enumerate(CASES):
        mod = program(build, {"x": shape, **weights})
        plan = {"x": dims}
        assert sent(mod, mesh, plan) <= right, index
        sizes = [5 if isinstance(size, tirx.Var) else size for size in shape]
        values = [
            generator.standard_normal(each).astype("float32") for each in (sizes, *weights.values())
        ]
        wanted = unpartitioned(mod, values)
        with dx.Session(mesh, ccl="cpu") as session:
            built = dx.build(dx.annotate(mod, mesh, plan), target=QUICK)
            found = session.load(built)(*values).numpy()
        np.testing.assert_allclose(found, wanted.numpy(), rtol=2e-5, atol=2e-5, err_msg=str(index))


def test_losses_of_rows_reduce_numbers():
    """The loss of a language model: rows of logits and labels of all sequences."""
    builder = relax.BlockBuilder()
    logits = relax.Var("logits", relax.TensorType((3, 9, 10), "float32"))
    labels = relax.Var("labels", relax.TensorType((3, 9), "int64"))
    with builder.function("main", [logits, labels]):
        with builder.dataflow():
            rows = builder.emit(R.reshape(logits, [27, 10]))
            shares = builder.emit(R.nn.log_softmax(rows, axis=-1))
            of_rows = builder.emit(R.reshape(labels, [27]))
            loss = builder.emit_output(R.nn.nll_loss(shares, of_rows, ignore_index=3))
        builder.emit_func_output(loss)
    mod, plan = builder.finalize(), {"logits": (None, "x", None), "labels": (None, "x")}
    assert sent(mod, FOUR, plan) <= 2 * 2 * 4
    generator = np.random.default_rng(1)
    values = [
        generator.standard_normal((3, 9, 10)).astype("float32"),
        generator.integers(0, 10, (3, 9)),
    ]
    with dx.Session(FOUR, ccl="cpu") as session:
        built = dx.build(dx.annotate(mod, FOUR, plan), target=QUICK)
        found = session.load(built)(*values).numpy()
    np.testing.assert_allclose(found, unpartitioned(mod, values).numpy(), rtol=1e-5)


def test_what_is_needed_merged_is_exchanged():
    """A merged dimension that is stated moves by an all-to-all, not by a gather."""
    mod = program(lambda emit, x: R.nn.relu(emit(R.reshape(x, rows_of(x)))), {"x": (8, 128, 256)})
    for dims in (("x", None), (None, "x")):
        assert sent(mod, FOUR, {"x": (None, "x", None), "return": dims}) == 196608


def gradients(emit, x, w, g):
    """A linear layer and what its gradients are: products that contract all rows."""
    rows, upper = emit(R.reshape(x, rows_of(x))), emit(R.reshape(g, rows_of(g)))
    y = emit(R.reshape(emit(R.nn.relu(emit(R.matmul(rows, w)))), with_columns(g, x)))
    of_weight = emit(R.matmul(emit(R.permute_dims(rows, [1, 0])), upper))
    of_rows = emit(R.matmul(upper, emit(R.permute_dims(w, [1, 0]))))
    of_bias = emit(R.einsum((rows, upper), "ni,nj->j"))
    of_x = emit(R.reshape(of_rows, with_columns(of_rows, x)))
    return relax.Tuple([y, of_weight, of_bias, of_x])


def pieces(emit, x, w, g):
    """Slices and tuples between reshapes: a gated layer, and the largest with their places."""
    left = emit(R.strided_slice(emit(R.reshape(x, rows_of(x))), [-1], [1], [4]))
    gate, up = (emit(R.split(emit(R.reshape(x, rows_of(x))), 2, 1))[i] for i in range(2))
    gated = emit(R.multiply(emit(gate), emit(up)))
    largest = emit(R.topk(gated, 2, 1, "both"))
    return relax.Tuple(
        [
            emit(R.reshape(each, with_columns(each, x)))
            for each in (gated, left, emit(largest[0]), emit(largest[1]))
        ]
    )


def test_gradients_and_tuples_of_merged_rows():
    generator = np.random.default_rng(0)
    for build, mesh, dims, shape, right in (
        (gradients, FOUR, (None, "x", None), (3, 8, 6), 2 * (6 * 5 + 5) * 4 * 3 // 4 + 2),
        (gradients, OBLONG, (None, ("x", "y"), None), (2, 7, 6), 2 * (6 * 5 + 5 + 2) * 4 * 5 // 6),
        (gradients, CUBE, ("y", "x", None), (2, 4, 6), 2 * (6 * 5 + 5) * 4 * 3 // 4 + 2),
        (pieces, FOUR, (None, "x", None), (3, 8, 6), 0),
        (pieces, OBLONG, (None, "y", None), (4, 9, 6), 0),
    ):
        shapes = {"x": shape, "w": (6, 5), "g": (*shape[:2], 5)}
        mod = program(build, shapes)
        plan = {"x": dims, "g": dims}
        assert sent(mod, mesh, plan) <= right, (build, mesh)
        values = [generator.standard_normal(each).astype("float32") for each in shapes.values()]
        wanted = unpartitioned(mod, values)
        with dx.Session(mesh, ccl="cpu") as session:
            built = dx.build(dx.annotate(mod, mesh, plan), target=QUICK)
            found = session.load(built)(*values)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=2e-5, atol=2e-5)
