"""Replaces calls in a function.

Bindings that stay keep their variables and their values, and a call that is replaced keeps its
variable, so that whatever is known of them stays true.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import tvm
from tvm import relax


def key(value: relax.Expr) -> Any:
    """Tells values apart by what they are, not by what they say."""
    return value.__chandle__()


class Contents:
    """Bindings of a function, and the readers of each value.

    Attributes:
        num_calls: Number of calls that are bound.
        names: Names of its variables.
        defined: Keys of its variables.
        values: By variable, as patterns take them.
        readers: By key of a value that is bound: the keys of values that read it, and None for
            each place that returns it. Other names of a variable are the variable.
        variables: By key of a value that is bound, the variable.
    """

    def __init__(self, function: relax.Function) -> None:
        self.num_calls = 0
        self.names = {param.name for param in function.params}
        self.defined = {key(param) for param in function.params}
        self.values = relax.analysis.get_var2val(function)
        self.readers: dict[Any, list[Any]] = {}
        self.variables: dict[Any, relax.Var] = {}
        self._stands_for: dict[Any, Any] = {}
        self._read(function.body)

    def _read(self, body: relax.SeqExpr) -> None:
        for block in body.blocks:
            for binding in block.bindings:
                self._read_binding(binding)
        self._reads(body.body, None)

    def _read_binding(self, binding: relax.Binding) -> None:
        value, var = binding.value, binding.var
        self.names.add(var.name)
        self.defined.add(key(var))
        if isinstance(binding, relax.VarBinding) and isinstance(value, relax.Var):
            if key(value) in self._stands_for:
                self._stands_for[key(var)] = self._stands_for[key(value)]
            return
        if isinstance(value, relax.If):
            self._reads(value.cond, None)
            self._read(value.true_branch)
            self._read(value.false_branch)
        else:
            self._reads(value, key(value))
        self.num_calls += isinstance(value, relax.Call)
        self._stands_for[key(var)] = key(value)
        self.variables.setdefault(key(value), var)
        self.readers.setdefault(key(value), [])

    def _reads(self, value: relax.Expr, reader: Any) -> None:
        for var in {key(var) for var in variables_in(value)}:
            if var in self._stands_for:
                self.readers[self._stands_for[var]].append(reader)


def variables_in(value: relax.Expr) -> list[relax.Var]:
    """Lists the variables that an expression reads."""
    found: list[relax.Expr] = []
    relax.analysis.post_order_visit(value, found.append)
    return [each for each in found if isinstance(each, relax.Var)]


class Writer:
    """Writes an expression as bindings in front of one that it is for.

    Args:
        known: Contents of the function.
        binding: The binding whose value is replaced.
    """

    def __init__(self, known: Contents, binding: relax.VarBinding) -> None:
        self.bindings: list[relax.Binding] = []
        self._known, self._replaced = known, binding
        self._builder = relax.BlockBuilder()

    def flat(self, value: relax.Expr) -> relax.Expr:
        """An expression of variables, typed; what is within it is bound first."""
        if isinstance(value, relax.Tuple):
            return self._typed(relax.Tuple([self._variable(each) for each in value.fields]), value)
        if isinstance(value, relax.TupleGetItem):
            whole = self._variable(value.tuple_value)
            return self._typed(relax.TupleGetItem(whole, int(value.index)), value)
        if isinstance(value, relax.Call):
            args = [
                self._variable(each) if isinstance(each, relax.Expr) else each
                for each in value.args
            ]
            call = relax.Call(value.op, args, value.attrs, value.ty_args, value.span)
            return self._typed(call, value)
        return value

    def _variable(self, value: relax.Expr) -> relax.Expr:
        """Returns the variable or constant that stands for a value inside a new expression."""
        is_replaced = value.same_as(self._replaced.value)
        if not is_replaced and key(value) in self._known.variables:
            return self._known.variables[key(value)]
        if isinstance(value, relax.Tuple):
            return self.flat(value)
        if not isinstance(value, relax.Call | relax.TupleGetItem):
            return value
        written = self.flat(value)
        if isinstance(written.ty, tvm.ir.PrimType):
            return written  # a size
        var = type(self._replaced.var)(self._free_name(self._replaced.var.name), written.ty)
        self.bindings.append(relax.VarBinding(var, written))
        return var

    def _typed(self, written: relax.Expr, given: relax.Expr) -> relax.Expr:
        """An expression of the type that was stated of it, if one was."""
        if type(written.ty) is not tvm.ir.Type:  # tuples have theirs at once
            return written
        if type(given.ty) is tvm.ir.Type:
            return self._builder.normalize(written)
        relax.expr._update_type(written, given.ty)
        return written

    def _free_name(self, like: str) -> str:
        name, count = like, 0
        while name in self._known.names:
            count += 1
            name = f"{like}_{count}"
        self._known.names.add(name)
        return name


def rebuilt(
    body: relax.SeqExpr, bindings: Callable[[relax.Binding], list[relax.Binding]]
) -> relax.SeqExpr:
    """A sequence with other bindings in place of each, in branches too.

    Args:
        body: It is not changed.
        bindings: Bindings that replace a binding.
    """

    def of(binding: relax.Binding) -> list[relax.Binding]:
        value = binding.value
        if not isinstance(value, relax.If):
            return bindings(binding)
        sides = [rebuilt(side, bindings) for side in (value.true_branch, value.false_branch)]
        choice = relax.If(value.cond, *sides)
        relax.expr._update_type(choice, value.ty)
        return [relax.VarBinding(binding.var, choice)]

    blocks = []
    for block in body.blocks:
        written = [each for binding in block.bindings for each in of(binding)]
        is_dataflow = isinstance(block, relax.DataflowBlock)
        blocks.append((relax.DataflowBlock if is_dataflow else relax.BindingBlock)(written))
    made = relax.SeqExpr(blocks, body.body)
    relax.expr._update_type(made, body.ty)
    return made


def without_unused(body: relax.SeqExpr, values: Collection[Any]) -> relax.SeqExpr:
    """A sequence without those of some values that nothing reads.

    Args:
        body: It is not changed.
        values: Their keys.
    """
    uses = Counter(key(var) for var in variables_in(body))
    unused: set[Any] = set()

    def visit(seq: relax.SeqExpr) -> None:
        for block in reversed(seq.blocks):
            for binding in reversed(block.bindings):
                value = binding.value
                if isinstance(value, relax.If):
                    visit(value.true_branch)
                    visit(value.false_branch)
                elif key(value) in values and uses[key(binding.var)] == 0:
                    unused.add(key(binding.var))
                    uses.subtract(key(var) for var in variables_in(value))

    visit(body)
    return rebuilt(body, lambda binding: [] if key(binding.var) in unused else [binding])
