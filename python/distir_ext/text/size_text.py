"""Prints symbolic sizes as Python writes them, for tables and messages."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import tvm_ffi

_NAME_IN_QUOTES = '"'


def size_text(size: Any) -> str:
    """A size of a module as Python writes it: ``"8"``, ``"n"``, ``"(n + 7) // 8"``.

    A name that is no word stands in quotes in an expression.

    Args:
        size: An integer or an expression of TVM.
    """
    if isinstance(size, int):
        return str(size)
    text = str(tvm_ffi.get_global_func("distir.ir.SizeText")(size))
    # Only names are in quotes, and of these each character but letters and digits is %XX.
    parts = text.split(_NAME_IN_QUOTES)
    if len(parts) == 1:
        return text
    if len(parts) == 3 and not parts[0] and not parts[2]:
        return unquote(parts[1])
    return _NAME_IN_QUOTES.join(
        unquote(part) if index % 2 else part for index, part in enumerate(parts)
    )
