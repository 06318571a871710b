"""Symbolic sizes: expressions as signatures write them, and their values."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from distir_ext._text.printable import shown

Dim = int | str


def size_of(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    """A size, which may be an expression of variables; None where one of them is not given.

    >>> size_of("(n + 1) // 2 * m", {"n": 3, "m": 4})
    8

    Raises:
        ValueError: All are given, but it is no arithmetic that is known here.
    """
    if isinstance(dim, int):
        return dim
    if dim in sizes:
        return sizes[dim]
    try:
        expression = ast.parse(dim, mode="eval").body
        return _evaluate(expression, sizes)
    except (SyntaxError, ZeroDivisionError):
        return None
    except KeyError as error:
        names = {each.id for each in ast.walk(expression) if isinstance(each, ast.Name)} - {"T"}
        if names <= sizes.keys():
            raise ValueError(
                f"the size {shown(dim)} is computed in a way that Python cannot follow"
            ) from error
        return None


_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: Mapping[str, Callable[..., int]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "truncdiv": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "truncmod": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
    "if_then_else": lambda condition, a, b: a if condition else b,
    "Select": lambda condition, a, b: a if condition else b,
}


def _evaluate(node: ast.expr, sizes: Mapping[str, int]) -> int:
    """Raises KeyError for what is no known size, and no arithmetic as TVM prints it."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand, sizes)
    if isinstance(node, ast.BinOp):
        operation = _OPERATIONS[type(node.op)]
        return operation(_evaluate(node.left, sizes), _evaluate(node.right, sizes))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        values = [_evaluate(each, sizes) for each in node.args]
        if node.func.attr.startswith(("int", "uint")) and len(values) == 1:  # T.int64(4)
            return values[0]
        return _FUNCTIONS[node.func.attr](*values)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        compare = _COMPARISONS[type(node.ops[0])]
        return compare(_evaluate(node.left, sizes), _evaluate(node.comparators[0], sizes))
    raise KeyError(ast.dump(node))
