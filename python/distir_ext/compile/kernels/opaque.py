"""Defines functions that TIR passes see as calls and that code generation sees as expressions.

An expression that writes its operand several times grows as a power of the depth to which such
expressions are nested, and TVM's simplifier takes longer still. A call of an opaque function has
each operand once. Behind TVM's passes, where only code is made of kernels, it becomes the
expression of its operands (:func:`expanded`). For a nest::

    out[i] = f(f(x[i]))

the inner one goes to a local buffer of one element, which LLVM keeps in a register::

    value[0] = x[i] * x[i]
    out[i] = value[0] * value[0]

A variable would not do: TVM puts the value of one into each expression that it simplifies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import _ffi_api
from tvm.ir.expr import TensorLoad

from distir_ext.compile.kernels.expressions import bind

__all__ = ["OpaqueFunction", "expanded", "hide_selections"]

_PURE = 1  # CallEffectKind::kPure of TVM

_FUNCTIONS: dict[str, OpaqueFunction] = {}

Expression = Callable[..., Any]


class OpaqueFunction:
    """A function that is called in kernels, and takes numbers or vectors of them.

    Args:
        name: Its name, as it is printed.
        expression: Makes the expression of its value from its operands.
        repeats: Whether the expression has an operand several times.
    """

    def __init__(self, name: str, expression: Expression, *, repeats: bool = True) -> None:
        self.name = f"distir.kernel.{name}"
        self.expression = expression
        self.repeats = repeats
        if self.name not in tvm.ir.Op.list_op_names():
            _ffi_api.RegisterOp(self.name, "")
            operator = tvm.ir.Op.get(self.name)
            operator.set_attr("TCallEffectKind", _PURE)
            operator.set_attr("TVectorizable", True)
            operator.set_attr("TScriptPrinterName", self.name)
        _FUNCTIONS[self.name] = self

    def __call__(self, dtype: Any, *args: Any) -> Any:
        """Returns a call whose value is of a dtype."""
        return tirx.call_intrin(dtype, self.name, *args)


def expanded(
    function: tirx.PrimFunc, operators: Mapping[type, Callable[[Any], Expression | None]]
) -> tirx.PrimFunc:
    """A kernel in which opaque functions and some operators of TVM are expressions.

    Args:
        function: A kernel.
        operators: For an operator with ``a`` and ``b``, the expression of these two that replaces
            it; None where it stays.
    """
    return _Expansion(operators).of_function(function)


def hide_selections(value: Any) -> Any:
    """An operand of a comparison, whose selections by data are opaque.

    TVM's simplifier looks at a condition several times, so that conditions within conditions take
    a time that grows as a power of their depth.
    """

    def hide(node: Any) -> Any:
        if isinstance(node, tirx.Select):
            return _SELECT(node.ty, node.condition, node.true_value, node.false_value)
        is_of_data = _is_conditional(node) and _reads(node.args[0])
        return _SELECT(node.ty, *node.args) if is_of_data else node

    return tvm_ffi.structural_map(value, ((tirx.Select, tvm.ir.Call), hide))


def _function(node: Any) -> OpaqueFunction | None:
    return _FUNCTIONS.get(getattr(node.op, "name", ""))


def _selected(condition: Any, first: Any, second: Any) -> Any:
    """A selection; where one of the two reads what the condition does not, it is guarded by it.

    A chain of branches takes LLVM a time that grows as a power of its length.
    """
    if condition.ty.dtype.lanes == 1 and not _reads(first, second) <= _reads(condition):
        return tirx.if_then_else(condition, first, second)
    return tirx.Select(condition, first, second)


_SELECT = OpaqueFunction("select", _selected, repeats=False)


class _Expansion:
    """Replaces what repeats its operands."""

    def __init__(self, operators: Mapping[type, Callable[[Any], Expression | None]]) -> None:
        self._operators = operators
        self._kinds = (tvm.ir.Call, *operators)

    def of_function(self, function: tirx.PrimFunc) -> tirx.PrimFunc:
        return tvm_ffi.structural_map(
            tvm_ffi.structural_map(function, (tirx.BufferStore, self._store)),
            (self._kinds, self._expand),
        )

    def _store(self, node: Any) -> Any:
        if not self._is_nested(node.value):
            return node
        before, value = self._in_sequence(node.value)
        return tirx.SeqStmt([*before, tirx.BufferStore(node.buffer, value, node.indices)])

    def _expression(self, node: Any) -> Expression | None:
        """The expression that replaces a node, if it repeats an operand."""
        if isinstance(node, tvm.ir.Call):
            found = _function(node)
            return found.expression if found is not None and found.repeats else None
        return self._operators[type(node)](node)

    def _repeats(self, value: Any) -> bool:
        found = False

        def see(node: Any) -> None:
            nonlocal found
            found = found or self._expression(node) is not None

        tvm_ffi.structural_walk(value, (self._kinds, see))
        return found

    def _is_nested(self, value: Any) -> bool:
        """Returns True if what repeats its operands has such a one in an operand.

        A selection that is part of a condition counts as such a one.
        """
        found = False

        def see(node: Any) -> None:
            nonlocal found
            if found:
                return
            if _is_selection(node):
                found = True
            elif self._expression(node) is not None:
                found = any(map(self._repeats, _operands(node)))

        tvm_ffi.structural_walk(value, (self._kinds, see))
        return found

    def _in_sequence(self, value: Any) -> tuple[list[Any], Any]:
        """Statements that come first, and what a nested expression is behind them.

        What a condition guards stays guarded.
        """
        before: list[Any] = []

        def separate(node: Any) -> Any:
            if isinstance(node, tirx.Let):
                if not self._is_nested(node):
                    return node
                bound = self._stored(node.value, before)
                body = tvm_ffi.structural_map(
                    node.body, (tirx.Var, lambda each: bound if each.same_as(node.var) else each)
                )
                return separate(body)  # only what is within it is separated otherwise
            if _is_selection(node):
                return self._stored(_selected(*node.args), before)
            if not _is_conditional(node) or not any(map(self._is_nested, node.args)):
                return node
            buffer = _local(node)
            before.append(tirx.AllocBuffer(buffer))
            self._store_case(buffer, node, before)
            return _load(buffer)

        def expand(node: Any) -> Any:
            return self._expand(node, before)

        value = tvm_ffi.structural_map(value, ((tvm.ir.Call, tirx.Let), separate), order="pre")
        return before, tvm_ffi.structural_map(value, (self._kinds, expand))

    def _store_case(self, buffer: Any, node: Any, before: list[Any]) -> None:
        first, condition = self._in_sequence(node.args[0])
        cases = [self._store(_store(buffer, each)) for each in node.args[1:]]
        before.extend([*first, tirx.IfThenElse(condition, *cases)])

    def _stored(self, value: Any, before: list[Any]) -> Any:
        buffer = _local(value)
        before.append(tirx.AllocBuffer(buffer))
        if _is_conditional(value) and any(map(self._is_nested, value.args)):
            self._store_case(buffer, value, before)
        else:
            before.append(self._store(_store(buffer, value)))
        return _load(buffer)

    def _expand(self, node: Any, before: list[Any] | None = None) -> Any:
        """The expression of a node whose operands are expanded."""
        expression = self._expression(node)
        if expression is None:
            found = _function(node) if isinstance(node, tvm.ir.Call) else None
            return node if found is None else found.expression(*node.args)

        def of_bound(bound: list[Any], rest: list[Any]) -> Any:
            if not rest:
                return expression(*bound)
            if before is not None and not _is_simple(rest[0]):
                return of_bound([*bound, self._stored(rest[0], before)], rest[1:])
            return bind(rest[0], lambda value: of_bound([*bound, value], rest[1:]))

        return of_bound([], _operands(node))


def _operands(node: Any) -> list[Any]:
    return list(node.args) if isinstance(node, tvm.ir.Call) else [node.a, node.b]


def _is_simple(value: Any) -> bool:
    """Returns True for what is read, and for a number."""
    while isinstance(value, tirx.Cast | tirx.Broadcast):
        value = value.value
    return isinstance(value, TensorLoad | tirx.Var | tirx.IntImm | tirx.FloatImm)


def _is_conditional(node: Any) -> bool:
    return isinstance(node, tvm.ir.Call) and getattr(node.op, "name", "") == "prim.if_then_else"


def _is_selection(node: Any) -> bool:
    return isinstance(node, tvm.ir.Call) and _function(node) is _SELECT


def _reads(*values: Any) -> set[Any]:
    """Lists the reads in some expressions, with their places."""
    found: set[Any] = set()

    def see(node: Any) -> None:
        found.add(tvm_ffi.StructuralKey(node))  # type: ignore[call-arg]

    for value in values:
        tvm_ffi.structural_walk(value, (TensorLoad, see))
    return found


def _local(value: Any) -> Any:
    """A buffer for a number, or for a vector of them."""
    dtype = value.ty.dtype
    scalar = str(dtype).removesuffix(f"x{dtype.lanes}")
    return tirx.decl_buffer((dtype.lanes,), scalar, name="value", scope="local")


def _index(buffer: Any) -> Any:
    lanes = int(buffer.ty.shape[0])
    return tirx.const(0, "int32") if lanes == 1 else tirx.Ramp(0, 1, lanes)


def _store(buffer: Any, value: Any) -> Any:
    return tirx.BufferStore(buffer, value, [_index(buffer)])


def _load(buffer: Any) -> Any:
    return tirx.BufferLoad(buffer, [_index(buffer)])
