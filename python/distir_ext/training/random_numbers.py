"""Random numbers as Relax operators, the same ones on every mesh.

Each number follows from a key and from its position in the whole tensor, as those of
``jax.random`` (``jax_threefry_partitionable``). So each device makes the numbers of its shard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from distir_ext.native.random_bits import random_bits

Emit = Callable[[relax.Expr], relax.Expr]
"""Binds a value, and returns the variable."""

_FRACTION_BITS = 23

# Of M. Giles, "Approximating the erfinv function" (2010), for -log(1 - x^2) below 5 and above.
_NEAR = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_FAR = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)


def folded_key(emit: Emit, key: relax.Expr, upper: relax.Expr, lower: int) -> relax.Expr:
    """A key made of another one and two words.

    Args:
        emit: Binds values.
        key: A scalar of int64.
        upper: The first word, a scalar of int64.
        lower: The second word, from 0.
    """
    shifted = emit(op.multiply(upper, relax.const(1 << 32, "int64")))
    return emit(random_bits(key, shifted, relax.const(lower, "int64"), "int64"))


def bits(emit: Emit, key: relax.Expr, shape: Sequence[Any]) -> relax.Expr:
    """Random uint32 of a shape, those of ``jax.random.bits(key, shape)``.

    Args:
        emit: Binds values.
        key: A scalar of int64.
        shape: Sizes, of which the first one may be symbolic.

    Raises:
        ValueError: Another size is symbolic.
    """
    sizes = [int(each) if isinstance(each, int | tvm.tirx.IntImm) else None for each in shape]
    if None in sizes[1:]:
        raise ValueError(
            f"random numbers of shape {list(shape)}: sizes other than the first one have to be "
            "known; relax.transform.BindSymbolicVars states them"
        )

    def along(dim: int) -> relax.Expr:
        found = op.arange(0, shape[dim], 1, "int64")
        behind = sizes[dim + 1 :]
        if behind:
            stride = relax.const(math.prod(each for each in behind if each is not None), "int64")
            found = op.multiply(
                emit(op.expand_dims(emit(found), [*range(1, 1 + len(behind))])), stride
            )
        return emit(found)

    parts = [along(dim) for dim in range(len(sizes))] or [relax.const(0, "int64")]
    rows = relax.const(0, "int64") if len(parts) == 1 else parts[0]
    for each in parts[1:-1]:
        rows = emit(op.add(rows, each))
    return emit(random_bits(key, rows, parts[-1]))


def fractions(emit: Emit, key: relax.Expr, shape: Sequence[Any]) -> relax.Expr:
    """Numbers of ``0 ... 2 ** 23 - 1`` in uint32, all as likely."""
    shift = relax.const(np.uint32(32 - _FRACTION_BITS), "uint32")
    return emit(op.right_shift(bits(emit, key, shape), shift))


def kept(emit: Emit, key: relax.Expr, shape: Sequence[Any], probability: float) -> relax.Expr:
    """Booleans that are true with a probability, those of ``jax.random.bernoulli``."""
    least = math.ceil(float(np.float32(probability)) * 2**_FRACTION_BITS)
    return emit(op.less(fractions(emit, key, shape), relax.const(np.uint32(least), "uint32")))


def uniform(
    emit: Emit, key: relax.Expr, shape: Sequence[Any], low: float, high: float
) -> relax.Expr:
    """Numbers of float32 in ``[low, high)``, those of ``jax.random.uniform``."""
    lowest, span = np.float32(low), np.float32(np.float32(high) - np.float32(low))
    found = emit(op.astype(fractions(emit, key, shape), "float32"))
    found = emit(op.multiply(found, relax.const(2.0**-_FRACTION_BITS, "float32")))
    found = emit(op.multiply(found, relax.const(span, "float32")))
    found = emit(op.add(found, relax.const(lowest, "float32")))
    return emit(op.maximum(found, relax.const(lowest, "float32")))


def normal(
    emit: Emit, key: relax.Expr, shape: Sequence[Any], low: float = -1.0, high: float = 1.0
) -> relax.Expr:
    """Numbers of float32 with the normal distribution, those of ``jax.random.normal``.

    Args:
        emit: Binds values.
        key: A scalar of int64.
        shape: Sizes.
        low: Value of the error function, divided by the root of 2, of the least number.
        high: Of the highest number.
    """
    lowest = max(np.float32(low), np.nextafter(np.float32(-1), np.float32(0)))
    found = erf_inv(emit, uniform(emit, key, shape, float(lowest), high))
    return emit(op.multiply(found, relax.const(np.float32(math.sqrt(2)), "float32")))


def erf_inv(emit: Emit, x: relax.Expr) -> relax.Expr:
    """The inverse of the error function, of numbers between -1 and 1, by Giles' polynomials."""

    def number(value: float) -> relax.Constant:
        return relax.const(value, str(x.ty.dtype))

    def polynomial(w: relax.Expr, coefficients: Sequence[float]) -> relax.Expr:
        found: relax.Expr = number(coefficients[0])
        for each in coefficients[1:]:
            found = emit(op.add(emit(op.multiply(found, w)), number(each)))
        return found

    below, above = emit(op.subtract(number(1), x)), emit(op.add(number(1), x))
    w = emit(op.negative(emit(op.log(emit(op.multiply(below, above))))))
    near = polynomial(emit(op.subtract(w, number(2.5))), _NEAR)
    root = emit(op.sqrt(emit(op.maximum(w, number(5)))))
    far = polynomial(emit(op.subtract(root, number(3))), _FAR)
    is_near = emit(op.less(w, number(5)))
    return emit(op.multiply(emit(op.where(is_near, near, far)), x))
