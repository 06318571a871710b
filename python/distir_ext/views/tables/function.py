"""Makes a table of the functions of an executable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.table import Table

from distir_ext.mesh.device_text import device_text
from distir_ext.text.errors.spelling import counted
from distir_ext.text.tables import new_table

if TYPE_CHECKING:
    from distir_ext.signature.signature import FunctionSpec

_MOST_DEVICES = 24


def function_table(function: FunctionSpec) -> Table:
    """Inputs, weights and results of a function, with their global types and shardings."""
    devices = sorted(function.programs_of)
    table = new_table(
        f"{function.name}, on {counted(len(devices), 'device')}: "
        f"{device_text(devices, _MOST_DEVICES)}",
        *("value", "what", "type and sharding"),
        texts=3,
    )
    for param in function.inputs:
        table.add_row(param.name, "input", str(param.spec))
    weights: dict[str, list[str]] = {}
    for param in function.weights:
        weights.setdefault(str(param.spec), []).append(param.name)
    for spec, names in weights.items():
        table.add_row(_listed(names), "weight", spec)
    table.add_row("return", "result", str(function.result))
    return table


def _listed(names: Iterable[str]) -> str:
    """Names of the same type; of many the first and the last."""
    first, *others = names
    if not others:
        return first
    return f"{first} … {others[-1]} ({1 + len(others)})"
