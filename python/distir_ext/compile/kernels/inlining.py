"""Inlines blocks of a kernel into their readers, as long as the expressions stay small.

A block that is read k times in an expression is written out k times there, and so is what it reads:
eight exponentials in a row, each of which uses its operand often, would become an expression that
no compiler ends with. A block that would make an expression too large keeps its buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo

# Terms of an expression that LLVM still compiles in a fraction of a second.
LARGEST_EXPRESSION = 1024

# How often TVM's lowering for LLVM writes out the operand of an operator; of others once.
_COPIES = {"tirx.tanh": 5, "tirx.tan": 2, "tirx.atanh": 2}

# A bound value is simplified anew in each value that it occurs in, so that nesting them is dear.
_LET = 8

_PARTS = (
    *("a", "b", "args", "indices", "value", "body", "seq"),
    *("condition", "true_value", "false_value", "then_case", "else_case"),
)


def inline_blocks(schedule: s_tir.Schedule, blocks: Sequence[SBlockInfo]) -> list[SBlockInfo]:
    """Inlines blocks into their readers, producers first; the blocks that remain."""
    remaining = []
    for block in blocks:
        if _stays_small(schedule, block.block_rv):
            try:
                schedule.compute_inline(block.block_rv)
                continue
            except s_tir.ScheduleError:
                pass
        remaining.append(block)
    return remaining


def _stays_small(schedule: s_tir.Schedule, block: Any) -> bool:
    """Returns whether all readers of a block stay small if it is inlined into them."""
    if len(schedule.get(block).writes) != 1:
        return False  # nor could it be written out
    written = schedule.get(block).writes[0].source
    terms = _Terms(written).of(schedule.get(block).body)
    return all(
        _Terms(written, terms).of(schedule.get(reader).body) <= LARGEST_EXPRESSION
        for reader in schedule.get_consumers(block)
    )


class _Terms:
    """The number of terms of expressions, once everything is written out.

    A read of ``buffer`` has ``of_read`` terms. What occurs several times is looked at once.
    """

    def __init__(self, buffer: tirx.Var, of_read: int = 1) -> None:
        self.buffer = buffer
        self.of_read = of_read
        # By their hashes, which are identities: ``==`` of expressions makes an expression.
        self._seen: dict[int, int] = {}

    def of(self, node: Any) -> int:
        """Returns the number of terms of an expression, or of all stores of a statement."""
        key = hash(node)
        if key not in self._seen:
            self._seen[key] = self._count(node)
        return self._seen[key]

    def _count(self, node: Any) -> int:
        if isinstance(node, tvm.ir.TensorLoad) and node.source.same_as(self.buffer):
            return self.of_read
        if isinstance(node, tirx.Let):
            return _LET * self.of(node.value) + self.of(node.body)
        copies = 1
        if isinstance(node, tvm.ir.Call) and isinstance(node.op, tvm.ir.Op):
            copies = _COPIES.get(node.op.name, 1)
        return 1 + copies * sum(self.of(part) for part in _parts(node))


def _parts(node: Any) -> Iterator[Any]:
    for name in _PARTS:
        part = getattr(node, name, None)
        if isinstance(part, tvm.ir.Expr | tirx.Stmt):
            yield part
        elif isinstance(part, Sequence):
            yield from part
