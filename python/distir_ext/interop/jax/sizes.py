"""Computes with symbolic sizes during an import, and proves relations among them.

StableHLO computes them as tensors of integers and states shapes by these:

    %0 = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x4xf32>) -> tensor<i32>
    %1 = stablehlo.multiply %0, %c_2 : tensor<i32>
    %2 = stablehlo.reshape %1 : (tensor<i32>) -> tensor<1xi32>
    %3 = stablehlo.concatenate %2, %c, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %4 = stablehlo.dynamic_reshape %x, %3 : (tensor<?x4xf32>, tensor<2xi32>) -> tensor<?x2xf32>

Here they are expressions of Relax's symbolic shapes: %4 is ``R.reshape(x, (rows * 2, 2))``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tvm
from tvm import relax, sym, tirx

from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    dtype_of,
    enumerator,
    integer,
    integers,
    numpy_dtype,
    open_shape_of,
)

Size: TypeAlias = Any
"""An integer, or an expression of variables."""

_MOST = 2**40  # elements along a dimension


@dataclass(frozen=True)
class Sizes:
    """A scalar or a vector of sizes.

    Attributes:
        values: Its elements.
        dtype: Its dtype in StableHLO.
        shape: ``()`` or ``(len(values),)``.
    """

    values: tuple[Size, ...]
    dtype: str
    shape: tuple[int, ...]


class Algebra:
    """Sizes of a program, and relations among them.

    All variables are at least 1. One may be a multiple, as JAX has the size ``2*rows`` of an
    argument; Relax finds only variables in shapes of arguments, so that ``rows`` is half of it.
    """

    def __init__(self) -> None:
        self._analyzer = sym.Analyzer()
        self._parts: dict[tirx.Var, tuple[tirx.Var, int]] = {}

    def multiple(self, name: str, factor: int = 1) -> tirx.Var:
        """A new variable that is a multiple of ``factor``."""
        found = tirx.Var(name, "int64")
        at_least_one = tvm.ir.Range.from_min_extent(1, _MOST)
        if factor == 1:
            self._analyzer.bind(found, at_least_one)
            return found
        part = tirx.Var(f"{name}_part", "int64")
        self._analyzer.bind(part, at_least_one)
        self._analyzer.bind(found, part * factor)
        self._parts[part] = found, factor
        return found

    def like(self, variable: tirx.Var) -> tirx.Var:
        """A new variable that is a multiple of what another is."""
        factors = [factor for whole, factor in self._parts.values() if whole.same_as(variable)]
        return self.multiple(variable.name, *factors)

    def simplified(self, size: Size) -> Size:
        """A size, as an integer where it is one."""
        if isinstance(size, int):
            return size
        found = self._analyzer.simplify(size)
        for part in [each for each in variables_of([found]) if each in self._parts]:
            found = self._of_whole(found, part)
        return int(found) if isinstance(found, tirx.IntImm) else found

    def _of_whole(self, size: tirx.PrimExpr, part: tirx.Var) -> tirx.PrimExpr:
        """A size of what a variable is part of."""
        whole, factor = self._parts[part]
        linear = sym.detect_linear_equation(size, [part])
        if linear:
            coefficient, rest = linear
            if self.is_same(tirx.floormod(coefficient, factor), 0):
                count = self._analyzer.simplify(tirx.floordiv(coefficient, factor))
                return sym.Analyzer().simplify(whole * count + rest)
        return replaced(size, {part: tirx.floordiv(whole, factor)})

    def is_same(self, one: Size, other: Size) -> bool:
        """Returns whether two sizes are equal for all values of the variables."""
        if isinstance(one, int) and isinstance(other, int):
            return one == other
        return bool(self._analyzer.can_prove_equal(_expr(one), _expr(other)))

    def are_same(self, one: Sequence[Size], other: Sequence[Size]) -> bool:
        """Returns whether two shapes are equal for all values of the variables."""
        return len(one) == len(other) and all(map(self.is_same, one, other))

    def proves(self, condition: Any) -> bool:
        """Returns whether a condition holds for all values of the variables."""
        if isinstance(condition, bool):
            return condition
        return bool(self._analyzer.can_prove(condition))


def _expr(size: Size) -> tirx.PrimExpr:
    return tirx.IntImm("int64", size) if isinstance(size, int) else size


def shape_of_type(kind: relax.TensorType) -> tuple[Size, ...]:
    """The shape of a type.

    Raises:
        UnsupportedError: Relax did not find it.
    """
    if kind.shape is None:
        raise UnsupportedError("of a shape that Relax does not know")
    return tuple(int(each) if isinstance(each, tirx.IntImm) else each for each in kind.shape.values)


def variables_of(sizes: Iterable[Size]) -> dict[tirx.Var, None]:
    """The variables in sizes, in order."""
    found: dict[tirx.Var, None] = {}
    for each in sizes:
        if isinstance(each, tirx.Var):
            found[each] = None
        elif not isinstance(each, int | tirx.IntImm):
            found |= variables_of((each.a, each.b))
    return found


def replaced(size: Size, values: Mapping[tirx.Var, Size]) -> Size:
    """A size with other variables."""
    if isinstance(size, tirx.Var):
        return values.get(size, size)
    if isinstance(size, int | tirx.IntImm):
        return size
    return type(size)(replaced(size.a, values), replaced(size.b, values))


# ---- operations


def _divide(algebra: Algebra, one: Size, other: Size) -> Size | None:
    return tirx.floordiv(one, other) if _are_plain(algebra, one, other) else None


def _remainder(algebra: Algebra, one: Size, other: Size) -> Size | None:
    return tirx.floormod(one, other) if _are_plain(algebra, one, other) else None


def _are_plain(algebra: Algebra, one: Size, other: Size) -> bool:
    """Returns whether rounding down is rounding towards 0."""
    return algebra.proves(one >= 0) and algebra.proves(other > 0)


def _sign(algebra: Algebra, size: Size) -> Size | None:
    for sign, condition in ((1, size > 0), (-1, size < 0)):
        if algebra.proves(condition):
            return sign
    return None


_FUNCTIONS: dict[str, Callable[..., Size | None]] = {
    "stablehlo.add": lambda _, a, b: a + b,
    "stablehlo.clamp": lambda _, low, a, high: tirx.max(low, tirx.min(a, high)),
    "stablehlo.convert": lambda _, a: a,
    "stablehlo.divide": _divide,
    "stablehlo.maximum": lambda _, a, b: tirx.max(a, b),
    "stablehlo.minimum": lambda _, a, b: tirx.min(a, b),
    "stablehlo.multiply": lambda _, a, b: a * b,
    "stablehlo.negate": lambda _, a: -a,
    "stablehlo.remainder": _remainder,
    "stablehlo.sign": _sign,
    "stablehlo.subtract": lambda _, a, b: a - b,
}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "EQ": tirx.EQ,
    "NE": tirx.NE,
    "LT": tirx.LT,
    "LE": tirx.LE,
    "GT": tirx.GT,
    "GE": tirx.GE,
}


def fold_sizes(
    algebra: Algebra, op: Operation, operands: Sequence[tuple[Size, ...] | None]
) -> tuple[Size, ...] | None:
    """The integers that an operation computes of sizes; None if they are not known.

    Args:
        algebra: Of the program.
        op: An operation.
        operands: The elements of each operand; None where they are not known.
    """
    if any(each is None for each in operands) or len(op.results) != 1:
        return None
    if numpy_dtype(dtype_of(op.results[0])).kind not in "biu":
        return None
    shape = open_shape_of(op.results[0])
    if None in shape or len(shape) > 1:
        return None
    found = _folded(algebra, op, [each for each in operands if each is not None], shape)
    if found is None or any(each is None for each in found):
        return None
    return tuple(algebra.simplified(each) for each in found)


def _folded(
    algebra: Algebra, op: Operation, operands: list[tuple[Size, ...]], shape: tuple[Any, ...]
) -> Sequence[Size | None] | None:
    if op.name == "stablehlo.reshape":
        return operands[0]
    if op.name == "stablehlo.concatenate" and integer(op, "dimension") == 0:
        return [each for operand in operands for each in operand]
    if op.name == "stablehlo.broadcast_in_dim":
        return operands[0] * shape[0] if len(operands[0]) == 1 and shape else operands[0]
    if op.name == "stablehlo.slice":
        bounds = (integers(op, each)[0] for each in ("start_indices", "limit_indices", "strides"))
        return operands[0][slice(*bounds)]
    if op.name == "stablehlo.compare":
        compare = _COMPARISONS[enumerator(op, "comparison_direction")]
        return [
            _known(algebra, compare(_expr(a), _expr(b))) for a, b in zip(*operands, strict=True)
        ]
    if op.name == "stablehlo.select":
        condition, *values = operands
        if len(condition) != 1 or not isinstance(condition[0], int):
            return None
        return values[0] if condition[0] else values[1]
    function = _FUNCTIONS.get(op.name)
    if function is None:
        return None
    rows = [[_expr(each) for each in row] for row in zip(*operands, strict=True)]
    return [function(algebra, *row) for row in rows]


def _known(algebra: Algebra, condition: Any) -> int | None:
    found = algebra.simplified(condition)
    return found if isinstance(found, int) else None
