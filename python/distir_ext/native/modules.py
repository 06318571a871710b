"""Checks that an argument is an IRModule: the native library reads fields by offset."""

from __future__ import annotations

from typing import Any

import tvm


def check_module(mod: Any) -> None:
    """Raises TypeError unless a value is an IRModule.

    Args:
        mod: The value that a user passed as a module.

    Raises:
        TypeError: It is a function or anything else.
    """
    if isinstance(mod, tvm.IRModule):
        return
    advice = ""
    if isinstance(mod, tvm.ir.BaseFunc):
        advice = '; of a function, tvm.IRModule({"main": function}) makes one'
    raise TypeError(f"expected a tvm.IRModule, got {type(mod).__name__}{advice}")
