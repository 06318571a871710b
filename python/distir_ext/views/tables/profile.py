"""Makes tables of profiles: devices, kernels, collectives."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from distir_ext.session.profile import Profile, ProfileTotal
from distir_ext.text.printable import TextLines
from distir_ext.text.tables import amount, new_table

# Rows of kernels that a table shows.
_MOST = 10


def profile_tables(profile: Profile) -> list[Table]:
    """The tables that ``print`` shows."""
    totals = profile.by_callee()
    tables = [_workers(profile)]
    for kind, make in (("kernel", _kernels), ("collective", _collectives)):
        mine = [total for total in totals if total.kind == kind]
        if mine:
            tables.append(make(profile, mine))
    return tables


def _workers(profile: Profile) -> Table:
    count = profile.repetitions
    title = f"{profile.function}: {amount(profile.seconds, 's')} for a call"
    title += f", median of {count} calls" if count > 1 else ""
    columns = ("device", "kernels", "moving", "waiting", "other", "call")
    table = new_table(title, *columns)
    for device in profile.device_ids:
        table.add_row(str(device), *(amount(each, "s") for each in profile._of_device(device)))
    table.caption = TextLines(profile.notes) or None
    return table


def _kernels(profile: Profile, totals: Sequence[ProfileTotal]) -> Table:
    title = f"{profile.function}: kernels by time"
    if len(totals) > _MOST:
        title += f" (first {_MOST} of {len(totals)})"
    columns = ("kernel", "devices", "count", "seconds", "share", "slowest / mean")
    table = new_table(title, *columns)
    table.columns[0].overflow = "fold"
    whole = sum(total.seconds for total in totals)
    for total in totals[:_MOST]:
        table.add_row(
            total.callee,
            str(len(total.devices)),
            str(total.count),
            amount(total.seconds, "s"),
            f"{total.seconds / whole:.0%}" if whole else "",
            f"{total.imbalance:.2f}",
        )
    return table


def _collectives(profile: Profile, totals: Sequence[ProfileTotal]) -> Table:
    columns = ("axes", "collective", "devices", "count", "moving", "waiting", "slowest / mean")
    table = new_table(f"{profile.function}: collectives", *columns, texts=2)
    for total in totals:
        table.add_row(
            ", ".join(total.axes),
            total.callee,
            str(len(total.devices)),
            str(total.count),
            amount(total.seconds, "s"),
            amount(total.waiting, "s"),
            f"{total.imbalance:.2f}",
        )
    return table
