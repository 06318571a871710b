"""Translates Shardy operations on whole values: constraints, groups, barriers, collectives.

A collective of ``sdy`` changes how a value is sharded, and not the value: it is a constraint by its
``out_sharding``.
"""

from __future__ import annotations

from typing import Any

import tvm

from distir_ext.annotate.constrain import barrier
from distir_ext.interop.jax.known import Known
from distir_ext.interop.jax.shardings import per_value
from distir_ext.interop.jax.sizes import Sizes
from distir_ext.interop.jax.stablehlo import (
    Operation,
    integer,
    only_block,
)
from distir_ext.interop.jax.table import translates
from distir_ext.interop.jax.writer import Writer


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
    """The value as it is: what is stated of results is read for all operations."""
    return writer.values[op.operands[0]]


# By the directions in which shardings may spread, what a barrier blocks: of the numbers of
# sdy.PropagationDirection NONE is 0, FORWARD 1, BACKWARD 2.
_BLOCKED = {0: "both", 1: "backward", 2: "forward"}


@translates("sdy.propagation_barrier")
def _barrier(writer: Writer, op: Operation) -> Known:
    blocked = _BLOCKED[integer(op, "allowed_direction")]
    return writer.emit(barrier(writer.full(op.operands[0]), blocked))


@translates("sdy.sharding_group")
def _group(writer: Writer, op: Operation) -> list[Known]:
    """Ties a value to the others of a group; from here on it is the tied one."""
    (value,) = op.operands
    expr = writer.part(writer.full(value))
    group = "sharding_group", integer(op, "group_id")
    writer.set(value, writer.program.groups.tied(writer, group, expr))
    return []


@translates("sdy.named_computation")
def _named_computation(writer: Writer, op: Operation) -> list[Known]:
    """Inlines a named computation, with the shardings of its operands and results."""
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
