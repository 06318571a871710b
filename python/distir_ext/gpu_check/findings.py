"""Findings of a section of the check, and their table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    what: str
    """Subject: "all_reduce of float16 over 8 GPUs"."""

    found: str
    """Value that was found, with its unit."""

    wanted: str = ""
    """Value that is expected; empty for what is reported only."""

    ok: bool | None = None
    """True if it is in range; None if there is no range."""

    def to_data(self) -> dict[str, Any]:
        """Returns the finding as data for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Section:
    """A section that has run."""

    name: str
    findings: Sequence[Finding]
    seconds: float

    @property
    def failed(self) -> list[Finding]:
        """Findings that are out of range."""
        return [each for each in self.findings if each.ok is False]


def table_of(section: Section) -> Table:
    """A section as a table."""
    table = Table(title=f"{section.name} ({section.seconds:.1f} s)", title_justify="left")
    for name in ("what", "found", "wanted", ""):
        table.add_column(name, overflow="fold")
    marks = {True: "[green]ok[/]", False: "[bold red]out of range[/]", None: ""}
    for each in section.findings:
        table.add_row(each.what, each.found, each.wanted, marks[each.ok])
    return table
