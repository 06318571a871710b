"""Kernels for CPUs in place of TVM's: exponentials that LLVM vectorises, means that can be fused.

The exponential of float32 is 2 to a whole number, by its bits, times a polynomial of what is left,
at most half of ln 2 (S. L. Moshier, Cephes, expf). Its error is at most two units in the last
place. Other dtypes have the C library's.

A mean is a sum and a division as kernels of their own: FuseOps puts what leads to a sum into its
kernel (the squares of a norm), but nothing into a kernel of two loop nests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, te, tirx, topi

from distir_ext.compile.kernels.expressions import bind

# Above the first the result is infinite, below the second it is zero.
_OVERFLOW = 88.72283935546875
_UNDERFLOW = -103.97208404541016

_LOG2_E = 1.44269504088896341
# ln 2 in two parts; a whole number times the first is exact.
_LN2_HIGH = 0.693359375
_LN2_LOW = -2.12194440e-4
_POLYNOMIAL = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)

_EXPONENT_BIAS = 127
_MANTISSA_BITS = 23


def exp(x: Any) -> Any:
    """The exponential of a float32 expression; NaN stays NaN."""
    return bind(x, _exp)


def _exp(x: Any) -> Any:
    # Not the nearest number that has a result, which would be subnormal: computing with these takes
    # a hundred times as long, and masked scores are all far below.
    bounded = tirx.Select(x < _float(_UNDERFLOW), _float(0), tirx.min(x, _float(_OVERFLOW)))
    value = bind(bounded, _exp_within_bounds)
    value = tirx.Select(x > _float(_OVERFLOW), _float(float("inf")), value)
    value = tirx.Select(x < _float(_UNDERFLOW), _float(0), value)
    return tirx.Select(tirx.isnan(x), x, value)


def _exp_within_bounds(x: Any) -> Any:
    power = tirx.floor(x * _float(_LOG2_E) + _float(0.5))
    return bind(power, lambda power: _exp_by_power(x, power))


def _exp_by_power(x: Any, power: Any) -> Any:
    value = bind(x - power * _float(_LN2_HIGH) - power * _float(_LN2_LOW), _exp_of_rest)
    # The result may be up to 2 ** 128, which has no bits, and subnormal; its root is neither.
    return bind(
        power.astype("int32"),
        lambda whole: value * _power_of_two(whole >> 1) * _power_of_two(whole - (whole >> 1)),
    )


def _exp_of_rest(rest: Any) -> Any:
    value = _float(_POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        value = value * rest + _float(coefficient)
    return value * rest * rest + rest + _float(1)


def _power_of_two(exponent: Any) -> Any:
    return tirx.reinterpret("float32", (exponent + _EXPONENT_BIAS) << _MANTISSA_BITS)


def _float(value: float) -> Any:
    return tirx.const(value, "float32")


def _map(function: Callable[[Any], Any]) -> Callable[[te.Tensor], te.Tensor]:
    return lambda x: te.compute(x.shape, lambda *i: function(x(*i)), name="compute")


def _sigmoid(x: Any) -> Any:
    return _float(1) / (_float(1) + exp(-x))


def _softmax(x: te.Tensor, axis: int) -> te.Tensor:
    rank = len(x.shape)
    axis %= rank
    kept = [size for d, size in enumerate(x.shape) if d != axis]

    def reduced(reduce: Callable[..., Any], tensor: te.Tensor, name: str) -> te.Tensor:
        step = te.reduce_axis((0, tensor.shape[axis]), name="k")
        return te.compute(
            kept,
            lambda *i: reduce(tensor(*i[:axis], step, *i[axis:]), axis=step),
            name=name,
        )

    largest = reduced(te.max, x, "largest")
    powers = te.compute(
        x.shape, lambda *i: exp(x(*i) - largest(*i[:axis], *i[axis + 1 :])), name="powers"
    )
    total = reduced(te.sum, powers, "total")
    return te.compute(
        x.shape, lambda *i: powers(*i) / total(*i[:axis], *i[axis + 1 :]), name="softmax"
    )


def _mean(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    x, attrs = call.args[0], call.attrs
    shape = x.ty.shape
    sizes = [_static(size) for size in shape.values] if isinstance(shape, relax.ShapeExpr) else [0]
    axes = None if attrs.axis is None else [int(axis) for axis in attrs.axis]
    count = math.prod(sizes if axes is None else (sizes[axis] for axis in axes))
    if count == 0:
        return None
    total = builder.emit(
        builder.call_te(topi.sum, x, axes, bool(attrs.keepdims), primfunc_name_hint="sum")
    )
    divide = _map(lambda value: value / _float(count))
    return builder.call_te(divide, total, primfunc_name_hint="mean")


def _static(size: Any) -> int:
    """A size; 0 where it is symbolic."""
    return int(size) if isinstance(size, tirx.IntImm) else 0


def _legalize(
    name: str, make: Callable[[relax.BlockBuilder, relax.Call], Any]
) -> Callable[[relax.BlockBuilder, relax.Call], Any]:
    default = tvm.ir.Op.get(name).get_attr("FLegalize")

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        type_ = call.args[0].ty
        is_known = isinstance(type_, relax.TensorType) and type_.shape is not None
        if is_known and type_.dtype == "float32":
            made = make(builder, call)
            if made is not None:
                return made
        return default(builder, call)

    return legalize


LEGALIZATIONS = {
    "relax.mean": _mean,
    "relax.exp": lambda builder, call: builder.call_te(
        _map(exp), call.args[0], primfunc_name_hint="exp"
    ),
    "relax.sigmoid": lambda builder, call: builder.call_te(
        _map(_sigmoid), call.args[0], primfunc_name_hint="sigmoid"
    ),
    "relax.nn.silu": lambda builder, call: builder.call_te(
        _map(lambda x: x * _sigmoid(x)), call.args[0], primfunc_name_hint="silu"
    ),
    "relax.nn.softmax": lambda builder, call: builder.call_te(
        _softmax, call.args[0], int(call.attrs.axis), primfunc_name_hint="softmax"
    ),
}


def legalizations() -> dict[str, Any]:
    """For ``relax.transform.LegalizeOps``: operators that have kernels of their own here."""
    return {name: _legalize(name, make) for name, make in LEGALIZATIONS.items()}
