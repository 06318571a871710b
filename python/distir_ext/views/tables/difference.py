"""Makes tables of the differences between two annotations of a program."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from distir_ext.analysis.diff_result import CollectiveChange, Difference, ShardingChange, Total
from distir_ext.reshards.reshards_result import shortened
from distir_ext.text.printable import TextLines
from distir_ext.text.tables import amount, new_table

_MOST_ROWS = 20


def difference_tables(difference: Difference) -> list[Table]:
    """The tables that ``print`` shows."""
    tables = [_totals(difference.totals)]
    for title, appears in (("collectives that vanish", False), ("collectives that appear", True)):
        changes = [each for each in difference.collectives if (each.after > each.before) == appears]
        if changes:
            tables.append(_collectives(title, changes))
    if difference.shardings:
        tables.append(_shardings(difference.shardings))
    tables[-1].caption = TextLines(difference.notes) or None
    return tables


def _totals(totals: Iterable[Total]) -> Table:
    table = new_table("per device", "", "before", "after", "ratio")
    for each in totals:
        ratio = "" if each.ratio is None else f"{each.ratio:.3g}"
        before, after = amount(each.before, each.unit), amount(each.after, each.unit)
        table.add_row(each.name, before, after, ratio)
    return table


def _collectives(title: str, changes: list[CollectiveChange]) -> Table:
    if len(changes) > _MOST_ROWS:
        title += f" (first {_MOST_ROWS} of {len(changes)})"
    columns = ("axes", "collective", "because of", "of", "count", "sent by a device", "seconds")
    table = new_table(title, *columns, texts=4)
    for each in changes[:_MOST_ROWS]:
        number = abs(each.after - each.before)
        table.add_row(
            ", ".join(each.axes),
            each.kind,
            ", ".join(each.operators),
            shortened(each.tensors),
            str(number),
            amount(each.bytes_per_device * number, "B"),
            amount(each.seconds * number, "s"),
        )
    return table


def _shardings(changes: tuple[ShardingChange, ...]) -> Table:
    groups: dict[tuple[str, str], list[str]] = {}
    for each in changes:
        groups.setdefault((each.before, each.after), []).append(each.tensor)
    title = "tensors that are sharded differently"
    if len(groups) > _MOST_ROWS:
        title += f" (first {_MOST_ROWS} ways of {len(groups)})"
    table = new_table(title, "tensors", "before", "after", "count", texts=3)
    for (before, after), names in list(groups.items())[:_MOST_ROWS]:
        table.add_row(shortened(tuple(names)), before, after, str(len(names)))
    return table
