"""Flattens nested tuples of results to their leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm_ffi


def flatten(value: Any) -> Iterator[Any]:
    """The leaves of what a program returned, left to right."""
    if isinstance(value, tvm_ffi.Array):
        for each in value:
            yield from flatten(each)
    else:
        yield value
