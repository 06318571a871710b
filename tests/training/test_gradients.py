"""Gradients of operators that TVM has none for are those of torch, whole and on shards."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

import distir_ext as dx

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
f = torch.nn.functional

MESH = {"dp": 2}


def attention(query, key, value, bias=None, **options):
    turned = [each.transpose(1, 2) for each in (query, key, value)]
    return f.scaled_dot_product_attention(*turned, attn_mask=bias, **options).transpose(1, 2)


def rotated(operators, x):
    """The rotary embedding's halves."""
    half = x.shape[-1] // 2 if operators is torch else int(x.ty.shape[-1]) // 2
    if operators is torch:
        return torch.cat([-x[..., half:], x[..., :half]], -1)
    last = op.strided_slice(x, [-1], [half], [2 * half])
    first = op.strided_slice(x, [-1], [0], [half])
    return op.concat([op.negative(last), first], -1)


QKV = [(2, 6, 4, 8)] * 3
INDEX = np.random.default_rng(0).integers(0, 8, (4, 6))
# By name: shapes of operands, the operator in Relax and in torch, dims of the operands on a mesh.
CASES = {
    "gelu": ([(4, 6)], op.nn.gelu, f.gelu, [("dp", None)]),
    "gelu_tanh": (
        [(4, 6)],
        op.nn.gelu_tanh,
        lambda x: f.gelu(x, approximate="tanh"),
        [(None, "dp")],
    ),
    "silu": ([(4, 6)], op.nn.silu, f.silu, [("dp", None)]),
    "leaky_relu": (
        [(4, 6)],
        lambda x: op.nn.leakyrelu(x, 0.1),
        lambda x: f.leaky_relu(x, 0.1),
        [("dp", None)],
    ),
    "softplus": ([(4, 6)], lambda x: op.nn.softplus(x, 2.0), lambda x: f.softplus(x, 2), None),
    "erf": ([(4, 6)], op.erf, torch.erf, [("dp", None)]),
    "square": ([(4, 6)], op.square, torch.square, [("dp", None)]),
    "rsqrt": ([(4, 6)], lambda x: op.rsqrt(op.exp(x)), lambda x: x.exp().rsqrt(), None),
    "layer_norm": (
        [(4, 6), (6,), (6,)],
        lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]),
        lambda x, g, b: f.layer_norm(x, (6,), g, b),
        [("dp", None), (None,), (None,)],
    ),
    "layer_norm over shards": (
        [(3, 6, 4), (6, 4), (6, 4)],
        lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[1, 2]),
        lambda x, g, b: f.layer_norm(x, (6, 4), g, b),
        [(None, "dp", None), ("dp", None), ("dp", None)],
    ),
    "rms_norm": (
        [(4, 6), (6,)],
        lambda x, g: op.nn.rms_norm(x, g, axes=[-1], epsilon=1e-6),
        lambda x, g: f.rms_norm(x, (6,), g, 1e-6),
        [("dp", None), (None,)],
    ),
    "attention": (QKV, op.nn.attention, attention, [(None, None, "dp", None)] * 3),
    "causal attention": (
        QKV,
        lambda q, k, v: op.nn.attention(q, k, v, scale=0.3, causal_mask="TopLeft"),
        lambda q, k, v: attention(q, k, v, is_causal=True, scale=0.3),
        [("dp", None, None, None)] * 3,
    ),
    "attention with a bias": (
        [*QKV, (2, 1, 6, 6)],
        lambda q, k, v, b: op.nn.attention(q, k, v, b),
        attention,
        [("dp", None, None, None)] * 4,
    ),
    "gather_elements": (
        [(4, 8)],
        lambda x: op.gather_elements(x, relax.const(INDEX), axis=1),
        lambda x: x.gather(1, torch.tensor(INDEX)),
        [("dp", None)],
    ),
    "embedding over the vocabulary": (
        [(8, 6)],
        lambda x: op.take(x, relax.const(INDEX), axis=0),
        lambda x: x[torch.tensor(INDEX)],
        [("dp", None)],
    ),
    "rotary halves": (
        [(4, 8)],
        lambda x: rotated(op, x),
        lambda x: rotated(torch, x),
        [("dp", None)],
    ),
    "tril, squeeze and flatten": (
        [(1, 4, 6)],
        lambda x: op.flatten(op.tril(op.squeeze(x, [0]), 1)),
        lambda x: x.squeeze(0).tril(1).flatten(),
        [(None, "dp", None)],
    ),
    "conv1d": (
        [(2, 4, 9), (6, 2, 3)],
        lambda x, w: op.nn.conv1d(x, w, strides=2, padding=1, groups=2),
        lambda x, w: f.conv1d(x, w, stride=2, padding=1, groups=2),
        [("dp", None, None), (None, None, None)],
    ),
    "conv2d": (
        [(2, 4, 9, 8), (6, 4, 3, 3)],
        lambda x, w: op.nn.conv2d(x, w, strides=(2, 1), padding=1),
        lambda x, w: f.conv2d(x, w, stride=(2, 1), padding=1),
        [("dp", None, None, None), (None, None, None, None)],
    ),
}


