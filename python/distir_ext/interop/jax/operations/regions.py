"""Writes kernels for reductions and windows with arbitrary regions, also over several tensors.

StableHLO reduces elements in order, from initial values that the region leaves as they are. A
kernel starts with these where they are constants. Others are combined with the result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from distir_ext.interop.jax.folding import evaluate_block
from distir_ext.interop.jax.kernels import computed, elements
from distir_ext.interop.jax.known import Known, dims_of
from distir_ext.interop.jax.scalar_functions import Expression, ScalarFunction, constant
from distir_ext.interop.jax.sizes import Size
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    dtype_of,
    integers,
    numpy_dtype,
    only_block,
    pairs,
    rank_of,
    shape_of,
)
from distir_ext.interop.jax.table import translates
from distir_ext.interop.jax.writer import Writer

_SAMPLES = (0, 1, 3, -2.5)  # that tell whether an initial value changes anything

_Read = Callable[[te.Tensor, Sequence[Any]], tuple[Expression, Any]]
_Sizes = Callable[[Sequence[Size]], tuple[Sequence[Size], Sequence[Size]]]


class _Combination:
    """Combining function and initial values of a reduction.

    Args:
        writer: Of the function.
        op: The reduction: its operands are tensors, then as many initial values.
        count: Number of tensors.

    Attributes:
        tensors: Its tensors.
        starts: The initial values.
        function: Combines the values so far with the next.
    """

    def __init__(self, writer: Writer, op: Operation, count: int) -> None:
        operands = list(op.operands)
        self._writer = writer
        self._block = only_block(op)
        self.function = ScalarFunction(self._block, writer.program.functions)
        self.tensors = [writer.full(each) for each in operands[:count]]
        self.starts = [writer.full(each) for each in operands[count : 2 * count]]
        self.dtypes = [dtype_of(each) for each in operands[:count]]
        numbers = [writer.constant(each) for each in operands[count : 2 * count]]
        self._known = [
            None if number is None else constant(number, dtype)
            for number, dtype in zip(numbers, self.dtypes, strict=True)
        ]
        self.is_known = all(each is not None for each in self._known)

    def reduced(self, name: str, sizes: _Sizes, read: _Read) -> list[relax.Expr]:
        """Tensors of a shape: each element what it is of those along the axes.

        Args:
            name: Of the kernel.
            sizes: From the shape of the tensors in a kernel, which has its own variables, to that
                of the result, and how many elements there are along each axis.
            read: The element of a tensor at indices of the result and along the axes, and
                whether it is there; those that are not there count as the initial value.
        """
        if self.is_known:
            return computed(self._writer, name, self._from_starts(sizes, read), self.tensors)
        found = computed(self._writer, name, self._from_first(sizes, read), self.tensors)[1:]
        return self._with_starts(name, found)

    def leaves_starts(self) -> bool:
        """Returns whether the initial values are known to be neutral."""
        if not self.is_known:
            return False
        starts = [each.value for each in self._known if each is not None]
        numbers = [np.array(_SAMPLES).astype(numpy_dtype(dtype)) for dtype in self.dtypes]
        return all(
            evaluate_block(self._block, [*starts, *each]) == list(each)
            for each in itertools.product(*numbers)
        )

    def _from_starts(self, sizes: _Sizes, read: _Read) -> Any:
        count = len(self.tensors)

        def combine(so_far: Any, new: Any) -> Any:
            made = self.function(*_listed(so_far), *_listed(new))
            return made[0] if count == 1 else tuple(made)

        def make(*tensors: te.Tensor) -> Any:
            shape, axes = sizes(tensors[0].shape)
            along = [te.reduce_axis((0, size), name=f"k{i}") for i, size in enumerate(axes)]
            reduction = te.comm_reducer(
                combine, lambda *_: self._known[0] if count == 1 else tuple(self._known), "combine"
            )

            def element(*index: Any) -> Any:
                places = [each.var for each in along]
                found = [read(each, (*index, *places)) for each in tensors]
                parts = tuple(
                    value if inside is None else tirx.if_then_else(inside, value, start)
                    for (value, inside), start in zip(found, self._known, strict=True)
                )
                return reduction(parts[0] if count == 1 else parts, axis=along)

            return elements(shape, element, "combined")

        return make

    def _from_first(self, sizes: _Sizes, read: _Read) -> Any:
        """Combines without initial values; the first result says whether there was an element."""
        zeros = [constant(0, dtype) for dtype in self.dtypes]

        def combine(so_far: Any, new: Any) -> Any:
            is_old, *old = so_far
            is_new, *fresh = new
            both = self.function(*old, *fresh)
            values = [
                tirx.Select(is_old, tirx.Select(is_new, c, a), b)
                for a, b, c in zip(old, fresh, both, strict=True)
            ]
            return (tirx.any(is_old, is_new), *values)

        def make(*tensors: te.Tensor) -> Any:
            shape, axes = sizes(tensors[0].shape)
            along = [te.reduce_axis((0, size), name=f"k{i}") for i, size in enumerate(axes)]
            nothing = (constant(0, "bool"), *zeros)
            reduction = te.comm_reducer(combine, lambda *_: nothing, "combine")

            def element(*index: Any) -> Any:
                places = [each.var for each in along]
                found = [read(each, (*index, *places)) for each in tensors]
                inside = found[0][1]
                values = [
                    value if inside is None else tirx.if_then_else(inside, value, zero)
                    for (value, _), zero in zip(found, zeros, strict=True)
                ]
                there = constant(1, "bool") if inside is None else inside
                return reduction((there, *values), axis=along)

            return elements(shape, element, "combined")

        return make

    def _with_starts(self, name: str, found: Sequence[relax.Expr]) -> list[relax.Expr]:
        count = len(found)

        def make(*tensors: te.Tensor) -> Any:
            def element(*index: Any) -> Any:
                made = self.function(
                    *(each() for each in tensors[:count]),
                    *(each(*index) for each in tensors[count:]),
                )
                return made[0] if count == 1 else tuple(made)

            return elements(tensors[-1].shape, element, "started")

        return computed(self._writer, f"{name}_started", make, [*self.starts, *found])


def _listed(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def reduced_by_region(writer: Writer, op: Operation) -> list[Known]:
    """Tensors, reduced along dimensions by a region of any kind."""
    combination = _Combination(writer, op, len(op.results))
    dims, rank = integers(op, "dimensions"), rank_of(op.operands[0])
    kept = [dim for dim in range(rank) if dim not in dims]

    def read(tensor: te.Tensor, places: Sequence[Any]) -> tuple[Expression, None]:
        index = dict(zip([*kept, *dims], places, strict=True))
        return tensor(*(index[dim] for dim in range(rank))), None

    def sizes(shape: Sequence[Size]) -> tuple[list[Size], list[Size]]:
        return [shape[dim] for dim in kept], [shape[dim] for dim in dims]

    return list(combination.reduced("reduce", sizes, read))


# ---- windows


@dataclass(frozen=True)
class _Windows:
    """Positions of the elements of windows; all lists have an entry per dimension.

    Attributes:
        shape: Of the tensor.
        count: Number of windows.
        size: Of a window.
        strides: From a window to the next.
        spread: From an element of a window to the next.
        interior: From an element of the tensor to the next.
        edges: Elements around the tensor.
    """

    shape: Sequence[int]
    count: Sequence[int]
    size: Sequence[int]
    strides: Sequence[int]
    spread: Sequence[int]
    interior: Sequence[int]
    edges: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, op: Operation, shape: Sequence[int], count: Sequence[int]) -> _Windows:
        """The windows of an operation over a tensor of this shape."""
        ones = [1] * len(shape)
        return cls(
            shape,
            count,
            integers(op, "window_dimensions", ones),
            integers(op, "window_strides", ones),
            integers(op, "window_dilations", ones),
            integers(op, "base_dilations", ones),
            pairs(op, "padding", len(shape)),
        )

    def read(self, tensor: te.Tensor, places: Sequence[Any]) -> tuple[Expression, Any]:
        """The element at the window and place in it, and whether there is one, None if always."""
        rank = len(self.shape)
        index, conditions = [], []
        for dim, (window, place) in enumerate(zip(places[:rank], places[rank:], strict=True)):
            low, inside, step = self.edges[dim][0], self.shape[dim], self.interior[dim]
            at = window * self.strides[dim] - low
            if self.size[dim] > 1:
                at += place * self.spread[dim]
            last = (self.count[dim] - 1) * self.strides[dim]
            last += (self.size[dim] - 1) * self.spread[dim] - low
            if low > 0:
                conditions.append(at >= 0)
            if last > (inside - 1) * step:
                conditions.append(at <= (inside - 1) * step)
            if step > 1:
                conditions.append(tirx.floormod(at, step) == 0)
            index.append(tirx.floordiv(at, step) if step > 1 else at)
        return tensor(*index), tirx.all(*conditions) if conditions else None

    def scanned(self) -> tuple[int, bool] | None:
        """The dimension of which each window has all elements up to its own, or all from it on.

        Returns:
            The dimension, and whether windows begin with their own element; None if there is no
            such dimension.
        """
        wide = [dim for dim, size in enumerate(self.size) if size > 1]
        plain = all(each == 1 for each in (*self.strides, *self.spread, *self.interior))
        if len(wide) != 1 or not plain or self.size[wide[0]] != self.shape[wide[0]]:
            return None
        rest = self.size[wide[0]] - 1
        others = [edge for dim, edge in enumerate(self.edges) if dim != wide[0]]
        is_from, edge = self.edges[wide[0]] == (0, rest), self.edges[wide[0]]
        if any(each != (0, 0) for each in others) or edge not in ((rest, 0), (0, rest)):
            return None
        return wide[0], is_from


def windows_by_region(writer: Writer, op: Operation) -> list[Known]:
    """Tensors, reduced in windows by a region of any kind."""
    combination = _Combination(writer, op, len(op.results))
    windows = _Windows.of(op, dims_of(combination.tensors[0]), shape_of(op.results[0]))
    along = windows.scanned()
    if along is not None and combination.leaves_starts():
        return list(_scanned(writer, combination, windows.shape, *along))
    return list(
        combination.reduced("reduce_window", lambda _: (windows.count, windows.size), windows.read)
    )


def _scanned(
    writer: Writer, combination: _Combination, shape: Sequence[int], dim: int, is_from: bool
) -> list[relax.Expr]:
    """All up to each element, or all from it on, in as many steps as the extent has digits."""
    found, step = combination.tensors, 1
    while step < shape[dim]:
        found = computed(writer, "scan", _step(combination, shape, dim, step, is_from), found)
        step *= 2
    return found


def _step(
    combination: _Combination, shape: Sequence[int], dim: int, step: int, is_from: bool
) -> Any:
    """Each element with that so many places before or behind it."""

    def make(*tensors: te.Tensor) -> Any:
        def element(*index: Any) -> Any:
            other = list(index)
            other[dim] = index[dim] + step if is_from else index[dim] - step
            has_other = other[dim] < shape[dim] if is_from else other[dim] >= 0
            own = [each(*index) for each in tensors]
            theirs = [
                tirx.if_then_else(has_other, each(*other), mine)
                for each, mine in zip(tensors, own, strict=True)
            ]
            both = combination.function(*(own + theirs if is_from else theirs + own))
            made = [tirx.Select(has_other, a, b) for a, b in zip(both, own, strict=True)]
            return made[0] if len(made) == 1 else tuple(made)

        return elements(shape, element, "scanned")

    return make


# ---- the gradient of pooling


@translates("stablehlo.select_and_scatter")
def _select_and_scatter(writer: Writer, op: Operation) -> Known:
    """Each window selects an element, to which its source goes: the gradient of max pooling.

    A kernel finds the place of the selected element in each window, another for each element
    combines the sources of those windows that have selected it.
    """
    x, source = (writer.full(each) for each in list(op.operands)[:2])
    functions = writer.program.functions
    select = ScalarFunction(only_block(op, 0), functions)
    combine = ScalarFunction(only_block(op, 1), functions)
    windows = _Windows.of(op, dims_of(x), dims_of(source))
    dtype = dtype_of(op.operands[0])
    none = constant(-1, "int32")

    def better(so_far: Any, new: Any) -> Any:
        (old_place, old), (place, value) = so_far, new
        (keeps,) = select(old, value)
        is_kept = tirx.any(place < 0, tirx.all(old_place >= 0, keeps))
        return (tirx.Select(is_kept, old_place, place), tirx.Select(is_kept, old, value))

    def find(tensor: te.Tensor) -> Any:
        along = [te.reduce_axis((0, size), name=f"k{i}") for i, size in enumerate(windows.size)]
        first = te.comm_reducer(better, lambda *_: (none, constant(0, dtype)), "better")

        def element(*index: Any) -> Any:
            places = [each.var for each in along]
            value, inside = windows.read(tensor, [*index, *places])
            place = _place(places, windows.size)
            if inside is not None:
                value = tirx.if_then_else(inside, value, constant(0, dtype))
                place = tirx.Select(inside, place, none)
            return first((place, value), axis=along)

        return elements(windows.count, element, "selected")

    selected = computed(writer, "select_in_windows", find, [x])[0]
    number = writer.constant(op.operands[2])
    if number is None:
        raise UnsupportedError("that starts with a value that is no constant")
    neutral = constant(number, dtype)

    def spread(chosen: te.Tensor, sources: te.Tensor) -> Any:
        along = [te.reduce_axis((0, size), name=f"k{i}") for i, size in enumerate(windows.size)]
        total = te.comm_reducer(lambda a, b: combine(a, b)[0], lambda _: neutral, "combine")

        def element(*index: Any) -> Any:
            places = [each.var for each in along]
            window, conditions = _window_with(windows, index, places)
            is_here = chosen(*window) == _place(places, windows.size)
            for condition in reversed([tirx.all(*conditions)] if conditions else []):
                is_here = tirx.if_then_else(condition, is_here, constant(0, "bool"))
            return total(tirx.if_then_else(is_here, sources(*window), neutral), axis=along)

        return elements(windows.shape, element, "scattered")

    return computed(writer, "scatter_of_windows", spread, [selected, source])[0]


def _place(places: Sequence[Any], size: Sequence[int]) -> Expression:
    """The number of an element in its window."""
    number: Expression = constant(0, "int32")
    for place, extent in zip(places, size, strict=True):
        number = number * extent + place.astype("int32")
    return number


def _window_with(
    windows: _Windows, index: Sequence[Any], places: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The window that has an element of the tensor at a place, and when there is one."""
    found, conditions = [], []
    for dim, (at, place) in enumerate(zip(index, places, strict=True)):
        low, stride, count = windows.edges[dim][0], windows.strides[dim], windows.count[dim]
        if windows.size[dim] == 1 and (stride, low) == (1, 0) and count == windows.shape[dim]:
            found.append(at)
            continue
        begin = at + low - place
        conditions += [begin >= 0, begin <= (count - 1) * stride]
        if stride > 1:
            conditions.append(tirx.floormod(begin, stride) == 0)
        found.append(tirx.floordiv(begin, stride) if stride > 1 else begin)
    return found, conditions
