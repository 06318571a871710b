"""Finds indices that count rows: the first ones of ``x[jnp.arange(n), places]``."""

from __future__ import annotations

from distir_ext.interop.jax.stablehlo import (
    Operation,
    Value,
    array_of,
    enumerator,
    integer,
    integers,
    open_tensor_of,
)


def columns_of(indices: Value, vector: int) -> list[Value] | None:
    """The values that index vectors have their numbers from, by position; None if not known.

    Args:
        indices: A tensor of index vectors.
        vector: Its dimension that holds the vectors; its rank where they are single numbers.
    """
    shape = _shape_of(indices)
    if vector == len(shape) or shape[vector] == 1:
        return [indices]
    op = _made_by(indices)
    if op is None or op.name != "stablehlo.concatenate" or integer(op, "dimension") != vector:
        return None
    columns = list(op.operands)
    return columns if all(_shape_of(each)[vector] == 1 for each in columns) else None


def counted_dim(value: Value) -> int | None:
    """The dimension along which each element is its own index; None if there is none."""
    op = _made_by(value)
    if op is None:
        return None
    name = op.name
    if name == "stablehlo.iota":
        return integer(op, "iota_dimension")
    if name == "stablehlo.convert":
        return counted_dim(op.operands[0])
    if name == "stablehlo.select" and _is_negative(op.operands[0], op.operands[2]):
        return counted_dim(op.operands[2])
    if name not in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
        return None
    dim = counted_dim(op.operands[0])
    if dim is None:
        return None
    before, after = _shape_of(op.operands[0]), _shape_of(value)
    if name == "stablehlo.broadcast_in_dim":
        moved = integers(op, "broadcast_dimensions")[dim]
        return moved if before[dim] == after[moved] else None
    # Only dimensions of size 1 come and go.
    long_before = [each for each, size in enumerate(before) if size != 1]
    long_after = [each for each, size in enumerate(after) if size != 1]
    if [before[each] for each in long_before] != [after[each] for each in long_after]:
        return None
    return long_after[long_before.index(dim)] if dim in long_before else None


def _is_negative(condition: Value, value: Value) -> bool:
    """Returns whether a condition says that a value is below 0: what JAX wraps indices by."""
    op = _made_by(condition)
    if op is None or op.name != "stablehlo.compare" or op.operands[0] != value:
        return False
    return enumerator(op, "comparison_direction") == "LT" and _is_zero(op.operands[1])


def _is_zero(value: Value) -> bool:
    op = _made_by(value)
    while op is not None and op.name == "stablehlo.broadcast_in_dim":
        op = _made_by(op.operands[0])
    if op is None or op.name != "stablehlo.constant":
        return False
    return not array_of(op.attributes["value"]).any()


def _made_by(value: Value) -> Operation | None:
    """The operation that a value is the result of; None for arguments of blocks."""
    op = getattr(value.owner, "operation", value.owner)
    return op if hasattr(op, "operands") else None


def _shape_of(value: Value) -> tuple[int | None, ...]:
    return open_tensor_of(value.type)[0]
