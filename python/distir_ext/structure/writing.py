"""Base class of rewrites that copy a function binding by binding, with some bindings replaced."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import relax

from distir_ext.structure.program import Program


class FunctionWriter:
    """Copies a function; subclasses write some of its bindings otherwise.

    Bindings whose operands stay are kept as they are, with their variables.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.now: dict[relax.Var, relax.Expr] = {}
        self._builder = relax.BlockBuilder()
        self._bindings: list[relax.Binding] = []
        self._kind: type[relax.Var] = relax.Var
        self._names = {str(each.name) for each in program.function.params}
        self._names |= {str(binding.var.name) for binding in program.bindings}

    def function(self, params: Sequence[relax.Var]) -> relax.Function:
        """The function with other parameters and bindings, without what nobody reads."""
        old = self.program.function
        blocks = []
        for block in old.body.blocks:
            is_dataflow = isinstance(block, relax.DataflowBlock)
            self._bindings = []
            for binding in block.bindings:
                self._kind = type(binding.var)
                if isinstance(binding, relax.MatchCast):
                    self.copy(binding)
                else:
                    self.write_value(binding)
            self._kind = relax.Var
            if block.same_as(old.body.blocks[-1]):
                result = self.value_of(old.body.body)
            blocks.append(
                (relax.DataflowBlock if is_dataflow else relax.BindingBlock)(self._bindings)
            )
        if not old.body.blocks:
            result = self.value_of(old.body.body)
        body = self._builder.normalize(relax.SeqExpr(blocks, result))
        return relax.Function(params, body, old.ret_ty, old.is_pure, old.attrs, old.span)

    def write_value(self, binding: relax.VarBinding) -> None:
        """Writes a binding of a value; here as it is."""
        self.copy(binding)

    def copy(self, binding: relax.Binding) -> None:
        """Writes a binding with the operands as they are now."""
        value = self.value_of(binding.value)
        if isinstance(binding, relax.MatchCast):
            self._bindings.append(relax.MatchCast(binding.var, value, binding.ty))
        elif value.same_as(binding.value):
            self._bindings.append(binding)
        else:
            self._bindings.append(relax.VarBinding(binding.var, value))

    def value_of(self, value: relax.Expr) -> relax.Expr:
        """An expression with the operands as they are now."""
        if isinstance(value, relax.Var):
            return self.now.get(value, value)
        if isinstance(value, relax.Tuple):
            fields = [self.value_of(each) for each in value.fields]
            changed = any(not a.same_as(b) for a, b in zip(fields, value.fields, strict=True))
            return relax.Tuple(fields) if changed else value
        if isinstance(value, relax.TupleGetItem):
            whole = self.value_of(value.tuple_value)
            if isinstance(whole, relax.Tuple):
                return whole.fields[int(value.index)]
            if whole.same_as(value.tuple_value):
                return value
            return relax.TupleGetItem(whole, int(value.index))
        if isinstance(value, relax.Call):
            args = [self.value_of(each) for each in value.args]
            if all(a.same_as(b) for a, b in zip(args, value.args, strict=True)):
                return value
            return relax.Call(value.op, args, value.attrs, value.ty_args, value.span)
        return value

    def bind(self, var: relax.Var, value: relax.Expr) -> None:
        """Binds an expression of the same type to a variable of the function."""
        self._bindings.append(relax.VarBinding(var, self._builder.normalize(value)))

    def emit(self, value: relax.Expr, name: str) -> relax.Var:
        """Binds an expression to a variable of its own."""
        value = self._builder.normalize(value)
        var = self._kind(self.free_name(name), value.ty)
        self._bindings.append(relax.VarBinding(var, value))
        return var

    def free_name(self, name: str) -> str:
        """A name that no other variable has."""
        found, count = name, 0
        while found in self._names:
            count += 1
            found = f"{name}_{count}"
        self._names.add(found)
        return found


def resized(
    call: relax.Call,
    args: Sequence[relax.Expr],
    type_: relax.Type,
    kernel: tvm.ir.GlobalVar | None = None,
) -> relax.Call:
    """A call on tensors of other sizes: the sizes that an operator states are theirs.

    Args:
        call: Of an operator, or of a TIR kernel.
        args: Its arguments now.
        type_: The type of its result now.
        kernel: The kernel that computes it.
    """
    if kernel is not None:
        return relax.Call(call.op, [kernel, *args[1:]], call.attrs, [type_])
    made: relax.Call = tvm_ffi.get_global_func("distir.rules.ResizedCall")(call, type_, list(args))
    return relax.Call(made.op, made.args, made.attrs, made.ty_args)


def with_size(type_: relax.TensorType, dim: int, size: int) -> relax.TensorType:
    """A type of which one dimension has another size."""
    shape = list(type_.shape)
    shape[dim] = tvm.tirx.IntImm("int64", size)
    return relax.TensorType(shape, type_.dtype)


def with_tensors(call: relax.Call, tensors: Sequence[relax.Expr]) -> list[relax.Expr]:
    """The arguments of a call with other tensors, in order."""
    remaining = iter(tensors)

    def one(arg: relax.Expr) -> relax.Expr:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([one(each) for each in arg.fields])
        return next(remaining) if isinstance(arg.ty, relax.TensorType) else arg

    return [one(arg) for arg in call.args]
