"""Operations that say or are told sizes that are not known while a program is read."""

from __future__ import annotations

from distir_ext.interop.jax.operations.lookup import gathered
from distir_ext.interop.jax.operations.shapes import along, broadcast, in_shape, numbers, sliced
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    dtype_of,
    integer,
    integers,
    text,
)
from distir_ext.interop.jax.table import translates
from distir_ext.interop.jax.writer import Known, Writer


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
    starts, limits, strides = (writer.sizes(each) for each in list(op.operands)[1:])
    if not all(isinstance(each, int) for each in strides):
        raise UnsupportedError("by strides that are not known")
    return sliced(writer, writer.full(op.operands[0]), starts, limits, strides)


@translates("stablehlo.dynamic_gather")
def _dynamic_gather(writer: Writer, op: Operation) -> Known:
    return gathered(writer, op, writer.sizes(op.operands[2]))


@translates("shape_assertion")
def _shape_assertion(writer: Writer, op: Operation) -> list[Known]:
    """What JAX expects of sizes, which Relax's symbolic shapes have to say by themselves."""
    holds = writer.constant(op.operands[0])
    if holds is None or not bool(holds):
        expected = text(op, "error_message").partition("Using the following")[0].strip()
        raise UnsupportedError(f"is an assertion of sizes that Relax does not check: {expected}")
    return []
