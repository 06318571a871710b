"""Translates StableHLO's gather, which looks up elements at the positions in a tensor of indices.

It has forms that keep dimensions apart, which can be sharded, and one for everything else: on all
elements in a row, which needs replication.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxlib.mlir.dialects import stablehlo
from tvm import relax
from tvm.relax import op as relax_op

from distir_ext.interop.jax.known import Known, sizes_of
from distir_ext.interop.jax.operations.row_numbers import columns_of, counted_dim
from distir_ext.interop.jax.operations.shapes import (
    along,
    bounded,
    numbers,
    permuted,
    reshaped,
    sliced,
)
from distir_ext.interop.jax.sizes import Algebra, Size
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    Value,
    integers,
    open_tensor_of,
    rank_of,
)
from distir_ext.interop.jax.table import translates
from distir_ext.interop.jax.writer import Writer


@dataclass(frozen=True)
class IndexDims:
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
        positions: The positions of the numbers for ``mapped`` in a vector.
    """

    windows: list[int]
    dropped: list[int]
    batch: list[int]
    index_batch: list[int]
    mapped: list[int]
    vector: int
    positions: list[int]

    @property
    def batches_of_indices(self) -> list[int]:
        """``index_batch``, among the dimensions of the indices without their vectors."""
        return [dim - (1 if dim > self.vector else 0) for dim in self.index_batch]

    def with_counted(self, indices: Value, shape: tuple[Size, ...]) -> IndexDims:
        """These dimensions, with those that indices count rows of among the batches."""
        columns = columns_of(indices, self.vector)
        sizes, _ = open_tensor_of(indices.type)
        dropped, batch, of_indices = list(self.dropped), list(self.batch), list(self.index_batch)
        rest = []
        for dim, position in zip(self.mapped, self.positions, strict=True):
            counted = None if columns is None else counted_dim(columns[position])
            is_counted = counted is not None and counted not in of_indices and dim in dropped
            if is_counted and counted is not None and sizes[counted] == shape[dim]:
                dropped.remove(dim)
                batch.append(dim)
                of_indices.append(counted)
            else:
                rest.append((dim, position))
        mapped, positions = [dim for dim, _ in rest], [position for _, position in rest]
        if not mapped:
            return self
        return replace(
            self,
            dropped=dropped,
            batch=batch,
            index_batch=of_indices,
            mapped=mapped,
            positions=positions,
        )

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


def index_vectors(
    writer: Writer, indices: relax.Expr, dims: IndexDims
) -> tuple[relax.Expr, tuple[Size, ...]]:
    """Indices with their vectors along the last dimension, and the shape of the others."""
    shape = sizes_of(indices)
    if dims.vector == len(shape):
        return reshaped(writer, indices, (*shape, 1)), shape
    order = [dim for dim in range(len(shape)) if dim != dims.vector] + [dims.vector]
    return permuted(writer, indices, order), tuple(shape[dim] for dim in order[:-1])


