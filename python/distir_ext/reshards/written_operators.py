"""Index of the user's operators by their operands and results.

Passes put operators of their own between a value and its reader. Of rows that shards do not divide,
a sort gets what a slice has cut off behind a redistribution; the user wrote the sort.
"""

from __future__ import annotations

import tvm
from tvm import relax

from distir_ext.structure.annotated_function import bindings_of

# Of these, the result is the operand for users.
_PASSED = ("relax.dist.annotate_sharding", "relax.dist.redistribute")


class WrittenOperators:
    """Operators of a function, by the names of variables."""

    def __init__(self, function: relax.Function | None) -> None:
        self._makers: dict[str, str] = {}
        self._readers: dict[str, dict[str, None]] = {}
        same: dict[str, str] = {}  # the value that another one is
        for binding in bindings_of(function.body) if function is not None else ():
            value, name = binding.value, str(binding.var.name)
            if isinstance(value, relax.Var):
                same[name] = same.get(str(value.name), str(value.name))
                continue
            if not isinstance(value, relax.Call):
                continue
            read = [same.get(each, each) for arg in value.args for each in _names(arg)]
            operator = value.op.name if isinstance(value.op, tvm.ir.Op) else ""
            if operator.startswith("relax.call_"):  # passes know the name of what is called
                operator = ""
            if operator in _PASSED and read:
                same[name] = read[0]
                continue
            self._makers[name] = operator
            for each in read:
                self._readers.setdefault(each, {})[operator] = None
        self._same = same
        self._known = frozenset(self._makers.values())

    def readers(self, variable: str, found: tuple[str, ...]) -> tuple[str, ...]:
        """Operators that read a variable: those found by passes, if the user wrote one of them."""
        written = self._readers.get(self._same.get(variable, variable), {})
        if not written or "" in written or any(each in written for each in found):
            return found
        return tuple(written)

    def maker(self, variable: str, found: tuple[str, ...]) -> tuple[str, ...]:
        """The operator that makes a variable: that found by passes, if the user wrote it."""
        made = self._makers.get(self._same.get(variable, variable))
        return found if not made or self._known.intersection(found) else (made,)


def _names(value: relax.Expr) -> list[str]:
    if isinstance(value, relax.Tuple):
        return [each for field in value.fields for each in _names(field)]
    return [str(value.name)] if isinstance(value, relax.Var) else []
