"""Evaluates symbolic sizes, which signatures write as expressions."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from urllib.parse import unquote

from distir_ext.text.printable import shown

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
        if set(names_in(dim)) <= sizes.keys():
            raise ValueError(
                f"the size {shown(dim)} is computed in a way that Python cannot follow"
            ) from error
        return None


def names_in(dim: Dim) -> list[str]:
    """The symbolic variables that a size is computed from, each once; its own name of a name."""
    if isinstance(dim, int):
        return []
    try:
        expression = ast.parse(dim, mode="eval").body
    except SyntaxError:
        return [dim]
    called = {id(each.func) for each in ast.walk(expression) if isinstance(each, ast.Call)}
    found: dict[str, None] = {}
    for each in ast.walk(expression):
        if isinstance(each, ast.Name) and id(each) not in called and each.id != "T":
            found[each.id] = None
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            found[unquote(each.value)] = None
    return list(found)


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
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return sizes[unquote(node.value)]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand, sizes)
    if isinstance(node, ast.BinOp):
        operation = _OPERATIONS[type(node.op)]
        return operation(_evaluate(node.left, sizes), _evaluate(node.right, sizes))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        values = [_evaluate(each, sizes) for each in node.args]
        if name.startswith(("int", "uint")) and len(values) == 1:  # T.int64(4)
            return values[0]
        return _FUNCTIONS[name](*values)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        compare = _COMPARISONS[type(node.ops[0])]
        return compare(_evaluate(node.left, sizes), _evaluate(node.comparators[0], sizes))
    raise KeyError(ast.dump(node))
