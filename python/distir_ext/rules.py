"""What each operator means for sharding. ``python -m distir_ext.rules`` prints the table."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from rich.console import Console
from rich.table import Table

from distir_ext import _library  # loads the native library  # noqa: F401

# Nobody reads a table of seven columns that is narrower; a file has no width of its own.
_WIDTH_OF_A_FILE = 220

_HEADER = (
    "operator",
    "family",
    "exploited",
    "parallel",
    "reduced",
    "special",
    "kept whole, or why",
)

_MARKDOWN = """# Operators

What `distir_ext` does with each tensor operator of TVM's Relax. This file is the output of
`distir rules --markdown`; a test compares them.

- *parallel*: dimensions that every shard computes alone;
- *reduced*: dimensions whose shards give partial results, and how these are combined;
- *special*: dimensions that the operator looks along, and by which algorithm it is computed on
  their shards; or how it is distributed without a factor rule;
- *kept whole*: dimensions that are gathered first. Where an operator is *replicated*, all of them
  are, and the reason is given.

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
    whole: str
    """Dimensions that every device needs all of."""
    special: str
    """Dimensions that an algorithm of its own keeps sharded, and which; or how it is distributed
    where factors do not say it."""
    replicated: str
    """Why nothing is sharded; empty for operators that are."""

    @property
    def exploited(self) -> str:
        """How sharded operands are used: parallel, reduction, special, or replicated."""
        ways = {"parallel": self.parallel, "reduction": self.reduced, "special": self.special}
        return " and ".join(way for way, text in ways.items() if text) or "replicated"

    @property
    def rest(self) -> str:
        """What is not shared out: dimensions kept whole, or why all are."""
        return self.whole or self.replicated

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of the printed columns."""
        return (
            self.operator,
            self.family,
            self.exploited,
            self.parallel,
            self.reduced,
            self.special,
            self.rest,
        )


def operators() -> list[OperatorRule]:
    """The row of every ``relax.*`` operator, ordered by name."""
    rows = tvm_ffi.get_global_func("distir.rules.List")()
    return [OperatorRule(*(str(cell) for cell in row)) for row in rows]


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
        console: Where to; standard output by default.
    """
    if console is None:
        console = Console()
        if not console.is_terminal:
            console = Console(width=_WIDTH_OF_A_FILE)
    table = Table(*_HEADER)
    for row in operators():
        table.add_row(*row.cells())
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: ``--markdown`` or nothing; by default the process's arguments.

    Returns:
        The exit status: 0.
    """
    parser = argparse.ArgumentParser(prog="python -m distir_ext.rules", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="print docs/operators.md")
    if parser.parse_args(arguments).markdown:
        sys.stdout.write(markdown())
    else:
        print_table()
    return 0


if __name__ == "__main__":
    sys.exit(main())
