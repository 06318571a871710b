"""Defines gradients of operators for which TVM has none, with operators that shard.

``relax.transform.Gradient`` finds them as it finds TVM's own, by the attribute ``FPrimalGradient``
of the operator. Of operators that TVM has gradients of, those stay, except where they fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import op

Gradient = Callable[[relax.Var, relax.Call, relax.Var, relax.BlockBuilder], Sequence[relax.Expr]]
"""Of the result, the call, the gradient of the result and a builder, the gradients of operands."""

ATTRIBUTE = "FPrimalGradient"

_GRADIENTS: dict[str, Gradient] = {}
_BEFORE: dict[str, Any] = {}  # TVM's, of operators that have both

_OURS_FIRST = ("relax.take", "relax.nn.conv2d")
"""Operators whose gradient here goes before TVM's, which refuses more."""

_LOW = ("float16", "bfloat16")
_LEVEL = 11  # above that of TVM's registrations, 10


def install() -> None:
    """Registers the gradients of those operators that have none, and of those named above."""
    for name, gradient in _GRADIENTS.items():
        there = tvm.ir.Op.get(name).get_attr(ATTRIBUTE)
        if there is not None and name in _OURS_FIRST:
            _BEFORE.setdefault(name, there)
        if there is None or (name in _OURS_FIRST and _BEFORE[name].same_as(there)):
            tvm.ir.register_op_attr(name, ATTRIBUTE, gradient, _LEVEL)


def _of(name: str) -> Callable[[Gradient], Gradient]:
    def add(gradient: Gradient) -> Gradient:
        _GRADIENTS[f"relax.{name}"] = gradient
        return gradient

    return add


def scalar_like(value: float, like: relax.Expr) -> relax.Constant:
    """A scalar of the dtype of a tensor."""
    return relax.const(value, str(like.ty.dtype))


def _summed_to(gradient: relax.Expr, operand: relax.Expr) -> relax.Expr:
    """A gradient summed over the dimensions that its operand was broadcast along."""
    if tvm_ffi.structural_equal(gradient.ty.shape, operand.ty.shape):
        return gradient
    return op.collapse_sum_to(gradient, operand.ty.shape)


def _positive(axes: Sequence[Any], ndim: int) -> list[int]:
    return sorted(int(axis) % ndim for axis in axes)


def _no_gradient(value: relax.Expr) -> relax.Expr:
    return op.grad.no_grad(value)


def _widened(
    emit: Callable[[relax.Expr], relax.Var], values: Sequence[relax.Expr]
) -> list[relax.Expr]:
    """Values in float32, if they have fewer bits: kernels of normalisations compute in it."""
    if str(values[0].ty.dtype) not in _LOW:
        return list(values)
    return [emit(op.astype(value, "float32")) for value in values]


def _narrowed(value: relax.Expr, like: relax.Expr) -> relax.Expr:
    """A value of :func:`_widened` ones in the dtype of an operand."""
    dtype = str(like.ty.dtype)
    return op.astype(value, dtype) if dtype in _LOW else value


# Activations


