"""Prints symbolic sizes as Python writes them, for tables and messages."""

from __future__ import annotations

from typing import Any

import tvm_ffi


def size_text(size: Any) -> str:
    """A size of a module as Python writes it: ``"8"``, ``"n"``, ``"(n + 7) // 8"``.

    A name that is no word stands in quotes in an expression.

    Args:
        size: An integer or an expression of TVM.
    """
    if isinstance(size, int):
        return str(size)
    return str(tvm_ffi.get_global_func("distir.ir.ReadableSize")(size))
