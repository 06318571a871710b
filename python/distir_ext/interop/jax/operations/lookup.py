"""Gather and scatter: lookups and writes at places that tensors of indices state.

Each has forms that keep dimensions apart, which can be sharded, and one for everything else: on
all elements in a row, which needs replication.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir.dialects import stablehlo
from tvm import relax
from tvm.relax import op as relax_op

from distir_ext.interop.jax.hlo_shardings import source_of
from distir_ext.interop.jax.known import Known, sizes_of
from distir_ext.interop.jax.operations.shapes import (
    along,
    bounded,
    numbers,
    padded,
    permuted,
    reshaped,
    sliced,
)
from distir_ext.interop.jax.sizes import Algebra, Size
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    dtype_of,
    integers,
    only_block,
    operations_of,
    rank_of,
)
from distir_ext.interop.jax.table import translates
from distir_ext.interop.jax.writer import Writer


@dataclass(frozen=True)
class _Dims:
    """The dimension numbers that gather and scatter share.

    "Window" is the slice that one index vector stands for; "moved" is what has its shape: the
    result of a gather, the updates of a scatter.

    Attributes:
        windows: Dimensions of what is moved that are the window's.
        dropped: Dimensions of the tensor that a window has no dimension for.
        batch: Dimensions of the tensor that are batches.
        index_batch: Dimensions of the indices for each of ``batch``.
        mapped: Dimensions of the tensor that index vectors have a number for, in their order.
        vector: The dimension of the indices that holds the vectors.
    """

    windows: list[int]
    dropped: list[int]
    batch: list[int]
    index_batch: list[int]
    mapped: list[int]
    vector: int

    def batches_of(self, rank: int) -> list[int]:
        """Dimensions of what is moved that are not the window's."""
        return [dim for dim in range(rank) if dim not in self.windows]

    def kept(self, rank: int) -> list[int]:
        """Dimensions of the tensor that ``windows`` stand for."""
        return [dim for dim in range(rank) if dim not in self.dropped + self.batch]

    def is_elementwise(
        self, algebra: Algebra, shape: tuple[Size, ...], indices: tuple[Size, ...]
    ) -> bool:
        """Returns whether each index takes one element of its own row: ``jnp.take_along_axis``."""
        return (
            len(self.mapped) == 1
            and self.mapped == self.dropped
            and not self.windows
            and self.batch == self.index_batch
            and sorted(self.batch + self.mapped) == list(range(len(shape)))
            and len(indices) == len(shape)
            and all(algebra.is_same(indices[dim], shape[dim]) for dim in self.batch)
        )


def _index_vectors(
    writer: Writer, indices: relax.Expr, dims: _Dims
) -> tuple[relax.Expr, tuple[Size, ...]]:
    """Indices with their vectors along the last dimension, and the shape of the others."""
    shape = sizes_of(indices)
    if dims.vector == len(shape):
        return reshaped(writer, indices, (*shape, 1)), shape
    order = [dim for dim in range(len(shape)) if dim != dims.vector] + [dims.vector]
    return permuted(writer, indices, order), tuple(shape[dim] for dim in order[:-1])


def _column(
    writer: Writer, indices: relax.Expr, position: int, batch: tuple[Size, ...]
) -> relax.Expr:
    """One number of all index vectors, as int32 or int64."""
    starts = [0] * len(batch) + [position]
    column = sliced(writer, indices, starts, [*batch, position + 1])
    column = reshaped(writer, column, batch)
    if str(column.ty.dtype) in ("int32", "int64"):
        return column
    return writer.emit(relax_op.astype(column, "int32"))


# ---- gather


@translates("stablehlo.gather")
def _gather(writer: Writer, op: Operation) -> Known:
    return gathered(writer, op, integers(op, "slice_sizes"))


