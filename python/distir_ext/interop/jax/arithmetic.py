"""Emits Relax operators for formulas that are written with Python's operators.

    x = Real(writer, expr)
    y = select(x < 0, -x, (1 + x).log())

emits Relax's operators: ``R.less``, ``R.negative``, ``R.add``, ``R.log`` and ``R.where``. A
function of known numbers is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as relax_op

from distir_ext.interop.jax.known import scalar_of
from distir_ext.interop.jax.stablehlo import numpy_dtype

_OF_NUMBERS: dict[Any, Callable[..., Any]] = {
    relax_op.abs: np.abs,
    relax_op.add: np.add,
    relax_op.divide: np.divide,
    relax_op.equal: np.equal,
    relax_op.exp: np.exp,
    relax_op.floor: np.floor,
    relax_op.greater: np.greater,
    relax_op.less: np.less,
    relax_op.less_equal: np.less_equal,
    relax_op.log: np.log,
    relax_op.logical_and: np.logical_and,
    relax_op.logical_not: np.logical_not,
    relax_op.logical_or: np.logical_or,
    relax_op.multiply: np.multiply,
    relax_op.negative: np.negative,
    relax_op.power: np.power,
    relax_op.sin: np.sin,
    relax_op.sqrt: np.sqrt,
    relax_op.subtract: np.subtract,
    relax_op.tan: np.tan,
    relax_op.where: np.where,
}


class Real:
    """A tensor of floats, or of the booleans that a comparison gives.

    Args:
        emit: Binds an expression to a variable.
        expr: The tensor.
    """

    def __init__(self, emit: Callable[[relax.Expr], relax.Var], expr: relax.Expr) -> None:
        self.emit = emit
        self.expr = expr

    @property
    def dtype(self) -> str:
        """The dtype of its elements."""
        return str(self.expr.ty.dtype)

    def number(self, value: float) -> relax.Expr:
        """A constant of its dtype."""
        return relax.const(np.asarray(value).astype(numpy_dtype(self.dtype)), self.dtype)

    def _made(self, build: Callable[..., relax.Expr], *others: Any) -> Real:
        operands = [each.expr if isinstance(each, Real) else self.number(each) for each in others]
        return Real(self.emit, _applied(self.emit, build, [self.expr, *operands]))

    def _from(self, other: Any) -> Real:
        return Real(self.emit, self.number(other))

    def __add__(self, other: Any) -> Real:
        return self._made(relax_op.add, other)

    def __radd__(self, other: Any) -> Real:
        return self.__add__(other)

    def __sub__(self, other: Any) -> Real:
        return self._made(relax_op.subtract, other)

    def __rsub__(self, other: Any) -> Real:
        return self._from(other) - self

    def __mul__(self, other: Any) -> Real:
        return self._made(relax_op.multiply, other)

    def __rmul__(self, other: Any) -> Real:
        return self.__mul__(other)

    def __truediv__(self, other: Any) -> Real:
        return self._made(relax_op.divide, other)

    def __rtruediv__(self, other: Any) -> Real:
        return self._from(other) / self

    def __pow__(self, other: Any) -> Real:
        return self._made(relax_op.power, other)

    def __neg__(self) -> Real:
        return self._made(relax_op.negative)

    def __lt__(self, other: Any) -> Real:
        return self._made(relax_op.less, other)

    def __le__(self, other: Any) -> Real:
        return self._made(relax_op.less_equal, other)

    def __gt__(self, other: Any) -> Real:
        return self._made(relax_op.greater, other)

    def __and__(self, other: Real) -> Real:
        return self._made(relax_op.logical_and, other)

    def __or__(self, other: Real) -> Real:
        return self._made(relax_op.logical_or, other)

    def __invert__(self) -> Real:
        return self._made(relax_op.logical_not)

    def equals(self, other: Any) -> Real:
        """Computes where it equals another."""
        return self._made(relax_op.equal, other)

    def function(self, build: Callable[..., relax.Expr]) -> Real:
        """A function of each element."""
        return self._made(build)

    def is_whole(self) -> Real:
        """Computes where it is an integer, or an infinity."""
        return self.equals(self.function(relax_op.floor))

    def astype(self, dtype: str) -> Real:
        """Casts it; itself where it has this dtype."""
        if dtype == self.dtype:
            return self
        number = None if self.expr.ty.ndim else scalar_of(self.expr)
        if number is not None:
            return Real(self.emit, relax.const(number.astype(numpy_dtype(dtype)), dtype))
        return self._made(lambda x: relax_op.astype(x, dtype))

    def polynomial(self, coefficients: Sequence[float]) -> Real:
        """The polynomial of it with these coefficients, highest power first, by Horner's scheme."""
        found = self * coefficients[0] + coefficients[1]
        for each in coefficients[2:]:
            found = found * self + each
        return found


def _applied(
    emit: Callable[[relax.Expr], relax.Var],
    build: Callable[..., relax.Expr],
    operands: Sequence[relax.Expr],
) -> relax.Expr:
    """An operator of some operands; a constant where all of them are single numbers."""
    numbers = [None if each.ty.ndim else scalar_of(each) for each in operands]
    if build not in _OF_NUMBERS or any(each is None for each in numbers):
        return emit(build(*operands))
    with np.errstate(all="ignore"):
        found = np.asarray(_OF_NUMBERS[build](*numbers))
    return relax.const(found, str(found.dtype))


def select(condition: Real, first: Any, second: Any) -> Real:
    """Chooses the first where a condition holds, else the second; one of them may be a number."""
    like = first if isinstance(first, Real) else second
    branches = [
        each.expr if isinstance(each, Real) else like.number(each) for each in (first, second)
    ]
    return Real(like.emit, _applied(like.emit, relax_op.where, [condition.expr, *branches]))
