"""Operations of whole models against those that XLA's cost analysis says, where JAX is installed.

XLA counts the additions of a sum of n numbers as n - 1; an estimate counts the loop's n, of which
the first adds to zero. The same holds for maxima. Everything else is equal, of what JAX gives to
XLA. What XLA makes of it may compute cheap values twice, in each kernel that reads them.
"""

import pytest
from tests.analysis.programs import function, on, on_two
from tvm import relax
from tvm.relax import op

import distir_ext as dx

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")

ROWS, HIDDEN, HEADS, WIDTH = 6, 16, 2, 24
SIZE = HIDDEN // HEADS
EPSILON = 1e-5
MLP = {"x": (ROWS, HIDDEN), "up": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN)}
BLOCK = {
    "x": (ROWS, HIDDEN),
    "norm": (HIDDEN,),
    **dict.fromkeys(("q", "k", "v", "o"), (HIDDEN, HIDDEN)),
    "mlp_norm": (HIDDEN,),
    "gate": (HIDDEN, WIDTH),
    "up": (HIDDEN, WIDTH),
    "down": (WIDTH, HIDDEN),
}


def estimated(shapes, write):
    """Of one device that computes all of it."""
    mod = on_two(function(shapes, write), {"x": (None, None)})
    (program,) = dx.analysis.estimate(mod, on()).programs
    return program.cost


def analysed(shapes, call):
    """Before and behind XLA's passes."""
    arrays = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes.values()]
    lowered = jax.jit(call).lower(*arrays)
    return lowered.cost_analysis(), lowered.compile().cost_analysis()


def mlp(emit, x, up, down):
    return op.add(x, emit(op.matmul(emit(op.nn.relu(emit(op.matmul(x, up)))), down)))


def jax_mlp(x, up, down):
    return x + jax.numpy.maximum(x @ up, 0) @ down


def test_a_small_network_has_the_operations_of_xla():
    ours = estimated(MLP, mlp)
    assert [each["flops"] for each in analysed(MLP, jax_mlp)] == [ours.flops] * 2


def block(emit, x, norm, q, k, v, o, mlp_norm, gate, up, down):
    def scalar(value):
        return relax.const(value, "float32")

    def normed(value, weight):
        mean = emit(op.mean(emit(op.multiply(value, value)), -1, keepdims=True))
        scale = emit(op.rsqrt(emit(op.add(mean, scalar(EPSILON)))))
        return emit(op.multiply(emit(op.multiply(value, scale)), weight))

    def heads(value, weight):
        split = emit(op.reshape(emit(op.matmul(value, weight)), (ROWS, HEADS, SIZE)))
        return emit(op.permute_dims(split, [1, 0, 2]))

    inner = normed(x, norm)
    queries, keys, values = (heads(inner, weight) for weight in (q, k, v))
    scores = emit(op.matmul(queries, emit(op.permute_dims(keys, [0, 2, 1]))))
    scores = emit(op.multiply(scores, scalar(SIZE**-0.5)))
    powers = emit(op.exp(emit(op.subtract(scores, emit(op.max(scores, -1, keepdims=True))))))
    weights = emit(op.divide(powers, emit(op.sum(powers, -1, keepdims=True))))
    mixed = emit(op.permute_dims(emit(op.matmul(weights, values)), [1, 0, 2]))
    x = emit(op.add(x, emit(op.matmul(emit(op.reshape(mixed, (ROWS, HIDDEN))), o))))
    inner = normed(x, mlp_norm)
    opened = emit(op.tanh(emit(op.matmul(inner, gate))))
    wide = emit(op.multiply(opened, emit(op.matmul(inner, up))))
    return op.add(x, emit(op.matmul(wide, down)))


def jax_block(x, norm, q, k, v, o, mlp_norm, gate, up, down):
    numpy = jax.numpy

    def normed(value, weight):
        mean = (value * value).mean(-1, keepdims=True)
        return value * jax.lax.rsqrt(mean + EPSILON) * weight

    def heads(value, weight):
        return (value @ weight).reshape(ROWS, HEADS, SIZE).transpose(1, 0, 2)

    inner = normed(x, norm)
    queries, keys, values = (heads(inner, weight) for weight in (q, k, v))
    scores = queries @ keys.transpose(0, 2, 1) * SIZE**-0.5
    powers = numpy.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    x = x + (weights @ values).transpose(1, 0, 2).reshape(ROWS, HIDDEN) @ o
    inner = normed(x, mlp_norm)
    return x + (numpy.tanh(inner @ gate) * (inner @ up)) @ down


def test_a_transformer_block_has_them_but_for_the_first_of_every_sum():
    ours = estimated(BLOCK, block)
    given, compiled = analysed(BLOCK, jax_block)
    sums = 2 * ROWS + 2 * HEADS * ROWS  # of the norms; the maximum and the sum of each softmax
    assert ours.flops - sums == given["flops"]
    assert ours.transcendentals == given["transcendentals"] == compiled["transcendentals"]
    # XLA scales the scores in front of the maximum and again in front of the exponential.
    twice = compiled["flops"] - given["flops"]
    assert 0 <= twice < 2 * HEADS * ROWS * ROWS
