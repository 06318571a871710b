"""What a comparison of two annotations consists of."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from distir_ext._text.printable import TextLines
from distir_ext._text.tables import amount, as_html, as_text, new_table
from distir_ext.analysis.redistributions.reshards_result import shortened

_MOST_ROWS = 20


@dataclass(frozen=True)
class Total:
    """One figure of both programs, of the device that has most."""

    name: str
    """``"flops"``, ``"bytes accessed"``, ``"bytes sent"``, ``"kernels"``, ``"collectives"``,
    ``"time"`` or ``"peak memory"``."""

    unit: str
    """``"FLOP"``, ``"B"`` or ``"s"``."""

    before: float
    """Of the first program."""

    after: float
    """Of the second program."""

    @property
    def ratio(self) -> float | None:
        """After by before; None where there was nothing before."""
        return self.after / self.before if self.before else None


@dataclass(frozen=True)
class ShardingChange:
    """A tensor that both programs shard differently."""

    function: str
    """Of the module."""

    tensor: str
    """The variable, ``weights.0`` for a field of a tuple."""

    before: str
    """As ``"('dp', None)"``; ``"every device has all of it"`` where it takes no part."""

    after: str
    """In the second program."""


@dataclass(frozen=True)
class CollectiveChange:
    """A collective that one of the programs runs more often; both sides of branches count."""

    function: str
    """The function of the module."""

    kind: str
    """As ``"all_gather"``."""

    axes: tuple[str, ...]
    """The mesh axes that it communicates over."""

    operators: tuple[str, ...]
    """The operators because of which it is there."""

    tensors: tuple[str, ...]
    """What is sent, where it is sent more often."""

    bytes_per_device: float
    """Bytes that a device sends in one of them."""

    seconds: float
    """The time of one of them, in the program that has more."""

    before: int
    """How many the first program runs."""

    after: int
    """How many the second program runs."""


@dataclass(frozen=True)
class Difference:
    """What another annotation of a program changes.

    ``print`` shows tables, notebooks show them as HTML. :meth:`rows` is for pandas,
    :meth:`to_json` for machines.
    """

    totals: tuple[Total, ...]
    """Operations, bytes, time and memory of both."""

    collectives: tuple[CollectiveChange, ...]
    """Those that vanish or appear, the most expensive first."""

    shardings: tuple[ShardingChange, ...]
    """Tensors, parameters first; none where estimates were compared."""

    notes: tuple[str, ...] = field(default=())
    """What the figures leave out."""

    def __getitem__(self, name: str) -> Total:
        """The total of a name.

        Args:
            name: The name of one of ``totals``.

        Raises:
            KeyError: There is none; names those there are.
        """
        for total in self.totals:
            if total.name == name:
                return total
        raise KeyError(f"there is no total {name!r}, only {[each.name for each in self.totals]}")

    def rows(self) -> list[dict[str, Any]]:
        """Totals, collectives and shardings, a dict each, for ``pandas.DataFrame``."""
        totals = [
            {
                "what": "total",
                "name": each.name,
                "before": each.before,
                "after": each.after,
                "ratio": each.ratio,
            }
            for each in self.totals
        ]
        collectives = [{"what": "collective", **asdict(each)} for each in self.collectives]
        shardings = [{"what": "sharding", **asdict(each)} for each in self.shardings]
        return [*totals, *collectives, *shardings]

    def to_json(self) -> str:
        """All of it as JSON."""
        return json.dumps({"rows": self.rows(), "notes": list(self.notes)})

    def __str__(self) -> str:
        return as_text(difference_tables(self))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return as_html(difference_tables(self))


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