def gradients(name):
    """Of a weighted sum of the operator's result: those of torch, and those of a step of SGD."""
    shapes, operator, by_torch, dims = CASES[name]
    rng = np.random.default_rng(7)
    operands = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    tensors = [torch.tensor(each, requires_grad=True) for each in operands]
    wanted = by_torch(*tensors)
    factors = rng.standard_normal(tuple(wanted.shape)).astype("float32")
    (wanted * torch.tensor(factors)).sum().backward()

    builder = relax.BlockBuilder()
    names = [f"p{at}" for at in range(len(shapes))]
    params = [
        relax.Var(each, relax.TensorType(shape, "float32"))
        for each, shape in zip(names, shapes, strict=True)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit(operator(*params))
            product = op.multiply(result, relax.const(factors))
            loss = builder.emit_output(op.sum(product))
        builder.emit_func_output(loss)
    step = dx.train_step(builder.get(), params=names)
    plan = {f"state.params.{each}": dim for each, dim in zip(names, dims or [], strict=False)}
    mesh = dx.Mesh(**MESH)
    mod = dx.annotate(step, mesh, plan)
    with dx.Session(mesh) as session:
        train = dx.training.Trainer(session.load(dx.build(mod)))
        before = dict(zip(names, operands, strict=True))
        state, _ = train(dx.training.initial_state(step, before), {"learning_rate": 1.0})
        for each, dim in zip(names, dims or [], strict=False):
            assert state[f"state.params.{each}"].sharding.dims == dim
        found = [before[each] - state[f"state.params.{each}"].numpy() for each in names]
    return [each.grad.numpy() for each in tensors], found


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_torch(name):
    for right, found in zip(*gradients(name), strict=True):
        assert np.abs(found - right).max() < 3e-6 * max(1, np.abs(right).max())


def test_gradients_that_tvm_has_stay():
    before = tvm.ir.Op.get("relax.nn.silu").get_attr("FPrimalGradient")
    dx.training.gradients.install()
    assert before.same_as(tvm.ir.Op.get("relax.nn.silu").get_attr("FPrimalGradient"))


def test_what_has_no_gradient_is_named():
    for operator, message in [
        (lambda x: op.strided_slice(x, [0], [0], [8], [2]), "steps other than 1 has no gradient"),
        (
            lambda x: op.nn.attention(
                x, op.take(x, relax.const([0]), 2), op.take(x, relax.const([0]), 2)
            ),
            "grouped queries has no gradient",
        ),
        (
            lambda x: op.nn.conv2d(x, x, dilation=2, padding=3),
            "conv2d with dilation has no gradient",
        ),
        (lambda x: op.cumprod(x, 0), "relax.cumprod has no gradient"),
    ]:
        x = relax.Var("x", relax.TensorType((8, 2, 2, 4), "float32"))
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            with builder.dataflow():
                loss = builder.emit_output(op.sum(builder.emit(operator(x))))
            builder.emit_func_output(loss)
        with pytest.raises(ValueError, match=message):
            dx.train_step(builder.get(), params=["x"])
