"""Defines the common form of sharding plans for torch models, to which all kinds are converted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from distir_ext.annotate.annotations import Dims
from distir_ext.annotate.axes import Axes
from distir_ext.annotate.patterns import Entries
from distir_ext.interop.torch.marks import ModuleValue
from distir_ext.text.printable import TextLines


@dataclass(frozen=True)
class Layout:
    """Sharding of a value by one mesh axis.

    Attributes:
        axis: The mesh axis.
        dim: The tensor dimension that it shards, counted from the last one if negative; None if the
            value is replicated over the axis.
    """

    axis: str
    dim: int | None


@dataclass
class Statements:
    """Statements of a plan.

    Attributes:
        parameters: Dims by name of the parameter, with dots.
        values: For values of modules the layouts that they take, one after the other.
        entries: Entries for :func:`distir_ext.annotate`, as they are.
        notes: One line for each tensor that was sharded or not, with the reason.
        problems: Errors in the plan.
    """

    parameters: dict[str, Dims] = field(default_factory=dict)
    values: dict[ModuleValue, list[Layout]] = field(default_factory=dict)
    entries: dict[str, Entries] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def shard(
        self,
        axes: Axes,
        name: str,
        parameter: torch.nn.Parameter,
        dim: int | None,
        axis: str,
        reason: str,
    ) -> None:
        """States that a parameter is sharded along one dimension, or replicated.

        Args:
            axes: The mesh.
            name: The parameter's, with dots.
            parameter: The parameter.
            dim: The dimension, from the last one if negative; None to replicate it.
            axis: The mesh axis.
            reason: Source of the statement, for notes and messages: ``style 'colwise'``.
        """
        rank = parameter.dim()
        dims: list[str | None] = [None] * rank
        if dim is not None:
            if not -rank <= dim < rank:
                self.problems.append(
                    f"{reason} shards dimension {dim} of {name!r}, which has {rank}"
                )
                return
            size, shards = parameter.shape[dim], axes.size(axis)
            if size < shards:
                self.problems.append(
                    f"{reason} shards dimension {dim % rank} of {name!r}, which has the size "
                    f"{size}, over the {shards} devices of axis {axis!r}"
                )
                return
            dims[dim % rank] = axis
        self.parameters[name] = tuple(dims)
        self.notes.append(f"{name}: {_dims(dims)} by {reason}")

    def lay_out(self, value: ModuleValue, layouts: Iterable[Layout]) -> None:
        """States the layouts of a value of a module, one after the other."""
        stated = self.values.setdefault(value, [])
        for layout in layouts:
            if not stated or stated[-1] != layout:
                stated.append(layout)

    def check(self) -> None:
        """Raises one error for all that is wrong.

        Raises:
            ValueError: There is something.
        """
        if len(self.problems) == 1:
            raise ValueError(f"the plan does not fit the model: {self.problems[0]}")
        if self.problems:
            listed = [f"  {each}" for each in self.problems]
            raise ValueError(TextLines(["the plan does not fit the model:", *listed]))


def _dims(dims: Sequence[str | None]) -> str:
    if not any(dims):
        return "replicated"
    return f"({', '.join(repr(each) for each in dims)}{',' if len(dims) == 1 else ''})"
