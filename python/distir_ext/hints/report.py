"""Result class of applied hints: the sharding of each weight, or why it has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from rich.table import Table

from distir_ext.text.display import Shown, tables
from distir_ext.text.errors.logs import package_logger
from distir_ext.text.tables import as_text

LOGGER = package_logger("distir_ext.hints")


@dataclass(frozen=True)
class Node:
    """Outcome for one weight.

    Attributes:
        param: The name of the parameter.
        layer: The name of its layer.
        layer_type: As in the hint.
        tp_mode: As in the hint.
        sharding: Dims of the parameter, or of each of its blocks, as text; empty if it was skipped.
        shards: Number of shards, per block.
        skipped: Reason why it is not sharded; empty if it is.
        uses: Number of products that read it; several if layers share it.
    """

    param: str
    layer: str
    layer_type: str
    tp_mode: str
    sharding: str = ""
    shards: tuple[int, ...] = ()
    skipped: str = ""
    uses: int = 1


@dataclass(frozen=True)
class Report(Shown):
    """Report of applied hints.

    ``print(report)`` shows a table.

    Attributes:
        nodes: One per weight that hints name.
        why: By name of a layer that was detected, what shows its type.
        notes: Differences from the hints, and costs above the expected ones.
    """

    nodes: tuple[Node, ...]
    why: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    # Finds the weights that no hint names and that are replicated, with reasons.
    find_others: Callable[[], Mapping[str, str]] = field(default=dict, repr=False, compare=False)

    @cached_property
    def replicated(self) -> Mapping[str, str]:
        """Each weight that all devices have as a whole, with the reason.

        Shardings are propagated when this is first asked for.

        Raises:
            ValueError: The module cannot be propagated.
        """
        return {**{node.param: node.skipped for node in self.skipped}, **self.find_others()}

    @property
    def processed(self) -> list[Node]:
        """The weights that are sharded."""
        return [node for node in self.nodes if not node.skipped]

    @property
    def skipped(self) -> list[Node]:
        """The weights that are not, with reasons."""
        return [node for node in self.nodes if node.skipped]

    def counts(self) -> dict[str, int]:
        """Returns the number of sharded weights, by layer type."""
        return dict(Counter(node.layer_type for node in self.processed))

    def reasons(self) -> dict[str, int]:
        """Returns the number of other weights by reason, without details of single weights."""
        return dict(Counter(node.skipped.partition(": ")[0] for node in self.skipped))

    def log_line(self) -> str:
        """One line, with the number of nodes that scripts look for."""
        by_type = ", ".join(f"{name} {count}" for name, count in self.counts().items())
        reasons = "; ".join(f"{why}: {count}" for why, count in self.reasons().items())
        line = f"hints: {len(self.processed)} nodes processed ({by_type or 'none'})"
        return f"{line}, {len(self.skipped)} skipped{f' ({reasons})' if reasons else ''}"

    def tables(self) -> list[Table]:
        """The weights, the others that are replicated, the layers, and the notes.

        Raises:
            ValueError: The module cannot be propagated.
        """
        return tables(self)

    def __str__(self) -> str:
        return f"{as_text(self.tables())}\n{self.log_line()}"
