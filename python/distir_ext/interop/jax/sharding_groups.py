"""Ties values to one sharding by group: Shardy's ``sharding_group``, GSPMD's ``shard_as``."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import tvm
from tvm import relax

from distir_ext.annotate.open_regions import Region
from distir_ext.interop.jax.known import sizes_of
from distir_ext.interop.jax.stablehlo import UnsupportedError

Name = tuple[str, int]
"""A group: which dialect has it, and its number there."""


class FunctionWriter(Protocol):
    """The writer of a function, as far as groups use it."""

    program: Any
    region: Region | None

    def emit(self, expr: relax.Expr, name: str = "lv") -> relax.Var:
        """Binds a value to a new variable."""


class _First(NamedTuple):
    """The first value of a group, and where it is."""

    expr: relax.Expr
    writer: FunctionWriter
    region: Region | None


class ShardingGroups:
    """The groups of a program."""

    def __init__(self) -> None:
        self._first: dict[Name, _First] = {}

    def copy(self) -> ShardingGroups:
        """The groups so far."""
        made = ShardingGroups()
        made._first = dict(self._first)
        return made

    def tied(self, writer: FunctionWriter, group: Name, expr: relax.Expr) -> relax.Expr:
        """A value that is sharded as all others of its group.

        Args:
            writer: Of the function.
            group: The group.
            expr: The value, as the region has it that is written.

        Raises:
            UnsupportedError: Others are in another function or manual computation, or have another
                shape.
        """
        first = self._first.setdefault(group, _First(expr, writer, writer.region))
        if first.expr is expr:
            return expr
        name = f"is in sharding group {group[1]} with a value"
        if first.writer is not writer:
            raise UnsupportedError(f"{name} of another function")
        if first.region != writer.region:
            raise UnsupportedError(f"{name} beyond the edge of a manual computation")
        if not writer.program.algebra.are_same(sizes_of(first.expr), sizes_of(expr)):
            shapes = " and ".join(
                f"({', '.join(map(str, sizes_of(each)))})" for each in (first.expr, expr)
            )
            raise UnsupportedError(f"{name} of another shape: {shapes}")
        op = tvm.ir.Op.get("relax.dist.sharding_group")
        pair = writer.emit(relax.Call(op, [relax.Tuple([first.expr, expr])], None))
        return writer.emit(relax.TupleGetItem(pair, 1), "tied")
