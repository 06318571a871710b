"""Translates reductions, windows and sorts, whose regions are functions of scalars."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as relax_op

from distir_ext.interop.jax.folding import evaluate_block
from distir_ext.interop.jax.hlo_shardings import only_states, source_of
from distir_ext.interop.jax.known import Known, sizes_of
from distir_ext.interop.jax.operations.elementwise import combiner
from distir_ext.interop.jax.operations.regions import reduced_by_region, windows_by_region
from distir_ext.interop.jax.operations.shapes import padded, permuted, sliced
from distir_ext.interop.jax.sizes import Size
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    dtype_of,
    integer,
    integers,
    numpy_dtype,
    only_block,
    operations_of,
    pairs,
    rank_of,
    shape_of,
)
from distir_ext.interop.jax.table import translates
from distir_ext.interop.jax.writer import Writer

_REDUCTIONS: dict[str, Callable[..., relax.Expr]] = {
    "stablehlo.add": relax_op.sum,
    "stablehlo.maximum": relax_op.max,
    "stablehlo.minimum": relax_op.min,
    "stablehlo.multiply": relax_op.prod,
}
# Of booleans, which TVM does not reduce: any is a maximum, all a minimum.
_OF_BOOLEANS = {
    "stablehlo.or": relax_op.max,
    "stablehlo.maximum": relax_op.max,
    "stablehlo.add": relax_op.max,
    "stablehlo.and": relax_op.min,
    "stablehlo.minimum": relax_op.min,
    "stablehlo.multiply": relax_op.min,
}


def reducer_of(op: Operation) -> str:
    """The one operation that a region combines its two arguments by.

    Raises:
        UnsupportedError: The region does something else.
    """
    found = simple_reducer(op)
    if found is None:
        names = (each.name for each in _inner(op)[:-1])
        raise UnsupportedError(
            f"has a region that is not one operation of its two arguments, but {', '.join(names)}"
        )
    return found


def _inner(op: Operation) -> list[Operation]:
    # In a region with automatic axes, JAX states that no axis shards a scalar.
    return [each for each in operations_of(only_block(op)) if not only_states(each)]


def simple_reducer(op: Operation) -> str | None:
    """The one operation that a region combines its two arguments by; None if it does more."""
    inner, arguments = _inner(op), list(only_block(op).arguments)
    if len(inner) != 2 or len(arguments) != 2:
        return None
    operands = [source_of(each) for each in inner[0].operands]
    places = sorted(arguments.index(each) if each in arguments else -1 for each in operands)
    is_result = source_of(inner[1].operands[0]) == inner[0].results[0]
    return str(inner[0].name) if places == [0, 1] and is_result else None


def _is_neutral(name: str, start: Any, dtype: str) -> bool:
    if start is None:
        return False
    number = float(start)
    if name in ("stablehlo.add", "stablehlo.or"):
        return number == 0
    if name in ("stablehlo.multiply", "stablehlo.and"):
        return number == 1
    if dtype == "bool":
        return number == (0 if name == "stablehlo.maximum" else 1)
    sign = -1 if name == "stablehlo.maximum" else 1
    if dtype.startswith(("int", "uint")):
        info = np.iinfo(dtype)
        return number == (info.min if sign < 0 else info.max)
    return math.isinf(number) and number * sign > 0


@translates("stablehlo.reduce")
def _reduce(writer: Writer, op: Operation) -> Any:
    if len(op.results) != 1:
        found = _first_of_largest(writer, op)
        return reduced_by_region(writer, op) if found is None else found
    name, dtype = simple_reducer(op), dtype_of(op.operands[0])
    dims = integers(op, "dimensions")
    table = _OF_BOOLEANS if dtype == "bool" else _REDUCTIONS
    combine = None if name is None or name not in table else combiner(name, dtype)
    if name is None or combine is None:
        return reduced_by_region(writer, op)
    x = writer.full(op.operands[0])
    if not dims:
        made: relax.Expr = x
    elif dtype == "bool":
        wide = writer.emit(relax_op.astype(x, "int32"))
        made = writer.emit(relax_op.astype(writer.emit(table[name](wide, dims)), "bool"))
    else:
        made = writer.emit(table[name](x, dims))
    if _is_neutral(name, writer.constant(op.operands[1]), dtype):
        return made
    start = writer.known(op.operands[1])
    return writer.combine(combine, [made, start], sizes_of(made))


def _picks(block: Any, better: Callable[[Any, Any], bool]) -> bool:
    """Returns whether a region keeps the better (value, index) pair, the first of equal ones."""
    kind = numpy_dtype(dtype_of(block.arguments[0])).kind
    values = {"b": (0, 1), "u": (0, 1, 2)}.get(kind, (-1, 0, 2))
    for value, index, other, place in itertools.product(values, range(3), values, range(3)):
        found = evaluate_block(block, (value, index, other, place))
        wins = better(value, other) or (value == other and index <= place)
        wanted = (value, index) if wins else (other, place)
        if found is None or (float(found[0]), int(found[1])) != wanted:
            return False
    return True


def _first_of_largest(writer: Writer, op: Operation) -> list[Known] | None:
    """Argmax and argmin, which JAX writes as a reduction of values with their positions.

    Returns:
        None if it is something else.
    """
    dims = integers(op, "dimensions")
    positions = op.operands[1].owner
    is_positions = getattr(positions, "name", "") in ("stablehlo.iota", "stablehlo.dynamic_iota")
    block = only_block(op)
    if len(op.results) != 2 or len(dims) != 1 or not is_positions:
        return None
    if integer(positions, "iota_dimension") != dims[0]:
        return None
    for better, find, reduce in (
        (np.greater, relax_op.argmax, relax_op.max),
        (np.less, relax_op.argmin, relax_op.min),
    ):
        if _picks(block, better):
            x, dtype = writer.full(op.operands[0]), dtype_of(op.operands[0])
            if dtype == "bool":  # which TVM does not order
                x = writer.emit(relax_op.astype(x, "int8"))
            value, place = writer.emit(reduce(x, dims)), writer.emit(find(x, dims[0]))
            return [
                writer.emit(relax_op.astype(value, dtype)) if dtype == "bool" else value,
                writer.emit(relax_op.astype(place, dtype_of(op.results[1]))),
            ]
    return None


# ---- windows

_MOST_SLICES = 256  # of windows that no operator of Relax knows


@translates("stablehlo.reduce_window")
def _reduce_window(writer: Writer, op: Operation) -> Any:
    """Sums along a dimension, pooling, an operator on shifted slices of the tensor, or a kernel."""
    name = simple_reducer(op) if len(op.results) == 1 else None
    dtype, rank = dtype_of(op.operands[0]), rank_of(op.operands[0])
    start = writer.constant(op.operands[-1])
    if name is None or start is None:
        return windows_by_region(writer, op)
    ones = [1] * rank
    window = integers(op, "window_dimensions")
    strides = integers(op, "window_strides", ones)
    spread = integers(op, "window_dilations", ones)
    interior = [factor - 1 for factor in integers(op, "base_dilations", ones)]
    edges = pairs(op, "padding", rank)
    x = writer.full(op.operands[0])
    if _is_neutral(name, start, dtype) and not any(interior):
        if strides == spread == ones:
            made = _cumulative(writer, name, x, window, edges)
            if made is not None:
                return made
        made = _pool(writer, name, x, window, strides, spread, edges)
        if made is not None:
            return made
    combine = combiner(name, dtype)
    if combine is None or math.prod(window) > _MOST_SLICES:
        return windows_by_region(writer, op)
    x = padded(writer, x, edges, interior, start)
    result: relax.Expr | None = None
    extents = shape_of(op.results[0])
    places = [range(0, n * by, by) for n, by in zip(window, spread, strict=True)]
    for offsets in itertools.product(*places):
        limits = [
            offset + (extent - 1) * stride + 1
            for offset, extent, stride in zip(offsets, extents, strides, strict=True)
        ]
        part = sliced(writer, x, offsets, limits, strides)
        result = part if result is None else writer.emit(combine(result, part))
    assert result is not None
    return (
        result
        if _is_neutral(name, start, dtype)
        else writer.combine(combine, [result, writer.known(op.operands[1])], extents)
    )


def _cumulative(
    writer: Writer,
    name: str,
    x: relax.Expr,
    window: Sequence[int],
    edges: Sequence[tuple[int, int]],
) -> relax.Expr | None:
    """The sum of all elements up to each, or from each on; None if it is something else."""
    build = {"stablehlo.add": relax_op.cumsum, "stablehlo.multiply": relax_op.cumprod}.get(name)
    wide = [dim for dim, size in enumerate(window) if size > 1]
    if build is None or len(wide) != 1 or not _is_size(window[wide[0]], sizes_of(x)[wide[0]]):
        return None
    (dim,) = wide
    rest = window[dim] - 1
    if any(edge != (0, 0) for axis, edge in enumerate(edges) if axis != dim):
        return None
    if edges[dim] == (rest, 0):
        return writer.emit(build(x, dim))
    if edges[dim] == (0, rest):
        flipped = writer.emit(relax_op.flip(x, dim))
        return writer.emit(relax_op.flip(writer.emit(build(flipped, dim)), dim))
    return None


def _is_size(number: int, size: Size) -> bool:
    return isinstance(size, int) and number == size


_POOLS = {
    "stablehlo.maximum": {
        1: relax_op.nn.max_pool1d,
        2: relax_op.nn.max_pool2d,
        3: relax_op.nn.max_pool3d,
    },
    "stablehlo.add": {
        1: relax_op.nn.avg_pool1d,
        2: relax_op.nn.avg_pool2d,
        3: relax_op.nn.avg_pool3d,
    },
}


def _pool(
    writer: Writer,
    name: str,
    x: relax.Expr,
    window: Sequence[int],
    strides: Sequence[int],
    spread: Sequence[int],
    edges: Sequence[tuple[int, int]],
) -> relax.Expr | None:
    """A pooling over all but two dimensions; None if Relax has no such pooling."""
    rows = list(zip(window, strides, spread, edges, strict=True))
    spatial = [dim for dim, row in enumerate(rows) if row != (1, 1, 1, (0, 0))]
    missing = 2 - (len(rows) - len(spatial))
    if missing > 0:
        alone, none = [1] * missing, [(0, 0)] * missing
        made = _pool(
            writer,
            name,
            writer.emit(relax_op.expand_dims(x, list(range(missing)))),
            alone + list(window),
            alone + list(strides),
            alone + list(spread),
            none + list(edges),
        )
        dims = list(range(missing))
        return None if made is None else writer.emit(relax_op.squeeze(made, dims))
    others = [dim for dim in range(len(rows)) if dim not in spatial]
    build = _POOLS.get(name, {}).get(len(spatial))
    is_float = str(x.ty.dtype).startswith(("float", "bfloat"))
    fits = all(max(edges[dim]) < window[dim] and min(edges[dim]) >= 0 for dim in spatial)
    if build is None or len(others) != 2 or not is_float or not fits:
        return None
    order = others + spatial
    options: dict[str, Any] = {
        "pool_size": [window[dim] for dim in spatial],
        "strides": [strides[dim] for dim in spatial],
        "dilation": [spread[dim] for dim in spatial],
        "padding": [edges[dim][0] for dim in spatial] + [edges[dim][1] for dim in spatial],
    }
    made = permuted(writer, x, order)
    if name == "stablehlo.add":
        made = writer.emit(build(made, **options, count_include_pad=True))
        count = relax.const(math.prod(options["pool_size"]), str(x.ty.dtype))
        made = writer.emit(relax_op.multiply(made, count))
    else:
        made = writer.emit(build(made, **options))
    return permuted(writer, made, [order.index(dim) for dim in range(len(order))])


# ---- orders


_MOST_SAMPLES = 2**10  # of the values that a comparator is tried on


def directions_of(block: Any) -> list[bool] | None:
    """The keys that a comparator orders by, the first ones of what it is given.

    Returns:
        For each key, the most important one first, whether larger ones come first. None if the
        comparator does something else.
    """
    count = len(block.arguments) // 2
    descending: list[bool] = []
    for key in range(count):
        pair = [0] * (2 * count)
        pair[2 * key : 2 * key + 2] = 0, 1
        answers = [evaluate_block(block, each) for each in (pair, _swapped(pair))]
        if answers[0] is None or answers[1] is None:
            return None
        first, second = (bool(answer[0]) for answer in answers if answer)
        if first == second:
            break
        descending.append(second)
    samples = itertools.islice(itertools.product((0, 1), repeat=2 * count), _MOST_SAMPLES)
    for sample in samples if descending else []:
        found = evaluate_block(block, sample)
        if found is None or bool(found[0]) != _is_before(sample, descending):
            return None
    return descending or None


def _swapped(pairs_: Sequence[int]) -> list[int]:
    return [pairs_[index ^ 1] for index in range(len(pairs_))]


def _is_before(sample: Sequence[int], descending: Sequence[bool]) -> bool:
    for key, is_descending in enumerate(descending):
        one, other = sample[2 * key : 2 * key + 2]
        if one != other:
            return (one > other) == is_descending
    return False


@translates("stablehlo.sort")
def _sort(writer: Writer, op: Operation) -> list[Known]:
    """All tensors in the order of their first ones, the keys."""
    axis = integer(op, "dimension")
    descending = directions_of(only_block(op))
    if descending is None:
        raise UnsupportedError("by a region that is not < or > of the first tensors")
    tensors = [writer.full(each) for each in op.operands]
    if len(tensors) == 1:
        return [writer.emit(relax_op.sort(tensors[0], axis, descending[0]))]
    order: relax.Expr | None = None
    # By the least important key first; what is equal stays in its order.
    for key, is_descending in reversed(list(zip(tensors, descending, strict=False))):
        if order is not None:
            key = writer.emit(relax_op.gather_elements(key, order, axis))
        step = writer.emit(relax_op.argsort(key, axis, is_descending, "int32"))
        if order is not None:
            step = writer.emit(relax_op.gather_elements(order, step, axis))
        order = step
    return [writer.emit(relax_op.gather_elements(each, order, axis)) for each in tensors]
