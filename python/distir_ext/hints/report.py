"""What applying hints did, as data."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from rich.table import Table

from distir_ext._text.tables import as_html, as_text, new_table

LOGGER = logging.getLogger("distir_ext.hints")


@dataclass(frozen=True)
class Node:
    """What was done with one weight.

    Attributes:
        param: The name of the parameter.
        layer: The name of its layer.
        layer_type: As in the hint.
        tp_mode: The same.
        sharding: Dims of the parameter, or of each of its blocks, as text; empty if it was skipped.
        shards: Into how many shards it is divided, per block.
        skipped: Why it is not sharded; empty if it is.
        uses: How many products have it: several, if layers share it.
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
class Report:
    """What applying hints did.

    ``print(report)`` shows a table.

    Attributes:
        nodes: One per weight that hints name.
        why: By name of a layer that was detected, what shows its type.
        notes: What was written otherwise than hints say, or costs more than it may.
        find_others: Finds the weights that no hint names and that are replicated, with reasons.
    """

    nodes: tuple[Node, ...]
    why: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
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
        """How many weights are sharded, by layer type."""
        return dict(Counter(node.layer_type for node in self.processed))

    def reasons(self) -> dict[str, int]:
        """How many weights are not, by reason, without what is said of each weight."""
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
        title = "weights"
        weights = new_table(title, "layer", "type", "weight", "mode", "sharding", texts=5)
        layer = ""
        for node in self.nodes:
            name = "" if node.layer == layer else node.layer
            kind = "" if node.layer == layer else node.layer_type
            layer = node.layer
            how = f"skipped: {node.skipped}" if node.skipped else node.sharding
            weights.add_row(name, kind, _below(node), node.tp_mode, how)
        tables = [weights]
        named = {node.param for node in self.nodes}
        if others := {k: why for k, why in self.replicated.items() if k not in named}:
            replicated = new_table("replicated", "other weight", "because", texts=2)
            for name, why in others.items():
                replicated.add_row(name, why)
            tables.append(replicated)
        if self.why:
            reasons = new_table("why", "layer", "because", texts=2)
            for name, why in self.why.items():
                reasons.add_row(name, why)
            tables.append(reasons)
        if self.notes:
            notes = new_table("notes", "note", texts=1)
            for note in self.notes:
                notes.add_row(note)
            tables.append(notes)
        return tables

    def __str__(self) -> str:
        return f"{as_text(self.tables())}\n{self.log_line()}"

    def _repr_html_(self) -> str:
        return as_html(self.tables())


def _below(node: Node) -> str:
    """The name of a weight within its layer."""
    has = node.param.startswith(node.layer) and len(node.param) > len(node.layer)
    return node.param[len(node.layer) :].lstrip("._") if has else node.param
