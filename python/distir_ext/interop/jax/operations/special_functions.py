"""Translates gamma, zeta and Bessel functions, with JAX's values at their poles."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as relax_op

from distir_ext.interop.jax.arithmetic import Real, select
from distir_ext.interop.jax.known import Known
from distir_ext.interop.jax.stablehlo import Operation, dtype_of
from distir_ext.interop.jax.table import translates
from distir_ext.interop.jax.writer import Writer

# Of C. Lanczos, "A precision approximation of the gamma function" (1964), for g = 7, as P. Godfrey
# has computed them.
_G = 7.0
_BASE = 0.99999999999980993227684700473478
_LANCZOS = (
    *(676.520368121885098567009190444019, -1259.13921672240287047156078755283),
    *(771.3234287776530788486528258894, -176.61502916214059906584551354),
    *(12.507343278686904814458936853, -0.13857109526572011689554707),
    *(9.984369578019570859563e-6, 1.50563273514931155834e-7),
)

# (2k)! / B(2k) for k = 1, 2, ..: of the Euler-Maclaurin sum of the zeta function.
_BERNOULLI = (
    *(12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1307674368000.0 / 691, 74724249600.0),
    *(
        -10670622842880000.0 / 3617,
        5109094217170944000.0 / 43867,
        -802857662698291200000.0 / 174611,
    ),
)
_TERMS = 9  # that are summed before


def _real_function(name: str) -> Callable[[Callable[..., Real]], Callable[..., Real]]:
    """Enters a function of floats, which is computed of float32 where they are smaller."""

    def enter(function: Callable[..., Real]) -> Callable[..., Real]:
        def translated(writer: Writer, op: Operation) -> Known:
            dtype = dtype_of(op.results[0])
            wide = "float64" if dtype == "float64" else "float32"

            def build(*operands: relax.Expr) -> relax.Expr:
                given = [Real(writer.emit, each).astype(wide) for each in operands]
                return function(*given).astype(dtype).expr

            return writer.elementwise(op, build)

        translates(name)(translated)
        return function

    return enter


def _lanczos(z: Real) -> tuple[Real, Real]:
    """The sum of Lanczos for gamma(z + 1), and its derivative, for z of at least -0.5."""
    terms = [c / (z + k) for k, c in enumerate(_LANCZOS, 1)]
    slopes = [term / (z + k) for k, term in enumerate(terms, 1)]
    return functools.reduce(Real.__add__, terms) + _BASE, functools.reduce(Real.__add__, slopes)


def _log1p(x: Real) -> Real:
    """log(1 + x) for a positive x, by W. Kahan's form."""
    above = x + 1
    exact = above.function(relax_op.log) * (x / (above - 1))
    return select(above.equals(1), x, exact)


def _log_of_shift(z: Real) -> tuple[Real, Real]:
    """The sum z + g + 1/2, and its logarithm."""
    return z + (_G + 0.5), _log1p(z / (_G + 0.5)) + math.log(_G + 0.5)


@_real_function("chlo.lgamma")
def _lgamma(x: Real) -> Real:
    """The logarithm of the absolute value of gamma; below 1/2 by the reflection of the argument."""
    is_reflected = x < 0.5
    z = select(is_reflected, -x, x - 1)
    shifted, log = _log_of_shift(z)
    total, _ = _lanczos(z)
    log_gamma = (z + 0.5 - shifted / log) * log + total.function(relax_op.log)
    log_gamma = log_gamma + 0.5 * math.log(2 * math.pi)
    size = x.function(relax_op.abs)
    rest = size - size.function(relax_op.floor)
    rest = select(rest > 0.5, 1 - rest, rest)
    sine = (rest * math.pi).function(relax_op.sin).function(relax_op.log)
    reflected = select(rest.equals(0), math.inf, math.log(math.pi) - sine - log_gamma)
    found = select(is_reflected, reflected, log_gamma)
    return select(size.equals(math.inf), math.inf, found)


@_real_function("chlo.digamma")
def _digamma(x: Real) -> Real:
    """The derivative of the logarithm of gamma: NaN at 0, -1, -2, .."""
    is_reflected = x < 0.5
    z = select(is_reflected, -x, x - 1)
    shifted, log = _log_of_shift(z)
    total, slope = _lanczos(z)
    found = log - slope / total - _G / shifted
    # The tangent has the period 1: a small argument keeps its digits.
    rest = x + (0.5 - x).function(relax_op.floor)
    reflected = found - math.pi / (rest * math.pi).function(relax_op.tan)
    found = select(is_reflected, reflected, found)
    found = select(x.equals(math.inf), math.inf, found)
    return select((x <= 0) & x.is_whole(), math.nan, found)


def _zeta_sum(x: Real, q: Real) -> Real:
    """The sum of (q + k)^-x over all k, for x above 1 and positive q."""
    total = q**-x
    for k in range(1, _TERMS):
        total = total + (q + k) ** -x
    end = q + _TERMS
    power = end**-x
    total = total + power * end / (x - 1) + power * 0.5
    factor = x
    for k, divisor in enumerate(_BERNOULLI):
        power = power / end
        total = total + factor * power / divisor
        power = power / end
        factor = factor * (x + (2 * k + 1)) * (x + (2 * k + 2))
    return total


@_real_function("chlo.zeta")
def _zeta(x: Real, q: Real) -> Real:
    """Hurwitz' zeta function: infinite at x = 1 and poles, NaN where it has no value."""
    found = _zeta_sum(x, q)
    is_even = (x * 0.5).is_whole() & (x < math.inf)
    at_pole = select(is_even, math.inf, q * math.nan)
    found = select((q <= 0) & ~x.is_whole(), math.nan, found)
    found = select(x < 1, math.nan, found)
    found = select((q <= 0) & q.is_whole(), at_pole, found)
    return select(x.equals(1), math.inf, found)


@_real_function("chlo.polygamma")
def _polygamma(n: Real, x: Real) -> Real:
    """The n-th derivative of digamma."""
    order = n + 1
    sign = select((order * 0.5).is_whole(), 1.0, n * 0 - 1)
    size = _lgamma(order).function(relax_op.exp) * _zeta(order, x)
    found = select(n.equals(0), _digamma(x), sign * size)
    return select((n < 0) | ~n.is_whole(), math.nan, found)


@functools.cache
def _bessel_coefficients(is_near: bool, degree: int) -> tuple[float, ...]:
    """Polynomials that interpolate SciPy's i1e at Chebyshev's points.

    In t = x / 4 - 1, of i1e(x) / x for x up to 8; or in t = 16 / x - 1, of i1e(x) sqrt(x) above.
    """
    from scipy import special

    def near(t: Any) -> Any:
        x = 4 * (t + 1)
        return np.asarray(special.i1e(x) / x)

    def far(t: Any) -> Any:
        x = 16 / (t + 1)
        return np.asarray(special.i1e(x) * np.sqrt(x))

    found = np.polynomial.chebyshev.chebinterpolate(near if is_near else far, degree)
    return tuple(np.polynomial.chebyshev.cheb2poly(found)[::-1].tolist())


@_real_function("chlo.bessel_i1e")
def _bessel_i1e(x: Real) -> Real:
    """e^-|x| times the modified Bessel function of order 1."""
    size = x.function(relax_op.abs)
    degrees = (29, 25) if x.dtype == "float64" else (18, 9)
    near = (size * 0.25 - 1).polynomial(_bessel_coefficients(True, degrees[0])) * size
    far = (16 / size - 1).polynomial(_bessel_coefficients(False, degrees[1]))
    found = select(size <= 8, near, far / size.function(relax_op.sqrt))
    return select(x < 0, -found, found)
