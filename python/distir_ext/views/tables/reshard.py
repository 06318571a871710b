"""Makes tables of redistributions, with causes and suggestions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from rich.table import Table

from distir_ext.reshards.reshards_result import (
    OPERATOR,
    REDUCTION,
    RESHARD,
    STATED,
    TRANSFER,
    Reshard,
    Reshards,
    shortened,
)
from distir_ext.text.printable import TextLines
from distir_ext.text.tables import amount, new_table

# Names of the kinds in tables.
_KINDS = {
    RESHARD: "implicit redistribution",
    REDUCTION: "reduction",
    STATED: "stated redistribution",
    OPERATOR: "part of an operator",
    TRANSFER: "transfer between meshes",
}


# Rows of a table, and tensors of a row, that are printed.
_MOST_ROWS = 20


# Steps of a chain that are printed.
_MOST_HOPS = 4


def implicit_tables(found: Reshards) -> list[Table]:
    """Returns the redistributions that nobody asked for, with their causes."""
    tables = [_listing("implicit redistributions, per device", found.reshards)]
    why = _why(found.reshards)
    if why.row_count:
        tables.append(why)
    return tables


def reshard_tables(found: Reshards) -> list[Table]:
    """Returns the tables that a listing of redistributions prints."""
    tables = implicit_tables(found)
    if found.others:
        tables.append(_listing("other communication, per device", found.others, with_kind=True))
    total = (
        f"in all, a device sends {amount(found.bytes_sent, 'B')} in {amount(found.seconds, 's')}"
    )
    said = [str(tables[-1].caption)] if tables[-1].caption else []
    tables[-1].caption = TextLines([*said, total, *found.notes])
    return tables


def _listing(title: str, entries: Iterable[Reshard], with_kind: bool = False) -> Table:
    entries = tuple(entries)
    if len(entries) > _MOST_ROWS:
        title += f" (first {_MOST_ROWS} of {len(entries)})"
    columns = ["tensor", "for", "from", "to", "collectives", "count", "sent", "seconds"]
    texts = 5
    if with_kind:
        columns.insert(0, "what")
        texts = 6
    table = new_table(title, *columns, texts=texts)
    for column in table.columns[:texts]:
        column.overflow = "fold"
    for each in entries[:_MOST_ROWS]:
        cells = [
            shortened(each.tensors),
            ", ".join(each.operators),
            each.source,
            each.target,
            ", ".join(each.collectives),
            str(each.count),
            amount(each.total_bytes, "B"),
            amount(each.total_seconds, "s"),
        ]
        table.add_row(*([_KINDS[each.kind], *cells] if with_kind else cells))
    if not entries:
        table.caption = "none"
    return table


def _why(entries: Iterable[Reshard]) -> Table:
    table = new_table("why, and what to state instead", "tensor", "cause", texts=2)
    table.columns[1].overflow = "fold"
    for each in tuple(entries)[:_MOST_ROWS]:
        if not each.conflict and not each.suggestion and not each.uneven:
            continue
        chains = [*_folded(each.source_cause), *_folded(each.target_cause)]
        # The suggestion that was tried replaces the line about one that might help.
        sides = [line for line in each.conflict if not line.startswith("  to avoid it")]
        sides = [line for line in sides if "do not divide; " not in line]
        lines = [*chains, *sides, *each.uneven]
        advice = "nothing that was tried avoids it"
        if each.suggestion is not None:
            advice = f"state {each.suggestion}"
        table.add_row(shortened(each.tensors), TextLines([*lines, advice]))
    return table


def _folded(lines: Sequence[str]) -> list[str]:
    """Chains without their middle."""
    folded: list[str] = []
    for is_hop, group in itertools.groupby(lines, lambda line: line.startswith("  from")):
        each = list(group)
        if is_hop and len(each) > _MOST_HOPS:
            rest = len(each) - _MOST_HOPS
            each[_MOST_HOPS // 2 : -_MOST_HOPS // 2] = [f"  ... {rest} more"]
        folded += each
    return folded
