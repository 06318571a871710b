"""Translates operations that return sizes, or take sizes that are known only at run time."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.relax import op as relax_op

from distir_ext.interop.jax.known import Known, sizes_of
from distir_ext.interop.jax.operations.lookup import gathered
from distir_ext.interop.jax.operations.shapes import along, broadcast, in_shape, numbers, sliced
from distir_ext.interop.jax.sizes import Size
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    Value,
    dtype_of,
    integer,
    integers,
    text,
)
from distir_ext.interop.jax.table import translates
from distir_ext.interop.jax.writer import Writer


@translates("stablehlo.get_dimension_size")
def _get_dimension_size(writer: Writer, op: Operation) -> Known:
    size = writer.shape(writer.known(op.operands[0]))[integer(op, "dimension")]
    return writer.number(size, dtype_of(op.results[0]))


@translates("stablehlo.dynamic_broadcast_in_dim")
def _dynamic_broadcast_in_dim(writer: Writer, op: Operation) -> Known:
    known, shape = writer.known(op.operands[0]), writer.sizes(op.operands[1])
    return broadcast(writer, known, shape, integers(op, "broadcast_dimensions"))


@translates("stablehlo.dynamic_reshape")
def _dynamic_reshape(writer: Writer, op: Operation) -> Known:
    return in_shape(writer, op, writer.sizes(op.operands[1]))


@translates("stablehlo.dynamic_iota")
def _dynamic_iota(writer: Writer, op: Operation) -> Known:
    shape, dim = writer.sizes(op.operands[0]), integer(op, "iota_dimension")
    return along(writer, numbers(writer, shape[dim], dtype_of(op.results[0])), dim, shape)


@translates("stablehlo.real_dynamic_slice")
def _real_dynamic_slice(writer: Writer, op: Operation) -> Known:
    x, start, limit, stride = op.operands
    strides = writer.sizes(stride)
    if not all(isinstance(each, int) for each in strides):
        raise UnsupportedError("by strides that are not known")
    if writer.integers(start) is None and all(each == 1 for each in strides):
        return _slice_at(writer, x, start, _behind(writer, start, limit))
    return sliced(writer, writer.full(x), writer.sizes(start), writer.sizes(limit), strides)


def _behind(writer: Writer, start: Value, limit: Value) -> tuple[Size, ...]:
    """Returns the sizes of slices: limit less start, which JAX writes as start plus size."""
    made = getattr(limit.owner, "operation", limit.owner)
    operands = list(made.operands) if getattr(made, "name", "") == "stablehlo.add" else []
    if start in operands:
        operands.remove(start)
        return writer.sizes(operands[0])
    return writer.sizes(limit)


def _slice_at(writer: Writer, x: Value, start: Value, sizes: Sequence[Size]) -> Known:
    """A slice of these sizes, which begins where tensors say, and is in bounds."""
    made, places = writer.full(x), writer.full(start)
    dtype = str(places.ty.dtype)
    is_same = writer.program.algebra.is_same
    for dim, (size, extent) in enumerate(zip(sizes, sizes_of(made), strict=True)):
        if not is_same(size, extent):
            first = sliced(writer, places, [dim], [dim + 1])
            rows = writer.emit(relax_op.add(numbers(writer, size, dtype), first))
            made = writer.emit(relax_op.take(made, rows, axis=dim))
    return made


@translates("stablehlo.dynamic_gather")
def _dynamic_gather(writer: Writer, op: Operation) -> Known:
    return gathered(writer, op, writer.sizes(op.operands[2]))


@translates("@shape_assertion")
def _shape_assertion(writer: Writer, op: Operation) -> list[Known]:
    """Checks an assertion of JAX about sizes, which has to follow from Relax's symbolic shapes."""
    holds = writer.constant(op.operands[0])
    if holds is None or not bool(holds):
        expected = text(op, "error_message").partition("Using the following")[0].strip()
        raise UnsupportedError(f"is an assertion of sizes that Relax does not check: {expected}")
    return []
