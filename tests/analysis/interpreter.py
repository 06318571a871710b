"""Counts a kernel's operations by interpreting all its loop iterations."""

from __future__ import annotations

import collections
import operator

from tvm import tirx

_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max")
_INTEGERS = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Min": min,
    "Max": max,
}
_ROUNDING = ("ceil", "fabs", "floor", "fmod", "nearbyint", "round", "trunc")
_OTHERS = ("if_then_else", "reinterpret", "likely", "isnan", "bitwise_and", "shift_left")


class Counts:
    def __init__(self):
        self.flops = 0
        self.transcendentals = 0
        self.read = collections.defaultdict(set)  # places, by buffer
        self.written = collections.defaultdict(set)

    def run(self, kernel: tirx.PrimFunc) -> Counts:
        self._statement(kernel.body, {})
        return self

    def _statement(self, statement, values):
        kind = type(statement).__name__
        if kind == "For":
            first, extent = (
                self._value(each, values) for each in (statement.min, statement.extent)
            )
            for turn in range(first, first + extent):
                self._statement(statement.body, {**values, statement.loop_var: turn})
        elif kind == "SBlockRealize":
            block = statement.block
            inner = dict(values)
            for iterator, value in zip(block.iter_vars, statement.iter_values, strict=True):
                inner[iterator.var] = self._value(value, values)
            reductions = [
                inner[each.var] == 0 for each in block.iter_vars if int(each.iter_type) == 2
            ]
            if block.init is not None and all(reductions):
                self._statement(block.init, inner)
            self._statement(block.body, inner)
        elif kind == "SeqStmt":
            for each in statement.seq:
                self._statement(each, values)
        elif kind == "BufferStore":
            self._count(statement.value, values)
            self.written[statement.buffer].add(self._place(statement.indices, values))
        else:
            raise NotImplementedError(kind)

    def _place(self, indices, values):
        return tuple(self._value(index, values) for index in indices)

    def _value(self, expr, values):
        kind = type(expr).__name__
        if kind == "IntImm":
            return int(expr)
        if kind == "Var":
            return values[expr]
        if kind == "Cast":
            return self._value(expr.value, values)
        if kind == "TensorLoad":
            return 0  # data, which counts do not depend on
        return _INTEGERS[kind](self._value(expr.a, values), self._value(expr.b, values))

    def _count(self, expr, values):
        kind = type(expr).__name__
        is_float = "float" in str(expr.ty.dtype)
        if kind in ("FloatImm", "IntImm", "Var"):
            return
        if kind in ("TensorLoad", "BufferLoad"):
            place = self._place(expr.indices, values)
            source = expr.source if hasattr(expr, "source") else expr.buffer
            if place not in self.written[source]:
                self.read[source].add(place)
            return
        if kind == "Call":
            name = expr.op.name.split(".")[-1]
            for arg in expr.args:
                self._count(arg, values)
            if name in _ROUNDING:
                self.flops += is_float
            elif name not in _OTHERS:
                self.transcendentals += 1
            return
        if kind == "Cast":
            self._count(expr.value, values)
            return
        if kind == "Select":
            for part in (expr.condition, expr.true_value, expr.false_value):
                self._count(part, values)
            return
        self._count(expr.a, values)
        self._count(expr.b, values)
        if kind in _ARITHMETIC:
            self.flops += is_float
