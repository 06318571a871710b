"""Translates StableHLO's scatter, which writes at the positions in a tensor of indices.

As for gather, there are forms that keep dimensions apart, and one on all elements in a row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxlib.mlir.dialects import stablehlo
from tvm import relax
from tvm.relax import op as relax_op

from distir_ext.interop.jax.hlo_shardings import source_of
from distir_ext.interop.jax.known import Known, sizes_of
from distir_ext.interop.jax.operations.lookup import (
    IndexDims,
    column_of,
    in_a_row,
    index_vectors,
)
from distir_ext.interop.jax.operations.shapes import (
    along,
    bounded,
    numbers,
    padded,
    permuted,
    reshaped,
    sliced,
)
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    dtype_of,
    only_block,
    operations_of,
)
from distir_ext.interop.jax.table import translates
from distir_ext.interop.jax.writer import Writer

_REDUCTIONS = {
    "stablehlo.add": "add",
    "stablehlo.multiply": "mul",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
}
_NEUTRAL = {"add": -0.0, "mul": 1.0}
_OF_BOOLEANS = {**_REDUCTIONS, "stablehlo.and": "min", "stablehlo.or": "max"}


@translates("stablehlo.scatter")
def _scatter(writer: Writer, op: Operation) -> list[Known]:
    """Writes updates into one tensor or several, at the same places of each."""
    stated = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    dims = IndexDims(
        list(stated.update_window_dims),
        list(stated.inserted_window_dims),
        list(stated.input_batching_dims),
        list(stated.scatter_indices_batching_dims),
        list(stated.scattered_dims_to_operand_dims),
        stated.index_vector_dim,
        list(range(len(stated.scattered_dims_to_operand_dims))),
    )
    count, reductions = len(op.results), _reductions(op)
    operands = [writer.full(each) for each in op.operands]
    indices, _ = index_vectors(writer, operands[count], dims)
    dims = dims.with_counted(op.operands[count], sizes_of(operands[0]))
    tensors = zip(operands[:count], operands[count + 1 :], reductions, strict=True)
    return [_scattered(writer, dims, x, indices, *rest) for x, *rest in tensors]


def _scattered(
    writer: Writer,
    dims: IndexDims,
    x: relax.Expr,
    indices: relax.Expr,
    updates: relax.Expr,
    reduction: str,
) -> relax.Expr:
    """R.scatter_elements, of rows, of elements of rows, or of all elements in a row.

    Updates outside of the tensor are left out, as in StableHLO: they go to a spare place behind it.
    """
    shape, extents = sizes_of(x), sizes_of(updates)
    batch, algebra = sizes_of(indices)[:-1], writer.program.algebra
    if not dims.batch and all(algebra.is_same(size, 1) for size in batch):
        return _scattered_once(writer, dims, x, indices, updates, reduction)
    kept = dims.kept(len(shape))
    is_whole = all(
        algebra.is_same(extents[place], shape[dim])
        for dim, place in zip(kept, dims.windows, strict=True)
    )
    if len(dims.mapped) == 1 and dims.mapped == dims.dropped and not dims.batch and is_whole:
        # One row per index, with the dimension of the rows first.
        count = math.prod(batch)
        rest = [shape[dim] for dim in kept]
        order = dims.batches_of(len(extents)) + dims.windows
        updates = reshaped(writer, permuted(writer, updates, order), [count, *rest])
        column = reshaped(writer, column_of(writer, indices, 0, batch), [count, *[1] * len(rest)])
        order = dims.mapped + kept
        made = _written(writer, permuted(writer, x, order), column, updates, 0, reduction)
        return permuted(writer, made, [order.index(dim) for dim in range(len(shape))])
    if dims.is_elementwise(algebra, shape, batch):
        column = column_of(writer, indices, dims.positions[0], batch)
        return _written(writer, x, column, updates, dims.mapped[0], reduction)
    if dims.batch:
        made = _scattered_by_row(writer, dims, x, indices, updates, reduction)
        if made is not None:
            return made
    starts = [column_of(writer, indices, position, batch) for position in dims.positions]
    place, inside = in_a_row(writer, dims, starts, shape, extents)
    total = math.prod(shape)
    spare = writer.write_out(writer.number(total, "int32"))
    place = writer.write_out(writer.combine(relax_op.where, [inside, place, spare], extents))
    count = math.prod(extents)
    made = _written(
        writer,
        reshaped(writer, x, [total]),
        reshaped(writer, place, [count]),
        reshaped(writer, updates, [count]),
        0,
        reduction,
    )
    return reshaped(writer, made, shape)


_ON_ELEMENTS = {
    "add": relax_op.add,
    "mul": relax_op.multiply,
    "max": relax_op.maximum,
    "min": relax_op.minimum,
}


def _scattered_once(
    writer: Writer,
    dims: IndexDims,
    x: relax.Expr,
    indices: relax.Expr,
    updates: relax.Expr,
    reduction: str,
) -> relax.Expr:
    """A tensor where the elements within one window are changed; all are, if it is outside."""
    shape, extents, algebra = sizes_of(x), sizes_of(updates), writer.program.algebra
    place_of = dict(zip(dims.kept(len(shape)), dims.windows, strict=True))
    sizes = [extents[place_of[dim]] if dim in place_of else 1 for dim in range(len(shape))]
    update = reshaped(writer, updates, sizes)
    ones = [1] * (len(sizes_of(indices)) - 1)
    inside: Known = relax.const(True, "bool")
    for dim, position in zip(dims.mapped, dims.positions, strict=True):
        start = reshaped(writer, column_of(writer, indices, position, tuple(ones)), [])
        dtype, size = str(start.ty.dtype), sizes[dim]
        last = writer.write_out(writer.number(shape[dim] - size, dtype))
        low = writer.emit(relax_op.greater_equal(start, relax.const(0, dtype)))
        high = writer.emit(relax_op.less_equal(start, last))
        inside = writer.combine(
            relax_op.logical_and, [inside, writer.emit(relax_op.logical_and(low, high))], ()
        )
        if algebra.is_same(size, shape[dim]):
            continue
        place = writer.emit(relax_op.subtract(numbers(writer, shape[dim], dtype), start))
        behind = writer.write_out(writer.number(size, dtype))
        low = writer.emit(relax_op.greater_equal(place, relax.const(0, dtype)))
        high = writer.emit(relax_op.less(place, behind))
        here = along(writer, writer.emit(relax_op.logical_and(low, high)), dim, shape)
        inside = writer.combine(relax_op.logical_and, [inside, here], shape)
        if not algebra.is_same(size, 1):
            update = writer.emit(relax_op.take(update, bounded(writer, place, size - 1), axis=dim))
    if reduction != "update":
        update = writer.write_out(writer.combine(_ON_ELEMENTS[reduction], [x, update], shape))
    return writer.write_out(writer.combine(relax_op.where, [inside, update, x], shape))


def _scattered_by_row(
    writer: Writer,
    dims: IndexDims,
    x: relax.Expr,
    indices: relax.Expr,
    updates: relax.Expr,
    reduction: str,
) -> relax.Expr | None:
    """R.scatter_elements along one dimension, apart from those that indices and tensor share.

    Returns:
        The tensor; None where windows have part of another dimension. Windows that are not all
        inside of the tensor are left out.
    """
    shape, extents = sizes_of(x), sizes_of(updates)
    batch, algebra = sizes_of(indices)[:-1], writer.program.algebra
    place_of = dict(zip(dims.kept(len(shape)), dims.windows, strict=True))
    partial = [
        dim
        for dim in range(len(shape))
        if dim not in dims.batch
        and not algebra.is_same(extents[place_of[dim]] if dim in place_of else 1, shape[dim])
    ]
    if len(partial) != 1 or partial[0] not in dims.mapped:
        return None
    (axis,) = partial
    size = extents[place_of[axis]] if axis in place_of else 1
    rest = [dim for dim in range(len(shape)) if dim not in [*dims.batch, axis]]
    order = dims.batches_of_indices
    order = order + [dim for dim in range(len(batch)) if dim not in order]
    rows = [batch[dim] for dim in dims.batches_of_indices]
    count = math.prod(batch[dim] for dim in order[len(rows) :])

    behind: Known = relax.const(False, "bool")
    begin: relax.Expr = indices
    for dim, position in zip(dims.mapped, dims.positions, strict=True):
        start = column_of(writer, indices, position, batch)
        dtype = str(start.ty.dtype)
        last = writer.number(shape[dim] - (size if dim == axis else shape[dim]), dtype)
        low = writer.emit(relax_op.less(start, relax.const(0, dtype)))
        high = writer.combine(relax_op.greater, [start, last], batch)
        here = writer.combine(relax_op.logical_or, [low, high], batch)
        behind = writer.combine(relax_op.logical_or, [behind, here], batch)
        begin = start if dim == axis else begin
    end = writer.number(shape[axis], str(begin.ty.dtype))
    place = writer.write_out(writer.combine(relax_op.where, [behind, end, begin], batch))
    place = reshaped(writer, permuted(writer, place, order), [*rows, count, 1])
    if not algebra.is_same(size, 1):
        steps = numbers(writer, size, str(place.ty.dtype))
        place = writer.emit(relax_op.add(place, steps))
    place = reshaped(writer, place, [*rows, count * size, *[1] * len(rest)])

    batches = dims.batches_of(len(extents))
    moved = [batches[dim] for dim in order]
    moved += [place_of[dim] for dim in [axis, *rest] if dim in place_of]
    updates = permuted(writer, updates, moved)
    updates = reshaped(writer, updates, [*rows, count * size, *(shape[dim] for dim in rest)])
    to = [*dims.batch, axis, *rest]
    made = _written(writer, permuted(writer, x, to), place, updates, len(rows), reduction)
    return permuted(writer, made, [to.index(dim) for dim in range(len(shape))])


def _written(
    writer: Writer, x: relax.Expr, places: Any, updates: relax.Expr, axis: int, reduction: str
) -> relax.Expr:
    """A tensor with updates at places along one axis; those outside of it are left out.

    They go to a spare place behind it, or change nothing where a number does; of rows that are
    replaced, each looks up its update.
    """
    shape, dtype = sizes_of(x), str(places.ty.dtype)
    extents, behind = sizes_of(updates), writer.write_out(writer.number(shape[axis], dtype))
    low = writer.emit(relax_op.greater_equal(places, relax.const(0, dtype)))
    high = writer.emit(relax_op.less(places, behind))
    inside = writer.emit(relax_op.logical_and(low, high))
    ones = [size for dim, size in enumerate(sizes_of(places)) if dim != axis]
    is_of_rows = axis == 0 and all(writer.program.algebra.is_same(size, 1) for size in ones)
    if reduction == "update" and is_of_rows:
        return _rows_replaced(writer, x, places, inside, updates)
    neutral = _neutral(str(x.ty.dtype), reduction)
    if neutral is not None:
        changes_nothing = relax.const(neutral, str(x.ty.dtype))
        updates = writer.write_out(
            writer.combine(relax_op.where, [inside, updates, changes_nothing], extents)
        )
        behind = relax.const(0, dtype)
    places = writer.emit(relax_op.where(inside, places, behind))
    if not writer.is_shaped(places, extents):
        places = writer.emit(relax_op.broadcast_to(places, list(extents)))
    if neutral is not None:
        made = writer.emit(relax_op.scatter_elements(x, places, updates, axis, reduction))
        if reduction not in _NEUTRAL and "float" in str(x.ty.dtype):
            # -inf changes nothing but for NaN, which stays whatever is written.
            made = writer.emit(relax_op.where(writer.emit(relax_op.isnan(x)), x, made))
        return made
    edges = [(0, 1 if dim == axis else 0) for dim in range(len(shape))]
    wide = padded(writer, x, edges, [0] * len(shape), 0)
    made = writer.emit(relax_op.scatter_elements(wide, places, updates, axis, reduction))
    return sliced(writer, made, [0] * len(shape), shape)


def _neutral(dtype: str, reduction: str) -> float | None:
    """A number that changes nothing, whatever it is combined with; None where there is none."""
    if dtype == "bool" or reduction == "update":
        return None
    if reduction in _NEUTRAL:
        return _NEUTRAL[reduction]
    if "float8" in dtype or "float4" in dtype or "float6" in dtype:
        return None  # some have no infinity
    if "float" in dtype:
        return -math.inf if reduction == "max" else math.inf
    limits = np.iinfo(dtype)
    return int(limits.min if reduction == "max" else limits.max)


def _rows_replaced(
    writer: Writer, x: relax.Expr, places: relax.Expr, inside: relax.Expr, updates: relax.Expr
) -> relax.Expr:
    """A tensor of which rows are replaced, by the last of the updates that name them.

    Every row looks up the update that it gets, so none of a sharded tensor is moved.
    """
    count, *_ = sizes_of(updates)
    number_of_rows, *rest = sizes_of(x)
    inside = reshaped(writer, inside, [count])
    places = reshaped(writer, places, [count])
    zero = relax.const(0, "int32")
    order = writer.emit(relax_op.add(numbers(writer, count, "int32"), relax.const(1, "int32")))
    order = writer.emit(relax_op.where(inside, order, zero))
    places = writer.emit(relax_op.where(inside, places, relax.const(0, str(places.ty.dtype))))
    none = writer.emit(relax_op.zeros([number_of_rows], "int32"))
    last = writer.emit(relax_op.scatter_elements(none, places, order, 0, "max"))
    row = writer.emit(
        relax_op.maximum(writer.emit(relax_op.subtract(last, relax.const(1, "int32"))), zero)
    )
    new = writer.emit(relax_op.take(updates, row, axis=0))
    is_written = writer.emit(relax_op.greater(last, zero))
    if rest:
        is_written = reshaped(writer, is_written, [number_of_rows, *[1] * len(rest)])
    return writer.emit(relax_op.where(is_written, new, x))


def _reductions(op: Operation) -> list[str]:
    """Returns the reduction that combines each tensor with its updates."""
    block, count = only_block(op), len(op.results)
    *inner, last = operations_of(block)
    made = {each.results[0]: each for each in inner if len(each.results) == 1}

    found = []
    for index, value in enumerate(map(source_of, last.operands)):
        old, new = block.arguments[index], block.arguments[count + index]
        if value == new:
            found.append("update")
            continue
        name = made[value].name if value in made else "nothing"
        operands = list(map(source_of, made[value].operands)) if value in made else []
        if operands not in ([old, new], [new, old]):
            raise UnsupportedError(
                "has a region that is not one operation of an element and its update, but "
                + ", ".join(each.name for each in inner)
            )
        table = _OF_BOOLEANS if dtype_of(op.operands[index]) == "bool" else _REDUCTIONS
        if name not in table:
            raise UnsupportedError(f"by {name}; Relax has {', '.join(sorted(table))}")
        found.append(table[name])
    return found
