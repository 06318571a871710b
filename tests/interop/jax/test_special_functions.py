"""Gamma, zeta and Bessel functions, next numbers and upper halves of products, against JAX."""

import ml_dtypes
import numpy as np
import pytest
from tests.interop.jax.against_jax import check

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
jnp, lax, special = jax.numpy, jax.lax, jax.scipy.special

POINTS = np.array(
    [
        *(0, -0.0, 1, 2, 3, 0.5, -0.5, 1.5, -1.5, -1, -2, -7, np.nan, np.inf, -np.inf),
        *(1e-20, -1e-20, 1e10, -1e10, 7.9, 8, 8.1, 100, -100.5, 0.1, -0.1, 25, 1e30, 170.3),
        *(0.9999, 1.0001, 2.0001, 4.7, -4.7, 6.02, -9.9),
    ],
    "float32",
).reshape(4, 9)
ORDERS = np.array([0, 1, 2, 3, 1.5, 2.5, 4, -1, 0.5, np.nan, np.inf, 10], "float32")
PLACES = np.array([0, 1, -1, -2, 0.5, -0.5, -1.5, 2.25, np.nan, np.inf, -np.inf, 30], "float32")


def pairs(*values):
    return [each.reshape(4, -1).copy() for each in np.meshgrid(*values)]


@pytest.mark.large
def test_values_and_poles():
    def functions(x, half, n, q):
        return (
            *(lax.lgamma(x), lax.digamma(x), lax.bessel_i1e(x), lax.lgamma(half)),
            *(lax.zeta(n, q), lax.polygamma(n, q)),
        )

    half = POINTS.astype(ml_dtypes.bfloat16)
    check(functions, POINTS, half, *pairs(ORDERS, PLACES), tolerance=3e-6)


@pytest.mark.large
def test_what_is_made_of_them():
    rng = np.random.default_rng(0)
    x, y = (rng.uniform(0.2, 5, (4, 6)).astype("float32") for _ in range(2))

    def functions(x, y):
        return (
            *(special.gamma(x), special.betaln(x, y), special.i1(x)),
            jax.grad(lambda x: special.digamma(x).sum())(x),
        )

    check(functions, x, y, tolerance=2e-5)


def test_doubles():
    with jax.enable_x64(True):
        x = POINTS.astype("float64") * 0.37
        check(
            lambda x: (
                lax.lgamma(x),
                lax.digamma(x),
                lax.bessel_i1e(x),
                lax.polygamma(x * 0 + 2, x),
            ),
            x,
            tolerance=1e-11,
        )


def test_next_numbers_and_upper_halves():
    for dtype in ("float32", ml_dtypes.bfloat16, "float16"):
        least = ml_dtypes.finfo(dtype).smallest_normal
        values = np.array([0, -0.0, 1, -1, np.inf, -np.inf, 2.5, 0.1, least], dtype)
        x, y = (each.reshape(9, 9).copy() for each in np.meshgrid(values, values))
        check(lax.nextafter, x, y, exact=True)
    nan = np.array([[np.nan, 1], [2, np.nan]], "float32")
    check(lax.nextafter, nan, nan[::-1].copy())
    with jax.enable_x64(True):
        for dtype in ("int8", "uint16", "int32", "uint32", "int64", "uint64"):
            info = np.iinfo(dtype)
            values = np.array([0, 1, 3, 77, info.max, info.min, info.max // 2, info.min + 1], dtype)
            check(lax.mulhi, *pairs(values, values), exact=True)
