"""Adds to a module a function that returns a constant text, such as the signature."""

from __future__ import annotations

import tvm
from tvm import relax


def with_text_function(mod: tvm.IRModule, name: str, text: str) -> tvm.IRModule:
    """The module with a function without parameters that returns a text."""
    builder = relax.BlockBuilder()
    with builder.function(name, []):
        builder.emit_func_output(builder.emit(tvm.ir.StringImm(text)))
    result = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    result.update_func(tvm.ir.GlobalVar(name), builder.get()[name])
    return result
