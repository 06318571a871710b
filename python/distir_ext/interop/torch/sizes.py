"""Converts symbolic sizes of torch.export to the variables of TVM's frontend.

Sym(s70 - 1)        s70 - 1, where s70 is the dimension of an input
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from torch import fx
from tvm import relax, tirx

_OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": lambda one, other: one + other,
    "Mul": lambda one, other: one * other,
    "FloorDiv": tirx.floordiv,
    "Mod": tirx.floormod,
    "PythonMod": tirx.floormod,
    "Min": tirx.min,
    "Max": tirx.max,
}


class Sizes:
    """The symbols of an exported program."""

    def __init__(self) -> None:
        self._variables: dict[str, Any] = {}

    def learn(self, node: fx.Node, value: Any) -> None:
        """Takes note of the dimensions of an input."""
        if not isinstance(value, relax.Var) or not isinstance(value.ty, relax.TensorType):
            return
        for size, variable in zip(node.meta["val"].shape, value.ty.shape or (), strict=False):
            expression = getattr(getattr(size, "node", None), "expr", None)
            if type(expression).__name__ == "Symbol":
                self._variables.setdefault(str(expression), variable)

    def expression(self, size: Any) -> Any:
        """A size as TVM has it: an int, or an expression; None where it cannot be told.

        Args:
            size: An int, a ``torch.SymInt``, or a node whose value is one.
        """
        if isinstance(size, fx.Node):
            size = size.meta.get("val")
        if isinstance(size, int) and not isinstance(size, bool):
            return size
        return self._expression(getattr(getattr(size, "node", None), "expr", None))

    def _expression(self, expression: Any) -> Any:
        if expression is None:
            return None
        if getattr(expression, "is_Integer", False):
            return int(expression)
        kind = type(expression).__name__
        if kind == "Symbol":
            return self._variables.get(str(expression))
        parts = [self._expression(each) for each in expression.args]
        if kind not in _OPERATIONS or any(part is None for part in parts):
            return None
        return reduce(_OPERATIONS[kind], parts)