def column_of(
    writer: Writer, indices: relax.Expr, position: int, batch: tuple[Size, ...]
) -> relax.Expr:
    """One number of all index vectors, as int32 or int64."""
    starts = [0] * len(batch) + [position]
    column = sliced(writer, indices, starts, [*batch, position + 1])
    column = reshaped(writer, column, batch)
    if str(column.ty.dtype) in ("int32", "int64"):
        return column
    return writer.emit(relax_op.astype(column, "int32"))


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
    dims = IndexDims(
        list(stated.offset_dims),
        list(stated.collapsed_slice_dims),
        list(stated.operand_batching_dims),
        list(stated.start_indices_batching_dims),
        list(stated.start_index_map),
        stated.index_vector_dim,
        list(range(len(stated.start_index_map))),
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
    indices, batch = index_vectors(writer, writer.full(op.operands[1]), dims)
    rows = dims.with_counted(op.operands[1], shape)
    others = [dim for dim in range(len(shape)) if dim not in dims.mapped]
    is_whole = all(is_same(sizes[dim], shape[dim]) for dim in others)
    if len(dims.mapped) == 1 and dims.mapped == dims.dropped and not dims.batch and is_whole:
        return _take(writer, x, indices, dims, batch)
    if dims.is_elementwise(writer.program.algebra, shape, batch):
        (axis,) = dims.mapped
        places = bounded(writer, reshaped(writer, indices, batch), shape[axis] - 1)
        return writer.emit(relax_op.gather_elements(x, places, axis))
    if rows.batch and (made := _gathered_by_row(writer, x, indices, rows, sizes)) is not None:
        return made
    extents = dict(zip(dims.windows, (sizes[dim] for dim in dims.kept(len(shape))), strict=True))
    rest = iter(batch)
    result = tuple(
        extents[dim] if dim in extents else next(rest) for dim in range(len(extents) + len(batch))
    )
    starts = [
        bounded(writer, column_of(writer, indices, position, batch), shape[dim] - sizes[dim])
        for dim, position in zip(dims.mapped, dims.positions, strict=True)
    ]
    place, _ = in_a_row(writer, dims, starts, shape, result)
    flat = reshaped(writer, x, [math.prod(shape)])
    return writer.emit(relax_op.take(flat, place, axis=0))


def _gathered_by_row(
    writer: Writer, x: relax.Expr, indices: relax.Expr, dims: IndexDims, sizes: Sequence[Size]
) -> Known | None:
    """R.gather_nd, which keeps dimensions apart that indices and tensor share.

    Returns:
        What is gathered; None where windows have part of a dimension that no index names.
    """
    shape, batch, algebra = sizes_of(x), sizes_of(indices)[:-1], writer.program.algebra
    mapped = [
        (dim, position)
        for dim, position in zip(dims.mapped, dims.positions, strict=True)
        if not algebra.is_same(sizes[dim], shape[dim])
    ]
    named = [dim for dim, _ in mapped]
    others = [dim for dim in range(len(shape)) if dim not in dims.batch + named]
    if not mapped or not all(algebra.is_same(sizes[dim], shape[dim]) for dim in others):
        return None
    wide = [dim for dim in named if not algebra.is_same(sizes[dim], 1)]
    order = dims.batches_of_indices
    order = order + [dim for dim in range(len(batch)) if dim not in order]
    each = (*(batch[dim] for dim in order), *(sizes[dim] for dim in wide))
    columns = []
    for dim, position in mapped:
        start = bounded(
            writer, column_of(writer, indices, position, batch), shape[dim] - sizes[dim]
        )
        start = permuted(writer, start, order)
        start = reshaped(writer, start, [*sizes_of(start), *[1] * len(wide)])
        if dim in wide:
            steps = numbers(writer, sizes[dim], str(start.ty.dtype))
            behind = [1] * (len(each) - len(batch))
            behind[wide.index(dim)] = sizes[dim]
            start = writer.emit(relax_op.add(start, reshaped(writer, steps, behind)))
        if not writer.is_shaped(start, each):
            start = writer.emit(relax_op.broadcast_to(start, list(each)))
        columns.append(reshaped(writer, start, [*each, 1]))
    places = columns[0] if len(columns) == 1 else writer.emit(relax_op.concat(columns, -1))
    if str(places.ty.dtype) != "int64":  # the only one that R.gather_nd takes
        places = writer.emit(relax_op.astype(places, "int64"))
    ordered = permuted(writer, x, dims.batch + named + others)
    made = writer.emit(relax_op.gather_nd(ordered, places, len(dims.batch)))
    # The dimensions of what is made, by those of the indices or, behind them, of the tensor.
    found = order + [len(batch) + dim for dim in wide + others]
    kept, batches = dims.kept(len(shape)), iter(range(len(batch)))
    windows = dict(zip(dims.windows, kept, strict=True))
    wanted = [
        len(batch) + windows[dim] if dim in windows else next(batches)
        for dim in range(len(batch) + len(windows))
    ]
    made = permuted(writer, made, [found.index(dim) for dim in wanted if dim in found])
    extents = [batch[dim] if dim < len(batch) else sizes[dim - len(batch)] for dim in wanted]
    return reshaped(writer, made, extents)


def _known_window(
    writer: Writer, indices: Any, dims: IndexDims, shape: tuple[Size, ...], sizes: Sequence[Size]
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
    writer: Writer, x: relax.Expr, indices: relax.Expr, dims: IndexDims, batch: tuple[Size, ...]
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


def in_a_row(
    writer: Writer,
    dims: IndexDims,
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
