"""Writes float32 functions (exp, log, tanh, erf) as TIR expressions that LLVM vectorises.

Errors are at most two units in the last place. NaN stays NaN, zeros keep their sign.

Sources: S. L. Moshier, Cephes (expf, logf, tanhf); N. Juffa, erff with a maximum error below one
unit with fused multiplication (forums.developer.nvidia.com/t/47530).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import tirx

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


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """A polynomial by Horner's rule; the coefficient of the highest power is the first."""
    value = _float(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + _float(coefficient)
    return value


# ---- logarithm

_LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)

_LEAST_NORMAL = 2.0**-126


def log(x: Any) -> Any:
    """The natural logarithm: minus infinity of zeros, NaN of negative numbers."""
    return bind(x, _log)


def _log(x: Any) -> Any:
    is_subnormal = x < _float(_LEAST_NORMAL)
    normal = tirx.Select(is_subnormal, x * _float(2.0**_MANTISSA_BITS), x)
    more = tirx.Select(is_subnormal, tirx.const(_MANTISSA_BITS), tirx.const(0))
    value = bind(
        tirx.reinterpret("int32", normal),
        lambda bits: _log_of_bits(bits, _EXPONENT_BIAS - 1 + more),
    )
    value = tirx.Select(x == _float(0), _float(-math.inf), value)
    value = tirx.Select(x < _float(0), _float(math.nan), value)
    return tirx.Select(tirx.any(x == _float(math.inf), tirx.isnan(x)), x, value)


def _log_of_bits(bits: Any, bias: Any) -> Any:
    """Of a normal number: its mantissa is in [0.5, 1), or doubled if below the root of that."""
    mantissa = tirx.reinterpret(
        "float32", (bits & ((1 << _MANTISSA_BITS) - 1)) | ((_EXPONENT_BIAS - 1) << _MANTISSA_BITS)
    )

    def of_mantissa(m: Any) -> Any:
        is_low = m < _float(math.sqrt(0.5))
        rest = tirx.Select(is_low, m + m, m) - _float(1)
        exponent = (
            (bits >> _MANTISSA_BITS) - bias - tirx.Select(is_low, tirx.const(1), tirx.const(0))
        )
        return bind(
            exponent.astype("float32"),
            lambda power: bind(rest, lambda rest: _log_of_parts(rest, power)),
        )

    return bind(mantissa, of_mantissa)


def _log_of_parts(rest: Any, power: Any) -> Any:
    square = rest * rest
    value = _polynomial(rest, _LOG) * square * rest + power * _float(_LN2_LOW)
    value = value - _float(0.5) * square
    return rest + value + power * _float(_LN2_HIGH)


# ---- hyperbolic tangent

_TANH = (
    -5.70498872745e-3,
    2.06390887954e-2,
    -5.37397155531e-2,
    1.33314422036e-1,
    -3.33332819422e-1,
)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    return bind(x, _tanh)


def _tanh(x: Any) -> Any:
    small = x + x * bind(x * x, lambda square: _polynomial(square, _TANH) * square)
    return bind(
        tirx.Select(x < _float(0), -x, x),
        lambda size: tirx.Select(
            tirx.any(x == _float(0), tirx.isnan(x)),
            x,
            tirx.Select(
                size < _float(0.625),
                small,
                _with_sign_of(x, _float(1) - _float(2) / (exp(size + size) + _float(1))),
            ),
        ),
    )


def _with_sign_of(x: Any, value: Any) -> Any:
    return bind(value, lambda value: tirx.Select(x < _float(0), -value, value))


# ---- error function

_ERF_FROM = 0.927734375
_ERF = (
    -5.96761703e-4,
    4.99119423e-3,
    -2.67681349e-2,
    1.12819925e-1,
    -3.76125336e-1,
    1.28379166e-1,
)
# Of minus the logarithm of 1 - erf(x), divided by -x, and one less.
_ERFC = (
    -1.72853470e-5,
    3.83197126e-4,
    -3.88396438e-3,
    2.42546219e-2,
    -1.06777877e-1,
    -6.34846687e-1,
    -1.28717512e-1,
)


def erf(x: Any) -> Any:
    """The error function."""
    return bind(x, _erf)


def _erf(x: Any) -> Any:
    small = x + x * bind(x * x, lambda square: _polynomial(square, _ERF))
    return bind(
        tirx.Select(x < _float(0), -x, x),
        lambda size: tirx.Select(
            size > _float(_ERF_FROM),
            _with_sign_of(x, _float(1) - exp(_polynomial(size, _ERFC) * size - size)),
            small,
        ),
    )
