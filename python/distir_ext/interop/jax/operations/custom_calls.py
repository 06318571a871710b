"""Translates custom calls by the name of their target, as ``@mhlo.topk``."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op as relax_op

from distir_ext.interop.jax.kernels import elements, kernel_call
from distir_ext.interop.jax.known import Known, constant_of
from distir_ext.interop.jax.operations.reduction import directions_of
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    Value,
    called,
    dtype_of,
    integer,
    only_block,
    shape_of,
    stated_by,
    text,
)
from distir_ext.interop.jax.table import HANDLERS, enter_all, translates
from distir_ext.interop.jax.writer import Writer
from distir_ext.text.errors.spelling import did_you_mean

enter_all(["@mhlo.erf"], HANDLERS["chlo.erf"])
enter_all(["@mhlo.tan"], HANDLERS["chlo.tan"])


@translates("stablehlo.custom_call")
def _custom_call(writer: Writer, op: Operation) -> Any:
    target = text(op, "call_target_name")
    handler = HANDLERS.get(f"@{target}")
    if handler is None:
        known = [each[1:] for each in HANDLERS if each.startswith("@")]
        raise UnsupportedError(f"of {target!r} has no translation{did_you_mean(target, known)}")
    return handler(writer, op)


# Memory spaces and layouts of arrays; XLA decides them on other targets.
@translates(
    "@annotate_device_placement",
    "@LayoutConstraint",
    "@MoveToDevice",
    "@MoveToHost",
    "@PinToDevice",
    "@PinToDeviceSram",
)
def _same(writer: Writer, op: Operation) -> list[Known]:
    return [writer.known(each) for each in list(op.operands)[: len(op.results)]]


@translates("stablehlo.after_all", "stablehlo.create_token")
def _token(_writer: Writer, _op: Operation) -> Known:
    return constant_of(False, "bool", ())


# ---- the largest


@translates("chlo.top_k", "@mhlo.topk")
def _top_k(writer: Writer, op: Operation) -> list[Known]:
    """The k largest or smallest along the last dimension with their places."""
    stated = stated_by(op)
    is_largest = bool(stated["largest"].value) if "largest" in stated else True
    k, dtype = int(stated["k"].value), dtype_of(op.results[1])
    return list(_first(writer, writer.full(op.operands[0]), k, -1, is_largest, dtype))


def _first(
    writer: Writer, x: relax.Expr, k: int, dim: int, is_largest: bool, dtype: str
) -> list[relax.Expr]:
    """The k first values in their order, and their places."""
    both = writer.emit(relax_op.topk(x, k, dim, "both", is_largest, dtype))
    return [writer.emit(relax.TupleGetItem(both, index)) for index in range(2)]


@translates("@ApproxTopK", "@PartialReduce")
def _approx_top_k(writer: Writer, op: Operation) -> list[Known]:
    """The k largest or smallest, and what other tensors have there: all of them are found.

    PartialReduce may ask for more, of which a later step takes the k first.
    """
    target, count = text(op, "call_target_name"), len(op.results)
    dim = int(stated_by(op)["reduction_dim"].value)
    (name,) = called(op)
    if name not in writer.program.functions:
        raise UnsupportedError(f"of {target!r} by @{name}, which the module has not")
    descending = directions_of(only_block(writer.program.functions[name]))
    if descending is None or len(descending) != 1:
        raise UnsupportedError(f"of {target!r} by a region that is not < or > of the first tensor")
    k = shape_of(op.results[0])[dim]
    values = list(op.operands)[:count]
    x = writer.full(values[0])
    largest, places = _first(writer, x, k, dim, descending[0], "int32")
    others = [
        places
        if _is_places(value, dim)
        else writer.emit(relax_op.gather_elements(writer.full(value), places, dim))
        for value in values[1:]
    ]
    return [largest, *others]


def _is_places(value: Value, dim: int) -> bool:
    """Returns whether a value is an iota (0, 1, ..) along a dimension."""
    owner = value.owner
    if getattr(owner, "name", "") != "stablehlo.iota" or dtype_of(value) != "int32":
        return False
    return integer(owner, "iota_dimension") == dim


# ---- integers of 64 bits in two halves


@translates("@X64Combine")
def _combine(writer: Writer, op: Operation) -> Known:
    dtype = dtype_of(op.results[0])

    def make(low: te.Tensor, high: te.Tensor) -> Any:
        def element(*index: Any) -> Any:
            low_bits, high_bits = (each(*index).astype("uint64") for each in (low, high))
            moved = tirx.shift_left(high_bits, tirx.const(32, "uint64"))
            return tirx.bitwise_or(moved, low_bits).astype(dtype)

        return elements(low.shape, element, "whole")

    halves = [writer.full(each) for each in op.operands]
    return writer.emit(kernel_call(writer, "join_halves", make, halves))


@translates("@X64SplitHigh", "@X64SplitLow")
def _half(writer: Writer, op: Operation) -> Known:
    dtype, is_high = dtype_of(op.results[0]), text(op, "call_target_name").endswith("High")

    def make(x: te.Tensor) -> Any:
        def element(*index: Any) -> Any:
            bits = x(*index).astype("uint64")
            half = tirx.shift_right(bits, tirx.const(32, "uint64")) if is_high else bits
            return half.astype("uint32").astype(dtype)

        return elements(x.shape, element, "half")

    return writer.elementwise(op, lambda x: kernel_call(writer, "half_of_bits", make, [x]))
