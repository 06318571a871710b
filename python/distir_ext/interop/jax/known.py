"""StableHLO values as Relax expressions: delayed broadcasts, known constants and sizes.

A value of StableHLO is a Relax expression here, or a ``Stretched`` one: StableHLO writes every
broadcast in full, Relax's operators broadcast by themselves.

    %3 = stablehlo.broadcast_in_dim %scale, dims = [] : (tensor<f32>) -> tensor<8x32xf32>
    %4 = stablehlo.multiply %3, %2 : tensor<8x32xf32>

is ``R.multiply(scale, lv2)``: %3 is only written out where an operator needs all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax

from distir_ext.interop.jax.sizes import Size, Sizes, shape_of_type
from distir_ext.interop.jax.stablehlo import (
    UnsupportedError,
    Value,
    numpy_dtype,
    open_tensor_of,
    tensor_of,
)

_LONGEST = 16  # of a vector that may be a shape


@dataclass(frozen=True)
class Stretched:
    """A value that is another one, broadcast.

    Attributes:
        base: Without dimensions, or with as many as the shape has, some of them of size 1.
        shape: Of the value.
    """

    base: relax.Expr
    shape: tuple[Size, ...]


Known: TypeAlias = relax.Expr | Stretched | Sizes


def relax_type(mlir_type: Any) -> relax.TensorType:
    """The tensor type of a type of StableHLO."""
    shape, dtype = tensor_of(mlir_type)
    return relax.TensorType(shape, dtype)


def result_type(mlir_types: Sequence[Any]) -> relax.Type:
    """Returns the type of a function with such results: a tensor, or a tuple of them."""
    types = [relax_type(each) for each in mlir_types]
    return types[0] if len(types) == 1 else relax.TupleType(types)


def is_short(known: Known) -> bool:
    """Returns whether a value is a constant that may be a shape."""
    base = known.base if isinstance(known, Stretched) else known
    shape = known.shape if isinstance(known, Stretched) else sizes_of(base)
    is_constant = isinstance(base, tvm.ir.GenericConst)
    return (
        is_constant
        and len(shape) <= 1
        and all(isinstance(size, int) and size <= _LONGEST for size in shape)
    )


def sizes_of(expr: relax.Expr) -> tuple[Size, ...]:
    """The shape of an expression."""
    return shape_of_type(expr.ty)


def dims_of(expr: relax.Expr) -> tuple[int, ...]:
    """The shape of an expression, of which all is known.

    Raises:
        UnsupportedError: A size is a variable.
    """
    shape = sizes_of(expr)
    if not all(isinstance(each, int) for each in shape):
        listed = ", ".join(map(str, shape))
        raise UnsupportedError(f"of the shape ({listed}), which is not static")
    return shape


def scalar_of(expr: relax.Expr) -> np.ndarray | None:
    """The number that a constant without dimensions is."""
    if isinstance(expr, tvm.ir.GenericConst) and not sizes_of(expr):
        return np.asarray(expr.value.numpy())
    return None


def constant_of(value: Any, dtype: str, shape: tuple[Size, ...]) -> Known:
    """A constant of this shape from its elements, or from one that all of them are."""
    array = np.asarray(value).astype(numpy_dtype(dtype))
    constant = relax.const(array, dtype)
    return constant if array.shape == shape else Stretched(constant, shape)


def check_type(value: Value, known: Known) -> None:
    """Checks a written value against its StableHLO type; an open size may be any.

    Raises:
        UnsupportedError: Relax's operator gives another.
    """
    if isinstance(known, Sizes):
        return
    shape, dtype = open_tensor_of(value.type)
    base = known.base if isinstance(known, Stretched) else known
    found = known.shape if isinstance(known, Stretched) else sizes_of(base)
    fits = len(found) == len(shape) and all(
        stated is None or (isinstance(size, int) and size == stated)
        for size, stated in zip(found, shape, strict=True)
    )
    if not fits or str(base.ty.dtype) != dtype:
        stated = tuple("?" if each is None else each for each in shape)
        raise UnsupportedError(
            f"gives {dtype} {stated}, but Relax's operators for it {base.ty.dtype} {found}"
        )
