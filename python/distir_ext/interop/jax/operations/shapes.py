"""Translates operations that move elements: broadcasts, transpositions, slices, pads, joins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax
from tvm.relax import op as relax_op

from distir_ext.interop.jax.known import Known, Stretched, constant_of, dims_of, sizes_of
from distir_ext.interop.jax.sizes import Size
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    array_of,
    integer,
    integers,
    shape_of,
    tensor_of,
)
from distir_ext.interop.jax.table import translates
from distir_ext.interop.jax.writer import Writer
from distir_ext.text.size_text import size_text


@translates("stablehlo.constant", "sdy.constant")
def _constant(_writer: Writer, op: Operation) -> Known:
    shape, dtype = tensor_of(op.results[0].type)
    return constant_of(array_of(op.attributes["value"]), dtype, shape)


@translates("stablehlo.iota")
def _iota(writer: Writer, op: Operation) -> Known:
    shape, dtype = tensor_of(op.results[0].type)
    dim = integer(op, "iota_dimension")
    return along(writer, numbers(writer, shape[dim], dtype), dim, shape)


def numbers(writer: Writer, count: Size, dtype: str) -> relax.Expr:
    """0, 1, .., count - 1."""
    if dtype in ("int32", "int64", "float32"):
        return writer.emit(relax_op.arange(0, count, 1, dtype))
    return writer.emit(relax_op.astype(writer.emit(relax_op.arange(0, count, 1, "int32")), dtype))


def along(writer: Writer, vector: relax.Expr, dim: int, shape: tuple[Size, ...]) -> Known:
    """A vector along one dimension, the same along all others."""
    others = [axis for axis in range(len(shape)) if axis != dim]
    base = writer.emit(relax_op.expand_dims(vector, others)) if others else vector
    return base if writer.is_shaped(base, shape) else Stretched(base, shape)


@translates("stablehlo.broadcast_in_dim")
def _broadcast_in_dim(writer: Writer, op: Operation) -> Known:
    shape, dims = shape_of(op.results[0]), integers(op, "broadcast_dimensions")
    return broadcast(writer, writer.known(op.operands[0]), shape, dims)


def broadcast(writer: Writer, known: Known, shape: tuple[Size, ...], dims: list[int]) -> Known:
    """A tensor whose dimensions are these of a shape, the same along all others."""
    base = known.base if isinstance(known, Stretched) else known
    if not sizes_of(base):
        return base if not shape else Stretched(base, shape)
    if dims != sorted(dims):
        order = sorted(range(len(dims)), key=dims.__getitem__)
        base = writer.emit(relax_op.permute_dims(base, order))
        dims = sorted(dims)
    missing = [axis for axis in range(len(shape)) if axis not in dims]
    if missing:
        base = writer.emit(relax_op.expand_dims(base, missing))
    is_same = writer.program.algebra.is_same
    for size, wanted in zip(sizes_of(base), shape, strict=True):
        if not is_same(size, 1) and not is_same(size, wanted):
            raise UnsupportedError(
                f"of the size {size_text(size)} to {size_text(wanted)}, which it may not be"
            )
    return base if writer.is_shaped(base, shape) else Stretched(base, shape)


@translates("stablehlo.reshape")
def _reshape(writer: Writer, op: Operation) -> Known:
    return in_shape(writer, op, shape_of(op.results[0]))


def in_shape(writer: Writer, op: Operation, shape: tuple[Size, ...]) -> Known:
    """The first operand of an operation in another shape."""
    known = writer.known(op.operands[0])
    base = known.base if isinstance(known, Stretched) else known
    if not sizes_of(base) and shape:
        return Stretched(base, shape)
    return reshaped(writer, writer.full(op.operands[0]), shape)


def reshaped(writer: Writer, x: relax.Expr, shape: Sequence[Size]) -> relax.Expr:
    """A tensor in another shape."""
    if writer.is_shaped(x, shape):
        return x
    if any(isinstance(size, int) and size == 0 for size in shape):
        # A 0 is to Relax's reshape the size that its operand has.
        return writer.emit(relax_op.zeros(list(shape), str(x.ty.dtype)))
    return writer.emit(relax_op.reshape(x, list(shape)))


@translates("stablehlo.transpose")
def _transpose(writer: Writer, op: Operation) -> Known:
    order = integers(op, "permutation")
    known = writer.known(op.operands[0])
    if isinstance(known, Stretched):
        shape = tuple(known.shape[dim] for dim in order)
        if not sizes_of(known.base):
            return Stretched(known.base, shape)
        return Stretched(permuted(writer, known.base, order), shape)
    return permuted(writer, known, order)


def permuted(writer: Writer, x: relax.Expr, order: Sequence[int]) -> relax.Expr:
    """A tensor with its dimensions in another order."""
    if list(order) == sorted(order):
        return x
    return writer.emit(relax_op.permute_dims(x, list(order)))


@translates("stablehlo.slice")
def _slice(writer: Writer, op: Operation) -> Known:
    known = writer.known(op.operands[0])
    if isinstance(known, Stretched) and not sizes_of(known.base):
        return Stretched(known.base, shape_of(op.results[0]))
    starts, limits = integers(op, "start_indices"), integers(op, "limit_indices")
    return sliced(writer, writer.full(op.operands[0]), starts, limits, integers(op, "strides"))


def sliced(
    writer: Writer,
    x: relax.Expr,
    starts: Sequence[Size],
    limits: Sequence[Size],
    strides: Sequence[int] | None = None,
) -> relax.Expr:
    """Part of a tensor; one entry per dimension, as in ``x[start:limit:stride]``."""
    strides = strides or [1] * len(starts)
    bounds = list(zip(starts, limits, strides, strict=True))
    are_same = writer.program.algebra.are_same
    whole = [(0, size, 1) for size in sizes_of(x)]
    axes = [axis for axis, each in enumerate(bounds) if not are_same(each, whole[axis])]
    if not axes:
        return x
    begin, end, step = ([bounds[axis][part] for axis in axes] for part in range(3))
    return writer.emit(relax_op.strided_slice(x, axes, begin, end, step, assume_inbound=True))


@translates("stablehlo.concatenate")
def _concatenate(writer: Writer, op: Operation) -> Known:
    operands = [writer.full(each) for each in op.operands]
    axis = integer(op, "dimension")
    is_same = writer.program.algebra.is_same
    filled = [each for each in operands if not is_same(sizes_of(each)[axis], 0)]
    return joined(writer, filled or operands[:1], axis)


def joined(writer: Writer, parts: Sequence[relax.Expr], axis: int) -> relax.Expr:
    """Concatenates tensors."""
    return parts[0] if len(parts) == 1 else writer.emit(relax_op.concat(list(parts), axis))


@translates("stablehlo.reverse")
def _reverse(writer: Writer, op: Operation) -> Known:
    x = writer.full(op.operands[0])
    for axis in integers(op, "dimensions"):
        x = writer.emit(relax_op.flip(x, axis))
    return x


# ---- padding


@translates("stablehlo.pad")
def _pad(writer: Writer, op: Operation) -> Known:
    fill, interior = writer.constant(op.operands[1]), integers(op, "interior_padding")
    edges = list(
        zip(integers(op, "edge_padding_low"), integers(op, "edge_padding_high"), strict=True)
    )
    x = writer.full(op.operands[0])
    if fill is not None:
        return padded(writer, x, edges, interior, fill)
    # Positions without an element of x get the fill.
    made = padded(writer, x, edges, interior, 0)
    shape = sizes_of(made)
    there = writer.write_out(constant_of(True, "bool", sizes_of(x)))
    inside = padded(writer, there, edges, interior, 0)
    return writer.combine(relax_op.where, [inside, made, writer.known(op.operands[1])], shape)


def padded(
    writer: Writer,
    x: relax.Expr,
    edges: Sequence[tuple[int, int]],
    interior: Sequence[int],
    fill: Any,
) -> relax.Expr:
    """A tensor with ``fill`` around it, and between its elements; negative edges are cut off.

    Args:
        writer: Writes it.
        x: The tensor.
        edges: Elements in front and behind, per dimension.
        interior: Elements between two, per dimension.
        fill: A number.
    """
    is_same = writer.program.algebra.is_same
    for dim, between in enumerate(interior):
        if between and not any(is_same(sizes_of(x)[dim], each) for each in (0, 1)):
            x = _spread(writer, x, dim, between, fill)
    around = [(max(0, low), max(0, high)) for low, high in edges]
    cut = _cut(writer, x, edges)
    if cut is not None:
        return _surrounded(writer, cut, around, fill)
    # One edge cuts off all elements, and some of what the other one adds.
    cut = _cut(writer, _surrounded(writer, x, around, fill), edges)
    if cut is None:
        raise UnsupportedError("cuts off more than there is")
    return cut


def _cut(writer: Writer, x: relax.Expr, edges: Sequence[tuple[int, int]]) -> relax.Expr | None:
    """A tensor without what negative edges cut off; None if they may cut off more than there is."""
    starts = [max(0, -low) for low, _ in edges]
    limits = [size - max(0, -high) for size, (_, high) in zip(sizes_of(x), edges, strict=True)]
    proves = writer.program.algebra.proves
    if not all(proves(limit >= start) for start, limit in zip(starts, limits, strict=True)):
        return None
    return sliced(writer, x, starts, limits)


def _surrounded(
    writer: Writer, x: relax.Expr, edges: Sequence[tuple[int, int]], fill: Any
) -> relax.Expr:
    widths = [each for edge in edges for each in edge]
    if not any(widths):
        return x
    dtype = str(x.ty.dtype)
    if dtype != "bool" and abs(float(fill)) <= 2**24:  # NaN and infinities are not
        return writer.emit(relax_op.nn.pad(x, widths, "constant", float(fill)))
    if dtype == "bool":
        x = writer.emit(relax_op.astype(x, "int8"))
        x = writer.emit(relax_op.nn.pad(x, widths, "constant", float(bool(fill))))
        return writer.emit(relax_op.astype(x, "bool"))
    # Other fills do not survive as the attribute of R.nn.pad, a float.
    for dim, (low, high) in enumerate(edges):
        shape = dims_of(x)
        parts = [
            writer.write_out(constant_of(fill, dtype, (*shape[:dim], width, *shape[dim + 1 :])))
            if width
            else None
            for width in (low, high)
        ]
        x = joined(writer, [each for each in (parts[0], x, parts[1]) if each is not None], dim)
    return x


def _spread(writer: Writer, x: relax.Expr, dim: int, between: int, fill: Any) -> relax.Expr:
    """A tensor with ``between`` elements between its own along one dimension."""
    shape = list(sizes_of(x))
    wide = writer.emit(relax_op.expand_dims(x, [dim + 1]))
    edges = [(0, between if axis == dim + 1 else 0) for axis in range(len(shape) + 1)]
    wide = _surrounded(writer, wide, edges, fill)
    shape[dim] *= between + 1
    wide = reshaped(writer, wide, shape)
    limits = [size - between if axis == dim else size for axis, size in enumerate(shape)]
    return sliced(writer, wide, [0] * len(shape), limits)


# ---- slices at places that may only be known when the program runs


@translates("stablehlo.dynamic_slice")
def _dynamic_slice(writer: Writer, op: Operation) -> Known:
    x = writer.full(op.operands[0])
    sizes = integers(op, "slice_sizes")
    for dim, (size, start) in enumerate(zip(sizes, list(op.operands)[1:], strict=True)):
        extent = sizes_of(x)[dim]
        if size == extent:
            continue
        place = writer.constant(start)
        if place is not None and isinstance(extent, int):
            first = min(max(int(place), 0), extent - size)
            limits = list(sizes_of(x))
            limits[dim] = first + size
            x = sliced(writer, x, [first if d == dim else 0 for d in range(len(sizes))], limits)
        else:
            x = writer.emit(relax_op.take(x, _places(writer, start, size, extent), axis=dim))
    return x


def _places(writer: Writer, start: Any, size: int, extent: Size) -> relax.Expr:
    """start, start + 1, .., start + size - 1, moved so that all of them are in the tensor."""
    first = bounded(writer, writer.full(start), extent - size)
    return writer.emit(relax_op.add(numbers(writer, size, str(first.ty.dtype)), first))


def bounded(writer: Writer, indices: relax.Expr, last: Size) -> relax.Expr:
    """Indices from 0 to ``last``, as StableHLO brings them into their bounds."""
    dtype = str(indices.ty.dtype)
    if dtype not in ("int32", "int64"):
        indices, dtype = writer.emit(relax_op.astype(indices, "int32")), "int32"
    above = writer.emit(relax_op.maximum(indices, relax.const(0, dtype)))
    number = writer.write_out(writer.number(last, dtype))
    return writer.emit(relax_op.minimum(above, number))


@translates("stablehlo.dynamic_update_slice")
def _dynamic_update_slice(writer: Writer, op: Operation) -> Known:
    x, update = (writer.full(each) for each in list(op.operands)[:2])
    shape, sizes = sizes_of(x), sizes_of(update)
    starts = list(op.operands)[2:]
    is_same = writer.program.algebra.is_same
    partial = [dim for dim in range(len(shape)) if not is_same(sizes[dim], shape[dim])]
    if not partial:
        return update
    if len(partial) == 1 and (place := writer.constant(starts[partial[0]])) is not None:
        replaced = _replaced(writer, x, update, partial[0], int(place))
        if replaced is not None:
            return replaced
    # Positions that the update covers get its elements.
    inside: Known | None = None
    for dim in partial:
        first = bounded(writer, writer.full(starts[dim]), shape[dim] - sizes[dim])
        dtype = str(first.ty.dtype)
        place = writer.emit(relax_op.subtract(numbers(writer, shape[dim], dtype), first))
        is_behind = writer.emit(relax_op.greater_equal(place, relax.const(0, dtype)))
        behind = writer.write_out(writer.number(sizes[dim], dtype))
        is_before = writer.emit(relax_op.less(place, behind))
        here = along(writer, writer.emit(relax_op.logical_and(is_behind, is_before)), dim, shape)
        both = [here] if inside is None else [inside, here]
        inside = here if inside is None else writer.combine(relax_op.logical_and, both, shape)
        update = writer.emit(
            relax_op.take(update, bounded(writer, place, sizes[dim] - 1), axis=dim)
        )
    assert inside is not None
    return writer.combine(relax_op.where, [inside, update, x], shape)


def _replaced(
    writer: Writer, x: relax.Expr, update: relax.Expr, dim: int, place: int
) -> relax.Expr | None:
    """A tensor with an update at a place; None where it may lie beyond the end."""
    shape, size = sizes_of(x), sizes_of(update)[dim]
    if isinstance(shape[dim], int) and isinstance(size, int):
        first = min(max(place, 0), shape[dim] - size)
    elif writer.program.algebra.proves(max(place, 0) + size <= shape[dim]):
        first = max(place, 0)
    else:
        return None
    zeros = [0] * len(shape)
    before, behind = (list(shape), list(zeros))
    before[dim], behind[dim] = first, first + size
    parts = [sliced(writer, x, zeros, before)] if first else []
    parts.append(update)
    is_last = writer.program.algebra.is_same(first + size, shape[dim])
    parts += [] if is_last else [sliced(writer, x, behind, shape)]
    return joined(writer, parts, dim)


# ---- what changes nothing


@translates("stablehlo.optimization_barrier")
def _barrier(writer: Writer, op: Operation) -> list[Known]:
    return [writer.known(each) for each in op.operands]
