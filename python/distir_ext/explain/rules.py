"""Makes a table of the operators' sharding rules, which ``distir rules`` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from rich.console import Console
from rich.table import Table

from distir_ext.native import installing as _native  # loads the native library  # noqa: F401
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks

__all__ = ["OperatorRule", "describe_kernel", "find", "operators"]

# Nobody reads a table of seven columns that is narrower; a file has no width of its own.
WIDTH_OF_A_FILE = 220

_HEADER = (
    "operator",
    "family",
    "exploited",
    "parallel",
    "reduced",
    "decomposed",
    "replicated, or why",
)

_MARKDOWN = """# Operators

What `distir_ext` does with each tensor operator of TVM's Relax. This file is the output of
`distir rules --markdown`; a test compares them.

- *parallel*: dimensions that every shard computes alone;
- *reduced*: dimensions whose shards give partial results, and how these are combined;
- *decomposed*: dimensions that the operator works along, and how it is computed on their shards: a
  softmax is a maximum, exponentials, a sum and a quotient. Or how it is distributed without a
  factor rule;
- *replicated*: dimensions that need replication, so they are gathered first. Where nothing of an
  operator can be sharded, the reason is given.

{counts}

{rows}
"""


@dataclass(frozen=True)
class OperatorRule:
    """A row of the table."""

    operator: str
    """Its name, as ``relax.matmul``."""
    family: str
    parallel: str
    """Dimensions that every shard computes alone, in words; empty if there are none."""
    reduced: str
    """Dimensions whose shards are combined, and how."""
    needs_replication: str
    """Dimensions that every device needs all of."""
    decomposed: str
    """Dimensions that a decomposition keeps sharded, and which; or how it is distributed where
    factors do not say it."""
    replicated: str
    """Why nothing is sharded; empty for operators that are."""

    @property
    def exploited(self) -> str:
        """The ways in which sharded operands are used, or ``"replicated"``."""
        ways = {"parallel": self.parallel, "reduction": self.reduced, "decomposed": self.decomposed}
        return " and ".join(way for way, text in ways.items() if text) or "replicated"

    @property
    def rest(self) -> str:
        """The dimensions that are not sharded, or why none is."""
        return self.needs_replication or self.replicated

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of the printed columns."""
        return (
            self.operator,
            self.family,
            self.exploited,
            self.parallel,
            self.reduced,
            self.decomposed,
            self.rest,
        )


@short_tracebacks
def operators() -> list[OperatorRule]:
    """The row of every ``relax.*`` operator, ordered by name."""
    rows = tvm_ffi.get_global_func("distir.rules.List")()
    return [OperatorRule(*(str(cell) for cell in row)) for row in rows]


@short_tracebacks
def find(name: str) -> list[OperatorRule]:
    """The rows of the operators that a name means, ordered by name.

    Args:
        name: A whole name, with or without what stands before its last dots: ``relax.nn.softmax``,
            ``nn.softmax`` and ``softmax`` are the same. Otherwise a part of names: ``soft``.

    Raises:
        ValueError: No operator has such a name; names some that are near.
    """
    rows = operators()
    found = [row for row in rows if f".{row.operator}".endswith(f".{name}")]
    found = found or [row for row in rows if name in row.operator]
    if found:
        return found
    names = {part: None for row in rows for part in (row.operator, row.operator.split(".")[-1])}
    raise ValueError(f"TVM's Relax has no operator {name!r}{did_you_mean(name, names)}")


def find_all(names: Sequence[str]) -> list[OperatorRule]:
    """The rows that several names mean, each row once.

    Raises:
        ValueError: As :func:`find`.
    """
    return list({row.operator: row for name in names for row in find(name)}.values())


@short_tracebacks
def describe_kernel(kernel: tvm.tirx.PrimFunc) -> str:
    """Describes the sharding rule of a kernel as its loops give it, without rules of users.

    Dimensions of buffers are lists of factors, which are numbered; ``-`` is a dimension that needs
    replication. For a matrix product: ``A[0][1] B[1][2] C[0][2]; 0: 8 parallel, 1: 16 sum, ..``.

    Args:
        kernel: A PrimFunc that ``R.call_tir`` calls.
    """
    return str(tvm_ffi.get_global_func("distir.rules.DescribeKernel")(kernel))


def markdown() -> str:
    """The table as the text of ``docs/operators.md``."""
    rows = operators()
    lines = [_HEADER, ("---",) * len(_HEADER), *(row.cells() for row in rows)]
    counts = Counter(row.exploited for row in rows)
    summary = ", ".join(f"{number} {way}" for way, number in sorted(counts.items()))
    return _MARKDOWN.format(
        counts=f"{len(rows)} operators: {summary}.",
        rows="\n".join(f"| {' | '.join(line)} |" for line in lines),
    )


def print_table(console: Console | None = None) -> None:
    """Prints the table.

    Args:
        console: Output; standard output by default.
    """
    table = Table(*_HEADER)
    for row in operators():
        table.add_row(*row.cells())
    (console or _console()).print(table)


def print_rows(rows: Sequence[OperatorRule], console: Console | None = None) -> None:
    """Prints rows one below the other, each cell on a line of its own; empty ones are left out.

    Args:
        rows: Rows to print.
        console: Output; standard output by default.
    """
    console = console or _console()
    for number, row in enumerate(rows):
        lines = Table.grid(padding=(0, 2))
        for title, cell in zip(_HEADER[1:], row.cells()[1:], strict=True):
            if cell:
                lines.add_row(f"  {title}", cell)
        console.print(("\n" if number else "") + row.operator, markup=False, highlight=False)
        console.print(lines)


def _console() -> Console:
    console = Console(emoji=False)
    return console if console.is_terminal else Console(width=WIDTH_OF_A_FILE, emoji=False)


def print_operators(names: Sequence[str], console: Console | None = None) -> None:
    """Prints the rows of the operators that names mean, or the table if there are no names.

    Args:
        names: As :func:`find` takes them; an operator that several of them mean is printed once.
        console: Output; standard output by default.

    Raises:
        ValueError: There is no operator of a name.
    """
    if names:
        print_rows(find_all(names), console)
    else:
        print_table(console)
