"""Emits Relax values by the active builder: BlockBuilder, ``relax.frontend.nn`` or TVMScript."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.script import builder as script_builder
from tvm.script.ir_builder.base import IRBuilder
from tvm.script.ir_builder.ir import IRModuleFrame


def is_nn(value: Any) -> bool:
    """Returns whether a value is a Tensor of ``relax.frontend.nn``, without importing it."""
    return isinstance(getattr(value, "_expr", None), relax.Expr)


def like(given: Any, x: relax.Expr) -> Any:
    """A value of the kind that was given: ``x``, or the Tensor of nn that it is."""
    if not is_nn(given):
        return x
    from tvm.relax.frontend.nn import Tensor

    return Tensor(_expr=x)


def emitted(value: relax.Expr) -> relax.Expr:
    """The value bound to a variable, which has a type; itself where nobody writes a function."""
    if isinstance(value, relax.Var):
        return value
    builder = relax.BlockBuilder.current()
    if builder is not None:
        return builder.emit(value)
    return script_builder.emit(value) if IRBuilder.is_in_scope() else value


def module_being_written() -> Any:
    """The module of the builder in use, TVMScript's frame of one, or an empty one."""
    builder = relax.BlockBuilder.current()
    if builder is not None:
        return builder.get()  # what it builds, not a copy
    frames = IRBuilder.current().frames if IRBuilder.is_in_scope() else ()
    modules = [frame for frame in frames if isinstance(frame, IRModuleFrame)]
    return modules[0] if modules else tvm.IRModule({})


def known_type(value: relax.Expr) -> Any:
    """The type of a value; None of a call that was not emitted yet."""
    return None if type(value.ty) is tvm.ir.Type else value.ty
