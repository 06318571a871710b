"""Parses the axes in texts of Shardy shardings and of HLO's named shardings."""

from __future__ import annotations

from collections.abc import Callable

from distir_ext.interop._text import Scanner
from distir_ext.interop.shardy.model import REDUCTIONS, AxisRef


def read_dim(scanner: Scanner, axis: Callable[[], AxisRef]) -> tuple[tuple[AxisRef, ...], bool]:
    """The axes of a dimension, ``{"x", ?}``, and whether it is open.

    Args:
        scanner: In front of the brace.
        axis: Reads an axis.
    """
    scanner.expect("{")
    axes: list[AxisRef] = []
    is_open = False
    if not scanner.accept("}"):
        while not (is_open := scanner.accept("?")):
            axes.append(axis())
            if not scanner.accept(","):
                break
        scanner.expect("}")
    return tuple(axes), is_open


def read_part(scanner: Scanner, name: str) -> AxisRef:
    """An axis of which the name was read, or the part of it that follows, ``:(1)2``."""
    if not scanner.accept(":"):
        return AxisRef(name)
    scanner.expect("(")
    pre_size = scanner.integer("a pre-size")
    scanner.expect(")")
    return AxisRef(name, pre_size, scanner.integer("the size of a sub-axis"))


def read_reduction(scanner: Scanner) -> str:
    """Reads the reduction of ``unreduced`` axes, which precedes the brace unless it is a sum."""
    if scanner.sees("{"):
        return "sum"
    begin = scanner.skip()
    reduction = scanner.word()
    if reduction not in REDUCTIONS[1:]:
        scanner.fail("'{', 'max' or 'min'", begin)
    return reduction