def gathered(writer: Writer, op: Operation, sizes: Sequence[Size]) -> Known:
    """R.take along one dimension, R.gather_elements, or R.take of all elements in a row.

    Args:
        writer: Writes it.
        op: A gather.
        sizes: Of the window that one index vector stands for.
    """
    stated = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    dims = _Dims(
        list(stated.offset_dims),
        list(stated.collapsed_slice_dims),
        list(stated.operand_batching_dims),
        list(stated.start_indices_batching_dims),
        list(stated.start_index_map),
        stated.index_vector_dim,
    )
    x = writer.full(op.operands[0])
    shape, is_same = sizes_of(x), writer.program.algebra.is_same
    window = _known_window(writer, op.operands[1], dims, shape, sizes)
    if window is not None:
        return reshaped(
            writer,
            sliced(writer, x, *window),
            [sizes[dim] for dim in range(len(shape)) if dim not in dims.dropped],
        )
    indices, batch = _index_vectors(writer, writer.full(op.operands[1]), dims)
    others = [dim for dim in range(len(shape)) if dim not in dims.mapped]
    is_whole = all(is_same(sizes[dim], shape[dim]) for dim in others)
    if len(dims.mapped) == 1 and dims.mapped == dims.dropped and not dims.batch and is_whole:
        return _take(writer, x, indices, dims, batch)
    if dims.is_elementwise(writer.program.algebra, shape, batch):
        (axis,) = dims.mapped
        places = bounded(writer, reshaped(writer, indices, batch), shape[axis] - 1)
        return writer.emit(relax_op.gather_elements(x, places, axis))
    extents = dict(zip(dims.windows, (sizes[dim] for dim in dims.kept(len(shape))), strict=True))
    rest = iter(batch)
    result = tuple(
        extents[dim] if dim in extents else next(rest) for dim in range(len(extents) + len(batch))
    )
    starts = [
        bounded(writer, _column(writer, indices, position, batch), shape[dim] - sizes[dim])
        for position, dim in enumerate(dims.mapped)
    ]
    place, _ = _in_a_row(writer, dims, starts, shape, result)
    flat = reshaped(writer, x, [math.prod(shape)])
    return writer.emit(relax_op.take(flat, place, axis=0))


def _known_window(
    writer: Writer, indices: Any, dims: _Dims, shape: tuple[Size, ...], sizes: Sequence[Size]
) -> tuple[list[Size], list[Size]] | None:
    """Returns start and end of a gather's only window; None for several or unknown ones."""
    rank = rank_of(indices)
    if rank > 1 or dims.vector != 0 or dims.batch:
        return None
    places = writer.integers(indices)
    if places is None:
        return None
    starts: list[Size] = [0] * len(shape)
    algebra = writer.program.algebra
    for dim, place in zip(dims.mapped, places, strict=True):
        last = algebra.simplified(shape[dim] - sizes[dim])
        if not algebra.proves(place >= 0):
            place = 0
        starts[dim] = place if algebra.proves(place <= last) else last
    limits = [algebra.simplified(start + size) for start, size in zip(starts, sizes, strict=True)]
    return starts, limits


def _take(
    writer: Writer, x: relax.Expr, indices: relax.Expr, dims: _Dims, batch: tuple[Size, ...]
) -> relax.Expr:
    (axis,) = dims.mapped
    places = bounded(writer, reshaped(writer, indices, batch), sizes_of(x)[axis] - 1)
    made = writer.emit(relax_op.take(x, places, axis=axis))
    # R.take puts the dimensions of the indices where the axis was; the others keep their order.
    rank, count = len(sizes_of(made)), len(batch)
    batches = iter(range(axis, axis + count))
    windows = iter(dim for dim in range(rank) if not axis <= dim < axis + count)
    order = [next(windows) if dim in dims.windows else next(batches) for dim in range(rank)]
    return permuted(writer, made, order)


