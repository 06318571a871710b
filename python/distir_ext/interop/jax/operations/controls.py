"""Operations of Shardy's dialect on whole values: constraints, groups, barriers, and collectives.

A collective of ``sdy`` changes how a value is sharded, and not the value: it is a constraint by its
``out_sharding``.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from distir_ext.constrain import barrier, constrain
from distir_ext.interop.jax.program import Known
from distir_ext.interop.jax.shardings import per_value
from distir_ext.interop.jax.sizes import Sizes
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    integer,
    only_block,
)
from distir_ext.interop.jax.table import translates
from distir_ext.interop.jax.writer import Writer, sizes_of


def _stated(writer: Writer, op: Operation, attribute: str) -> Known:
    """The operand, with the sharding of an attribute that may be absent."""
    known = writer.values[op.operands[0]]
    if attribute not in op.attributes or isinstance(known, Sizes):
        return known
    entity = "the constrained value" if attribute == "sharding" else f"the result of {op.name}"
    return writer.annotated(known, op.attributes[attribute], entity)


@translates("sdy.sharding_constraint", "sdy.reshard", "sdy.data_flow_edge")
def _constraint(writer: Writer, op: Operation) -> Known:
    return _stated(writer, op, "sharding")


@translates(
    "sdy.all_gather",
    "sdy.all_reduce",
    "sdy.all_slice",
    "sdy.all_to_all",
    "sdy.collective_permute",
    "sdy.reduce_scatter",
    "sdy.replicated_to_unreduced",
    "sdy.sharded_to_unreduced",
)
def _collective(writer: Writer, op: Operation) -> Known:
    return _stated(writer, op, "out_sharding")


@translates("sdy.func_data_flow_edge")
def _edge(writer: Writer, op: Operation) -> Known:
    known, name = writer.values[op.operands[0]], "sdy.sharding"
    if name not in op.attributes or isinstance(known, Sizes):
        return known
    return writer.annotated(known, per_value(op, name)[0], "a value between functions")


# By the directions in which shardings may spread, what a barrier blocks: of the numbers of
# sdy.PropagationDirection NONE is 0, FORWARD 1, BACKWARD 2.
_BLOCKED = {0: "both", 1: "backward", 2: "forward"}


@translates("sdy.propagation_barrier")
def _barrier(writer: Writer, op: Operation) -> Known:
    blocked = _BLOCKED[integer(op, "allowed_direction")]
    return writer.emit(barrier(writer.full(op.operands[0]), blocked))


@translates("sdy.sharding_group")
def _group(writer: Writer, op: Operation) -> list[Known]:
    """Ties a value to the one that was named for the group before; from here on both are tied."""
    (value,) = op.operands
    number = integer(op, "group_id")
    groups = writer.program.sharding_groups
    around, other = groups.get(number, (writer, value))
    groups[number] = writer, value
    if other == value:
        return []
    if around is not writer:
        raise UnsupportedError(f"ties group {number} of values in several functions")
    exprs = [writer.part(writer.full(each)) for each in (other, value)]
    if sizes_of(exprs[0]) != sizes_of(exprs[1]):
        raise UnsupportedError(f"ties group {number} of values of different shapes")
    if exprs[0].same_as(exprs[1]):
        return []
    tied = writer.emit(constrain(*exprs))
    for index, each in enumerate((other, value)):
        writer.set(each, writer.emit(relax.TupleGetItem(tied, index)))
    return []


@translates("sdy.named_computation")
def _named_computation(writer: Writer, op: Operation) -> list[Known]:
    """What a computation that has a name for its users does, with the shardings at its edges."""
    given = [writer.values[each] for each in op.operands]
    results = writer.block(only_block(op), _edges(writer, op, "in_shardings", given))
    return _edges(writer, op, "out_shardings", results)


def _edges(writer: Writer, op: Operation, name: str, values: list[Known]) -> list[Known]:
    if name not in op.attributes:
        return values
    shardings: list[Any] = per_value(op, name)
    return [
        known
        if isinstance(known, Sizes | tvm.ir.GenericConst)
        else writer.annotated(known, sharding, "a value of a named computation")
        for known, sharding in zip(values, shardings, strict=True)
    ]
