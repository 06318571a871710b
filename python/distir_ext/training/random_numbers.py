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

from distir_ext.native.random_bits import random_bits, random_normal

Emit = Callable[[relax.Expr], relax.Expr]
"""Binds a value, and returns the variable."""

_FRACTION_BITS = 23


def folded_keys(
    emit: Emit, key: relax.Expr, upper: relax.Expr, lower: Sequence[int]
) -> list[relax.Expr]:
    """Keys made of another one and two words, each as ``jax.random.fold_in`` makes one.

    Args:
        emit: Binds values.
        key: A scalar of int64.
        upper: The first word, a scalar of int64.
        lower: The second words, from 0.
    """
    shifted = emit(op.multiply(upper, relax.const(1 << 32, "int64")))
    words = relax.const(np.asarray(lower, "int64"), "int64")
    keys = emit(random_bits(key, shifted, words, "int64"))
    # One tensor that is read by all of them: else each key would be part of the kernel that reads
    # it, and be computed for each element.
    return [emit(op.take(keys, relax.const(at, "int64"), axis=0)) for at in range(len(lower))]


def counters(emit: Emit, shape: Sequence[Any]) -> tuple[relax.Expr, relax.Expr]:
    """The position of each element in the whole tensor, as a sum of two tensors.

    Args:
        emit: Binds values.
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
    return rows, parts[-1]


def fractions(emit: Emit, key: relax.Expr, shape: Sequence[Any]) -> relax.Expr:
    """Numbers of ``0 ... 2 ** 23 - 1`` in uint32, all as likely."""
    shift = relax.const(np.uint32(32 - _FRACTION_BITS), "uint32")
    return emit(op.right_shift(emit(random_bits(key, *counters(emit, shape))), shift))


def kept(emit: Emit, key: relax.Expr, shape: Sequence[Any], probability: float) -> relax.Expr:
    """Booleans that are true with a probability, those of ``jax.random.bernoulli``."""
    least = math.ceil(float(np.float32(probability)) * 2**_FRACTION_BITS)
    return emit(op.less(fractions(emit, key, shape), relax.const(np.uint32(least), "uint32")))


def uniform_between(
    emit: Emit, key: relax.Expr, shape: Sequence[Any], low: float, high: float
) -> relax.Expr:
    """Numbers of float32 in ``[low, high)``, those of ``jax.random.uniform``."""
    lowest, span = np.float32(low), np.float32(np.float32(high) - np.float32(low))
    found = emit(op.astype(fractions(emit, key, shape), "float32"))
    found = emit(op.multiply(found, relax.const(2.0**-_FRACTION_BITS, "float32")))
    found = emit(op.multiply(found, relax.const(span, "float32")))
    found = emit(op.add(found, relax.const(lowest, "float32")))
    return emit(op.maximum(found, relax.const(lowest, "float32")))


def normal_between(
    emit: Emit, key: relax.Expr, shape: Sequence[Any], low: float, high: float
) -> relax.Expr:
    """Numbers of float32 with the normal distribution, between two bounds.

    They are those of ``jax.random.normal``, or of ``jax.random.truncated_normal``.

    Args:
        emit: Binds values.
        key: A scalar of int64.
        shape: Sizes.
        low: The least number, or minus infinity.
        high: The highest number, or infinity.
    """
    return emit(random_normal(key, *counters(emit, shape), low, high))