def _in_a_row(
    writer: Writer,
    dims: _Dims,
    starts: list[relax.Expr],
    shape: tuple[Size, ...],
    moved: tuple[Size, ...],
) -> tuple[relax.Expr, Known]:
    """Computes the row-major position in the tensor of each element that is moved.

    Args:
        writer: Writes it.
        dims: The dimension numbers.
        starts: Starts of windows, per mapped dimension: of the shape of the indices.
        shape: Of the tensor.
        moved: The shape of what is moved.

    Returns:
        The places, and whether they are inside of the tensor.
    """
    if (count := math.prod(size for size in shape if isinstance(size, int))) >= 2**31:
        raise UnsupportedError(f"of a tensor of {count} elements")

    def number(size: Size) -> relax.Expr:
        return writer.write_out(writer.number(size, "int32"))

    batches = dims.batches_of(len(moved))
    # By dimension of the tensor what adds up to its index.
    parts: list[list[Known]] = [[] for _ in shape]
    for dim, start in zip(dims.mapped, starts, strict=True):
        extents: list[Size] = [1] * len(moved)
        for place, size in zip(batches, sizes_of(start), strict=True):
            extents[place] = size
        start = start if str(start.ty.dtype) == "int32" else _as_int32(writer, start)
        parts[dim].append(
            writer.combine(lambda x, to=extents: relax_op.reshape(x, to), [start], moved)
        )
    for dim, source in zip(dims.batch, dims.index_batch, strict=True):
        place = batches[source - (1 if source > dims.vector else 0)]
        parts[dim].append(along(writer, numbers(writer, moved[place], "int32"), place, moved))
    for dim, place in zip(dims.kept(len(shape)), dims.windows, strict=True):
        if not writer.program.algebra.is_same(moved[place], 1):
            parts[dim].append(along(writer, numbers(writer, moved[place], "int32"), place, moved))
    total: Known = relax.const(0, "int32")
    inside: Known = relax.const(True, "bool")
    for dim, terms in enumerate(parts):
        stride = number(math.prod(shape[dim + 1 :]))
        index: Known = relax.const(0, "int32")
        for term in terms:
            index = writer.combine(relax_op.add, [index, term], moved)
        if dim in dims.mapped:
            for compare, bound in (
                (relax_op.greater_equal, 0),
                (relax_op.less, shape[dim]),
            ):
                here = writer.combine(compare, [index, number(bound)], moved)
                inside = writer.combine(relax_op.logical_and, [inside, here], moved)
        step = writer.combine(relax_op.multiply, [index, stride], moved)
        total = writer.combine(relax_op.add, [total, step], moved)
    return writer.write_out(total), inside


def _as_int32(writer: Writer, x: relax.Expr) -> relax.Expr:
    return writer.emit(relax_op.astype(x, "int32"))


# ---- scatter

_REDUCTIONS = {
    "stablehlo.add": "add",
    "stablehlo.multiply": "mul",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
}
_OF_BOOLEANS = {**_REDUCTIONS, "stablehlo.and": "min", "stablehlo.or": "max"}


@translates("stablehlo.scatter")
def _scatter(writer: Writer, op: Operation) -> list[Known]:
    """Writes updates into one tensor or several, at the same places of each."""
    stated = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    dims = _Dims(
        list(stated.update_window_dims),
        list(stated.inserted_window_dims),
        list(stated.input_batching_dims),
        list(stated.scatter_indices_batching_dims),
        list(stated.scattered_dims_to_operand_dims),
        stated.index_vector_dim,
    )
    count, reductions = len(op.results), _reductions(op)
    operands = [writer.full(each) for each in op.operands]
    indices, _ = _index_vectors(writer, operands[count], dims)
    tensors = zip(operands[:count], operands[count + 1 :], reductions, strict=True)
    return [_scattered(writer, dims, x, indices, *rest) for x, *rest in tensors]


def _scattered(
    writer: Writer,
    dims: _Dims,
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
        column = reshaped(writer, _column(writer, indices, 0, batch), [count, *[1] * len(rest)])
        order = dims.mapped + kept
        made = _written(writer, permuted(writer, x, order), column, updates, 0, reduction)
        return permuted(writer, made, [order.index(dim) for dim in range(len(shape))])
    if dims.is_elementwise(algebra, shape, batch):
        column = _column(writer, indices, 0, batch)
        return _written(writer, x, column, updates, dims.mapped[0], reduction)
    starts = [_column(writer, indices, position, batch) for position in range(len(dims.mapped))]
    place, inside = _in_a_row(writer, dims, starts, shape, extents)
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


def _written(
    writer: Writer, x: relax.Expr, places: Any, updates: relax.Expr, axis: int, reduction: str
) -> relax.Expr:
    """A tensor with updates at places along one axis; those outside of it are left out."""
    shape, dtype = sizes_of(x), str(places.ty.dtype)
    extents, behind = sizes_of(updates), writer.write_out(writer.number(shape[axis], dtype))
    low = writer.emit(relax_op.greater_equal(places, relax.const(0, dtype)))
    high = writer.emit(relax_op.less(places, behind))
    inside = writer.emit(relax_op.logical_and(low, high))
    places = writer.emit(relax_op.where(inside, places, behind))
    if not writer.is_shaped(places, extents):
        places = writer.emit(relax_op.broadcast_to(places, list(extents)))
    edges = [(0, 1 if dim == axis else 0) for dim in range(len(shape))]
    wide = padded(writer, x, edges, [0] * len(shape), 0)
    made = writer.emit(relax_op.scatter_elements(wide, places, updates, axis, reduction))
    return sliced(writer, made, [0] * len(shape), shape)


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