@_of("nn.gelu")
def _gelu(
    result: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> Sequence[relax.Expr]:
    """``x Phi(x)`` has the derivative ``Phi(x) + x phi(x)``."""
    (x,) = call.args
    emit = builder.emit
    scaled = emit(op.multiply(x, scalar_like(math.sqrt(0.5), x)))
    below = emit(op.multiply(op.add(op.erf(scaled), scalar_like(1, x)), scalar_like(0.5, x)))
    density = emit(op.exp(op.negative(op.multiply(scaled, scaled))))
    density = emit(op.multiply(density, scalar_like(1 / math.sqrt(2 * math.pi), x)))
    slope = emit(op.add(below, op.multiply(x, density)))
    return [op.multiply(gradient, slope)]


@_of("nn.gelu_tanh")
def _gelu_tanh(
    result: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> Sequence[relax.Expr]:
    """``x (1 + t) / 2`` with ``t = tanh(a (x + b x ** 3))``."""
    (x,) = call.args
    emit = builder.emit
    a, b = math.sqrt(2 / math.pi), 0.044715
    square = emit(op.multiply(x, x))
    inner = emit(
        op.multiply(x, op.add(op.multiply(square, scalar_like(a * b, x)), scalar_like(a, x)))
    )
    t = emit(op.tanh(inner))
    inner_slope = emit(op.add(op.multiply(square, scalar_like(3 * a * b, x)), scalar_like(a, x)))
    t_slope = emit(op.multiply(op.subtract(scalar_like(1, x), op.multiply(t, t)), inner_slope))
    both = emit(op.add(op.add(t, scalar_like(1, x)), op.multiply(x, t_slope)))
    return [op.multiply(gradient, op.multiply(both, scalar_like(0.5, x)))]


@_of("nn.leakyrelu")
def _leaky_relu(
    result: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> Sequence[relax.Expr]:
    (x,) = call.args
    small = op.multiply(gradient, scalar_like(float(call.attrs.alpha), x))
    return [op.where(op.less(x, scalar_like(0, x)), builder.emit(small), gradient)]


@_of("nn.softplus")
def _softplus(
    result: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> Sequence[relax.Expr]:
    (x,) = call.args
    scaled = builder.emit(op.multiply(x, scalar_like(float(call.attrs.beta), x)))
    return [op.multiply(gradient, op.sigmoid(scaled))]


# Elementwise operators


@_of("erf")
def _erf(
    result: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> Sequence[relax.Expr]:
    (x,) = call.args
    density = builder.emit(op.exp(op.negative(op.multiply(x, x))))
    return [op.multiply(gradient, op.multiply(density, scalar_like(2 / math.sqrt(math.pi), x)))]


@_of("rsqrt")
def _rsqrt(
    result: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> Sequence[relax.Expr]:
    slope = op.divide(op.multiply(result, scalar_like(-0.5, result)), call.args[0])
    return [op.multiply(gradient, builder.emit(slope))]


@_of("square")
def _square(
    result: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> Sequence[relax.Expr]:
    (x,) = call.args
    return [op.multiply(gradient, op.multiply(x, scalar_like(2, x)))]


# Normalisations


@_of("nn.layer_norm")
def _layer_norm(
    result: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> Sequence[relax.Expr]:
    """``y = n gamma + beta`` of ``n = (x - mean) / deviation``.

    With ``d = gradient * gamma`` the gradient of x is
    ``(d - mean(d) - n mean(d n)) / deviation``.
    """
    emit = builder.emit
    axes = _positive(call.attrs.axes, call.args[0].ty.ndim)
    x, gamma, beta, got = _widened(emit, [*call.args[:3], gradient])
    inverse, n = _normalised(emit, x, axes, float(call.attrs.epsilon), centred=True)
    d = emit(op.multiply(got, gamma)) if call.attrs.scale else got
    found = emit(op.subtract(d, op.mean(d, axes, keepdims=True)))
    along = emit(op.mean(emit(op.multiply(d, n)), axes, keepdims=True))
    found = emit(op.multiply(op.subtract(found, op.multiply(n, along)), inverse))
    of_gamma = _summed_to(emit(op.multiply(got, n)), gamma)
    return [
        _narrowed(found, call.args[0]),
        _narrowed(of_gamma, call.args[1]) if call.attrs.scale else _no_gradient(call.args[1]),
        _narrowed(_summed_to(got, beta), call.args[2])
        if call.attrs.center
        else _no_gradient(call.args[2]),
    ]


@_of("nn.rms_norm")
def _rms_norm(
    result: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> Sequence[relax.Expr]:
    """``y = n weight`` of ``n = x / root``, where ``root`` is that of the mean of squares."""
    emit = builder.emit
    axes = _positive(call.attrs.axes, call.args[0].ty.ndim)
    x, weight, got = _widened(emit, [*call.args[:2], gradient])
    inverse, n = _normalised(emit, x, axes, float(call.attrs.epsilon), centred=False)
    d = emit(op.multiply(got, weight))
    along = emit(op.mean(emit(op.multiply(d, n)), axes, keepdims=True))
    found = emit(op.multiply(op.subtract(d, op.multiply(n, along)), inverse))
    of_weight = _summed_to(emit(op.multiply(got, n)), weight)
    return [_narrowed(found, call.args[0]), _narrowed(of_weight, call.args[1])]


def _normalised(
    emit: Callable[[relax.Expr], relax.Var],
    x: relax.Expr,
    axes: Sequence[int],
    epsilon: float,
    centred: bool,
) -> tuple[relax.Expr, relax.Expr]:
    """The inverse of the deviation (or of the root of the mean square), and x times it."""
    if centred:
        x = emit(op.subtract(x, op.mean(x, axes, keepdims=True)))
    square = emit(op.mean(emit(op.multiply(x, x)), axes, keepdims=True))
    inverse = emit(op.rsqrt(op.add(square, scalar_like(epsilon, x))))
    return inverse, emit(op.multiply(x, inverse))


# Attention


@_of("nn.attention")
def _attention(
    result: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> Sequence[relax.Expr]:
    return _attention_gradients(call, gradient, builder)


@_of("nn.attention_bias")
def _attention_bias(
    result: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> Sequence[relax.Expr]:
    return _attention_gradients(call, gradient, builder)


def _attention_gradients(
    call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> list[relax.Expr]:
    """Gradients of ``softmax(q k' scale + bias) v``, whose probabilities are computed again.

    Operands are (batch, sequence, heads, depth).
    """
    if call.attrs.window_size is not None:
        raise ValueError("relax.nn.attention with a window has no gradient; write it with a bias")
    emit = builder.emit
    query, key, value = call.args[:3]
    if not tvm_ffi.structural_equal(query.ty.shape[2], key.ty.shape[2]):
        raise ValueError(
            "relax.nn.attention of grouped queries has no gradient; repeat keys and values"
        )
    q, k, v, got = (
        emit(op.permute_dims(each, [0, 2, 1, 3])) for each in (query, key, value, gradient)
    )
    scale = call.attrs.scale
    factor = float(scale.value) if scale is not None else int(query.ty.shape[3]) ** -0.5
    scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
    scores = emit(op.multiply(scores, scalar_like(factor, scores)))
    if len(call.args) > 3:
        scores = emit(op.add(scores, call.args[3]))
    if call.attrs.causal_mask is not None:
        scores = _masked(emit, scores, str(call.attrs.causal_mask))
    p = emit(op.nn.softmax(scores, axis=-1))
    of_v = emit(op.matmul(emit(op.permute_dims(p, [0, 1, 3, 2])), got))
    of_p = emit(op.matmul(got, emit(op.permute_dims(v, [0, 1, 3, 2]))))
    along = emit(op.sum(emit(op.multiply(of_p, p)), [-1], keepdims=True))
    of_scores = emit(op.multiply(op.subtract(of_p, along), p))
    scaled = emit(op.multiply(of_scores, scalar_like(factor, of_scores)))
    of_q = emit(op.matmul(scaled, k))
    of_k = emit(op.matmul(emit(op.permute_dims(scaled, [0, 1, 3, 2])), q))
    found = [op.permute_dims(each, [0, 2, 1, 3]) for each in (of_q, of_k, of_v)]
    if len(call.args) > 3:
        found.append(_summed_to(of_scores, call.args[3]))
    return found


def _masked(emit: Callable[[relax.Expr], relax.Var], scores: relax.Expr, side: str) -> relax.Expr:
    """Scores without the keys behind a query, the first or the last of both being together."""
    rows, columns = scores.ty.shape[2], scores.ty.shape[3]
    shift = columns - rows if side.lower().startswith("bottomright") else 0
    row = emit(op.reshape(op.arange(0, rows, 1, "int64"), (rows, 1)))
    column = emit(op.reshape(op.arange(0, columns, 1, "int64"), (1, columns)))
    last = emit(op.add(row, relax.const(int(shift), "int64")))
    seen = emit(op.less_equal(column, last))
    return emit(
        op.where(seen, scores, scalar_like(-1e4 if "16" in str(scores.ty.dtype) else -1e30, scores))
    )


# Gathers and shapes


@_of("take")
def _take(
    result: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> Sequence[relax.Expr]:
    """TVM's with all indices in one dimension, as its kernel wants them."""
    data, indices = call.args
    axis = call.attrs.axis
    if isinstance(indices.ty, relax.TensorType) and indices.ty.ndim != 1 and axis is not None:
        at = int(axis) % data.ty.ndim
        sizes = list(data.ty.shape)
        emit = builder.emit
        number = math.prod(indices.ty.shape, start=tvm.tirx.IntImm("int64", 1))
        flat = emit(op.reshape(indices, (number,)))
        rows = emit(op.reshape(gradient, (*sizes[:at], number, *sizes[at + 1 :])))
        return [op.grad.take_backward(rows, data, flat, axis), _no_gradient(indices)]
    return list(_BEFORE["relax.take"](result, call, gradient, builder))


@_of("gather_elements")
def _gather_elements(
    result: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> Sequence[relax.Expr]:
    data, indices = call.args
    zeros = builder.emit(op.zeros(data.ty.shape, str(data.ty.dtype)))
    axis = int(call.attrs.axis)
    return [op.scatter_elements(zeros, indices, gradient, axis, "add"), _no_gradient(indices)]


@_of("squeeze")
def _squeeze(
    result: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> Sequence[relax.Expr]:
    return [op.reshape(gradient, call.args[0].ty.shape)]


@_of("flatten")
def _flatten(
    result: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> Sequence[relax.Expr]:
    return [op.reshape(gradient, call.args[0].ty.shape)]


@_of("tril")
def _tril(
    result: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> Sequence[relax.Expr]:
    return [op.tril(gradient, call.args[1]), *map(_no_gradient, call.args[1:])]


@_of("strided_slice")
def _strided_slice(
    result: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> Sequence[relax.Expr]:
    """Zeros around the gradient; of slices with steps of 1."""
    data, axes, begins = call.args[:3]
    ends = call.args[3]
    if len(call.args) > 4 and any(int(each.value) != 1 for each in call.args[4].fields):
        raise ValueError("relax.strided_slice with steps other than 1 has no gradient")
    found: relax.Expr = gradient
    dtype = str(data.ty.dtype)
    for axis, begin, end in zip(axes.fields, begins.fields, ends.fields, strict=True):
        dim = int(axis.value) % data.ty.ndim
        size = int(data.ty.shape[dim])
        first, last = (_position(int(each.value), size) for each in (begin, end))
        parts = []
        for width in (first, size - max(last, first)):
            shape = [*found.ty.shape]
            shape[dim] = width
            parts.append(builder.emit(op.zeros(shape, dtype)) if width else None)
        pieces = [each for each in (parts[0], found, parts[1]) if each is not None]
        if len(pieces) > 1:
            found = builder.emit(op.concat(pieces, dim))
    operands = [_no_gradient(each) for each in call.args[1:]]
    return [found, *operands]


def _position(value: int, size: int) -> int:
    return min(max(value + size if value < 0 else value, 0), size)


# Convolutions


@_of("nn.conv2d")
def _conv2d(
    result: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> Sequence[relax.Expr]:
    """TVM's, which takes no dilation into account."""
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    if layouts != ("NCHW", "OIHW", "NCHW"):
        raise ValueError(
            f"relax.nn.conv2d in the layouts {', '.join(layouts)} has no gradient, which NCHW and "
            "OIHW have"
        )
    if any(int(each) != 1 for each in attrs.dilation):
        raise ValueError("relax.nn.conv2d with dilation has no gradient")
    return list(_BEFORE["relax.nn.conv2d"](result, call, gradient, builder))


@_of("nn.conv1d")
def _conv1d(
    result: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> Sequence[relax.Expr]:
    """The gradients of a convolution whose first spatial dimension has one element."""
    attrs = call.attrs
    if str(attrs.data_layout) != "NCW" or str(attrs.kernel_layout) != "OIW":
        raise ValueError(
            f"relax.nn.conv1d in the layouts {attrs.data_layout} and {attrs.kernel_layout} has no "
            "gradient, which NCW and OIW have"
        )
    emit = builder.emit
    data, weight, got = (emit(op.expand_dims(each, 2)) for each in (*call.args, gradient))
    left, right = [int(each) for each in attrs.padding]
    flat = op.nn.conv2d(
        data,
        weight,
        strides=(1, int(attrs.strides[0])),
        padding=(0, left, 0, right),
        dilation=(1, int(attrs.dilation[0])),
        groups=int(attrs.groups),
    )
    flat = builder.normalize(flat)
    of_conv2d = tvm.ir.Op.get("relax.nn.conv2d").get_attr(ATTRIBUTE)
    found = of_conv2d(relax.Var("flat", flat.ty), flat, got, builder)
    return [op.squeeze(emit(each), [2]) for each in found]
