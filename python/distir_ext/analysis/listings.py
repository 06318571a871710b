"""Makes tables of the results of ``analysis.collectives`` and ``analysis.shardings``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from rich.table import Table

from distir_ext.analysis.shardings import TensorSharding, TensorShardings
from distir_ext.communication.collectives import Collective, Collectives
from distir_ext.text.display import tables
from distir_ext.text.errors.tracebacks import short_tracebacks


@short_tracebacks
def sharding_table(rows: Sequence[TensorSharding]) -> Table:
    """Returns a table of :func:`distir_ext.analysis.shardings`.

    Tensors whose names differ in numbers only, and that are alike in all else, share a row, in
    which these numbers are ``*``.

    Args:
        rows: Tensors with their shardings.

    Raises:
        TypeError: A module is given instead of its rows.
    """
    _check_rows(rows, "sharding_table", "shardings")
    (table,) = tables(TensorShardings(rows))
    return table


@short_tracebacks
def collective_table(collectives: Iterable[Collective]) -> Table:
    """Returns a table of :func:`distir_ext.analysis.collectives`; equal ones share a row.

    Args:
        collectives: Collectives of a program.

    Raises:
        TypeError: A module is given instead of its rows.
    """
    _check_rows(collectives, "collective_table", "collectives")
    (table,) = tables(Collectives(collectives))
    return table


def _check_rows(rows: Any, table: str, made_by: str) -> None:
    if isinstance(rows, tvm.IRModule):
        raise TypeError(f"{table} takes what {made_by} finds: {table}({made_by}(mod))")
