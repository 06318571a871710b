"""Tracks known values and bounds of integers in an imported function, such as indices.

``_lookups`` uses them to find lookups that stay within their tensor.

With the shape of ``x`` (4, 8):

    R.const([-1, 0])                                 the array [-1, 0]
    R.where(R.less(i, 0), R.add(i, 8), i)            the array [7, 0], for these i
    R.argsort(x, axis=1)                             from 0 to 7
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax, tirx

Size: TypeAlias = Any
"""An int, or an expression of sizes that are symbolic."""

Bounds: TypeAlias = tuple[Size, Size]
"""The least and the largest of some integers."""

# Larger arrays are not computed: no importer writes any out of smaller ones.
_MOST_ELEMENTS = 1 << 16


def as_size(size: Any) -> Size:
    """An int, where a size is static."""
    return int(size) if isinstance(size, int | tirx.IntImm) else size


class KnownIntegers:
    """Known integer values in a function whose bindings are given in order."""

    def __init__(self) -> None:
        self._values: dict[Any, relax.Expr] = {}

    def bind(self, var: relax.Var, value: relax.Expr) -> None:
        """Records the value that a variable is bound to."""
        self._values[var.__chandle__()] = value

    def definition(self, value: Any) -> Any:
        """Follows other names of a value to its definition; returns any other value unchanged."""
        while isinstance(value, relax.Var) and value.__chandle__() in self._values:
            value = self._values[value.__chandle__()]
        return value

    def array(self, value: Any) -> np.ndarray[Any, Any] | None:
        """The elements of a tensor, or the entries of a shape; None if they are not known."""
        value = self.definition(value)
        if isinstance(value, tvm.ir.GenericConst):
            found = value.value.numpy()
            return found if found.dtype.kind in "biu" else None
        if isinstance(value, relax.ShapeExpr):
            sizes = [as_size(each) for each in value.values]
            is_static = all(isinstance(each, int) for each in sizes)
            return np.array(sizes, "int64") if is_static else None
        if not isinstance(value, tvm.ir.Call):
            return None
        if _name(value) == "relax.shape_of":
            shape = getattr(value.args[0].ty, "shape", None)
            return None if shape is None else self.array(shape)
        compute = _COMPUTED.get(_name(value))
        if compute is None:
            return None
        arguments = [self.array(each) for each in value.args]
        known = [each for each in arguments if each is not None]
        if len(known) < len(arguments) or sum(each.size for each in known) > _MOST_ELEMENTS:
            return None
        found = np.asarray(compute(value.attrs, *known))
        return found if found.size <= _MOST_ELEMENTS else None

    def is_computed(self, value: Any) -> bool:
        """Returns whether a value is more than a rearranged or reshaped constant."""
        value = self.definition(value)
        return isinstance(value, tvm.ir.Call) and _name(value) not in _MOVED

    def bounds(self, value: Any) -> Bounds | None:
        """Between which numbers integers are; None if that is not known."""
        array = self.array(value)
        if array is not None:
            return (int(array.min()), int(array.max())) if array.size else (0, 0)
        value = self.definition(value)
        if isinstance(value, relax.TupleGetItem):
            made = self.definition(value.tuple_value)
            if isinstance(made, relax.Tuple):
                return self.bounds(made.fields[value.index])
            if isinstance(made, tvm.ir.Call) and _name(made) == "relax.topk" and value.index == 1:
                return _positions(made)
            return None
        if isinstance(value, relax.Tuple):
            return self._union(list(value.fields))
        if not isinstance(value, tvm.ir.Call):
            return None
        name = _name(value)
        if name in _MOVED:
            return self.bounds(value.args[0])
        if name == "relax.where":
            return self._union(list(value.args[1:]))
        if name == "relax.topk":
            return _positions(value)
        if name in ("relax.add", "relax.subtract"):
            return self._moved_by(value, -1 if name == "relax.subtract" else 1)
        if name in ("relax.floor_divide", "relax.floor_mod"):
            return self._divided(value, name == "relax.floor_mod")
        bound = _BOUNDED.get(name)
        return None if bound is None else bound(value)

    def _union(self, values: list[Any]) -> Bounds | None:
        found = [self.bounds(each) for each in values]
        if not found or any(each is None for each in found):
            return None
        low, high = found[0]  # type: ignore[misc]
        for each in found[1:]:
            assert each is not None
            low, high = _least(low, each[0]), _largest(high, each[1])
        return low, high

    def _moved_by(self, call: tvm.ir.Call, sign: int) -> Bounds | None:
        one, other = self.bounds(call.args[0]), self.bounds(call.args[1])
        if one is None or other is None:
            return None
        low, high = other if sign == 1 else (-other[1], -other[0])
        return one[0] + low, one[1] + high

    def _divided(self, call: tvm.ir.Call, is_rest: bool) -> Bounds | None:
        divisor = self.bounds(call.args[1])
        if divisor is None or divisor[0] != divisor[1] or not isinstance(divisor[0], int):
            return None
        number = divisor[0]
        if number < 1:
            return None
        if is_rest:
            return 0, number - 1
        bounds = self.bounds(call.args[0])
        return None if bounds is None else (bounds[0] // number, bounds[1] // number)


def _name(call: tvm.ir.Call) -> str:
    return str(getattr(call.op, "name", ""))


def _least(one: Size, other: Size) -> Size:
    both_static = isinstance(one, int) and isinstance(other, int)
    return min(one, other) if both_static else tirx.min(one, other)


def _largest(one: Size, other: Size) -> Size:
    both_static = isinstance(one, int) and isinstance(other, int)
    return max(one, other) if both_static else tirx.max(one, other)


def _positions(call: tvm.ir.Call) -> Bounds | None:
    """Returns the bounds of an operator that gives positions along an axis of its operand."""
    shape = getattr(call.args[0].ty, "shape", None)
    if shape is None:
        return None
    axis = call.attrs.axis
    if axis is not None:
        return 0, as_size(shape[int(axis)]) - 1
    count: Size = 1
    for each in shape:
        count = count * as_size(each)
    return 0, count - 1


def _counted(call: tvm.ir.Call) -> Bounds | None:
    start, end, step = (as_size(each) for each in call.args[:3])
    return (start, end - 1) if isinstance(step, int) and step > 0 else None


def _clipped(call: tvm.ir.Call) -> Bounds | None:
    low, high = (as_size(each) for each in call.args[1:3])
    return (
        None if isinstance(low, tirx.FloatImm) or isinstance(high, tirx.FloatImm) else (low, high)
    )


def _taken(attrs: Any, data: Any, indices: Any) -> Any:
    axis = None if attrs.axis is None else int(attrs.axis)
    size = data.size if axis is None else data.shape[axis]
    inside = np.where(indices < 0, indices + size, indices)
    return np.take(data, inside.clip(0, size - 1), axis=axis)


_COMPUTED: Mapping[str, Callable[..., Any]] = {
    "relax.shape_to_tensor": lambda _, shape: shape,
    "relax.take": _taken,
    "relax.add": lambda _, one, other: one + other,
    "relax.subtract": lambda _, one, other: one - other,
    "relax.multiply": lambda _, one, other: one * other,
    "relax.less": lambda _, one, other: one < other,
    "relax.where": lambda _, condition, one, other: np.where(condition, one, other),
    "relax.astype": lambda attrs, value: value.astype(str(attrs.dtype)),
    "relax.broadcast_to": lambda _, value, shape: np.broadcast_to(value, tuple(shape)),
    "relax.reshape": lambda _, value, shape: np.reshape(value, tuple(shape)),
    "relax.squeeze": lambda attrs, value: np.squeeze(
        value, None if attrs.axis is None else tuple(int(each) for each in attrs.axis)
    ),
}

# Operators whose elements are all among those of the first operand.
_MOVED = (
    "relax.astype",
    "relax.broadcast_to",
    "relax.concat",
    "relax.expand_dims",
    "relax.flatten",
    "relax.flip",
    "relax.gather_elements",
    "relax.memory.view",
    "relax.permute_dims",
    "relax.repeat",
    "relax.reshape",
    "relax.squeeze",
    "relax.stack",
    "relax.strided_slice",
    "relax.take",
    "relax.tile",
)

_BOUNDED: Mapping[str, Callable[[tvm.ir.Call], Bounds | None]] = {
    "relax.arange": _counted,
    "relax.argmax": _positions,
    "relax.argmin": _positions,
    "relax.argsort": _positions,
    "relax.clip": _clipped,
}
