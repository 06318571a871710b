"""Result classes of ``reshards``: redistributions with causes and suggestions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from distir_ext.annotate.annotations import Dims
from distir_ext.annotate.patterns import Entries
from distir_ext.mesh.dims import dims_data, dims_text
from distir_ext.mesh.mesh import Mesh
from distir_ext.text.display import Printed
from distir_ext.text.printable import shown
from distir_ext.text.tables import amount

RESHARD, REDUCTION, STATED = "reshard", "reduction", "stated"
OPERATOR, TRANSFER = "operator", "transfer"

_MOST_NAMES = 2


@dataclass(frozen=True)
class Suggestion:
    """Annotation with which a redistribution is gone.

    It was applied to a copy of the module, and the copy was lowered.

    Example:
        ``dx.annotate(mod, found.mesh, found.applied_to(plan), func=found.function)``, where
        ``plan`` is what the module was annotated with.
    """

    function: str
    """The function to annotate."""

    plan: Mapping[str, Dims]
    """From a pattern on names of parameters, or the name of a variable, to dims."""

    mesh: Mesh
    """The mesh that dims refer to."""

    bytes_change: float
    """By how much all collectives of the module together send more than before; per device and
    call. Below zero where less is sent."""

    seconds_change: float
    """Increase of the time of all collectives, one after the other."""

    parameter_bytes_change: float
    """By how much the parameters on each device become larger."""

    def applied_to(self, plan: Entries) -> dict[str, Any]:
        """A plan with the suggestion in front, since the first pattern that matches decides.

        Args:
            plan: The plan that the module was annotated with, which stays as it is.

        Returns:
            A new plan.
        """
        others = {name: dims for name, dims in plan.items() if name not in self.plan}
        return {**self.plan, **others}

    def __str__(self) -> str:
        plan = ", ".join(f"{name!r}: {dims_text(dims)}" for name, dims in self.plan.items())
        changes = [
            f"{_signed(self.bytes_change, 'B')} sent",
            f"{_signed(self.seconds_change, 's')} of collectives",
        ]
        if self.parameter_bytes_change:
            changes.append(f"{_signed(self.parameter_bytes_change, 'B')} of parameters")
        return f"{{{plan}}} ({', '.join(changes)})"


@dataclass(frozen=True)
class Reshard:
    """Communication that changes the sharding of tensors; equal ones are counted together."""

    kind: str
    """``"reshard"``: nobody asked for it. ``"stated"``: an annotation of an intermediate value or
    ``R.dist.redistribute`` asks for it. ``"reduction"``: partial results are combined.
    ``"operator"``: an operator sends by itself, as a slice of a sharded dimension does.
    ``"transfer"``: values move between meshes."""

    function: str
    """The function of the module."""

    tensors: tuple[str, ...]
    """The variables that move, in program order, by their names in the module."""

    operators: tuple[str, ...]
    """The operators that read the result; of a reduction and a transfer, that make the tensor."""

    readers: tuple[str, ...]
    """The variables that are computed of the result."""

    source: str
    """The sharding before, as ``"('dp', None), partial sum over 'tp'"``; empty if not known."""

    target: str
    """The sharding after."""

    collectives: tuple[str, ...]
    """Collectives for one tensor, in order, such as ``"all_gather"``."""

    axes: tuple[str, ...]
    """The mesh axes that these communicate over; none for transfers."""

    bytes_per_device: float
    """Bytes that a device sends for one tensor. A symbolic size without a value counts as 1024."""

    seconds: float
    """The time for one tensor, by the cost model of redistributions."""

    count: int
    """Number of runs in one call of each entry function; calls are multiplied out."""

    source_cause: tuple[str, ...] = ()
    """Why the first tensor is sharded as it is before, as the chain back to an annotation."""

    target_cause: tuple[str, ...] = ()
    """Why it is wanted otherwise."""

    conflict: tuple[str, ...] = ()
    """Cost of each side of a conflict, as text of ``dx.explain``."""

    uneven: tuple[str, ...] = ()
    """Dimensions that a side's shards do not divide, and the extents next to theirs that they do;
    of symbolic extents nothing is said."""

    suggestion: Suggestion | None = None
    """Annotation that removes it; None where none of those that were tried does."""

    @property
    def tensor(self) -> str:
        """The first of :attr:`tensors`."""
        return self.tensors[0]

    @property
    def total_bytes(self) -> float:
        """Bytes that a device sends for all of them."""
        return self.bytes_per_device * self.count

    @property
    def total_seconds(self) -> float:
        """The time of all of them, one after the other."""
        return self.seconds * self.count

    def __str__(self) -> str:
        text = shown(f"{shortened(self.tensors)}: {self.source or '?'} -> {self.target or '?'}")
        if self.operators:
            text += f" for {', '.join(map(shown, self.operators))}"
        size, seconds = amount(self.total_bytes, "B"), amount(self.total_seconds, "s")
        return f"{text}: {self.count} x {', '.join(self.collectives)}, {size} per device, {seconds}"


@dataclass(frozen=True, repr=False)
class Reshards(Printed):
    """Communication of a distributed module, by purpose; the most expensive first.

    ``print`` shows tables with causes and suggestions, notebooks show them as HTML. :meth:`rows`
    is for pandas, :meth:`to_json` for machines.
    """

    entries: tuple[Reshard, ...]
    """Of all kinds. Every collective of the lowered module is in one of them."""

    notes: tuple[str, ...] = field(default=())
    """Communication that the listing leaves out."""

    @property
    def reshards(self) -> tuple[Reshard, ...]:
        """Redistributions that nobody asked for."""
        return tuple(each for each in self.entries if each.kind == RESHARD)

    @property
    def others(self) -> tuple[Reshard, ...]:
        """Reductions, stated redistributions, communication of operators, and transfers."""
        return tuple(each for each in self.entries if each.kind != RESHARD)

    @property
    def bytes_sent(self) -> float:
        """Bytes that a device sends, in all."""
        return sum(each.total_bytes for each in self.entries)

    @property
    def seconds(self) -> float:
        """The time of all of it, one after the other."""
        return sum(each.total_seconds for each in self.entries)

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each entry, for ``pandas.DataFrame``."""
        return [_row(each) for each in self.entries]

    def to_json(self) -> str:
        """Returns the listing as JSON."""
        entries = [_data(each) for each in self.entries]
        totals = {"bytes_sent": self.bytes_sent, "seconds": self.seconds}
        return json.dumps({**totals, "notes": list(self.notes), "entries": entries})


def shortened(names: tuple[str, ...]) -> str:
    """The first names, and how many others there are."""
    rest = len(names) - _MOST_NAMES
    shown = ", ".join(names[:_MOST_NAMES])
    return f"{shown} and {rest} more" if rest > 0 else shown


def _row(each: Reshard) -> dict[str, Any]:
    return {
        "kind": each.kind,
        "function": each.function,
        "tensor": ", ".join(each.tensors),
        "operator": ", ".join(each.operators),
        "source": each.source,
        "target": each.target,
        "collectives": ", ".join(each.collectives),
        "axes": ", ".join(each.axes),
        "count": each.count,
        "bytes_per_device": each.bytes_per_device,
        "seconds": each.seconds,
        "total_bytes": each.total_bytes,
        "total_seconds": each.total_seconds,
        "suggestion": "" if each.suggestion is None else str(each.suggestion),
    }


def _data(each: Reshard) -> dict[str, Any]:
    suggestion = each.suggestion
    data: dict[str, Any] = {
        name: getattr(each, name)
        for name in type(each).__dataclass_fields__
        if name != "suggestion"
    }
    data["suggestion"] = None
    if suggestion is not None:
        data["suggestion"] = {
            "function": suggestion.function,
            "plan": {name: dims_data(dims) for name, dims in suggestion.plan.items()},
            "mesh": {
                "shape": suggestion.mesh.shape,
                "axis_names": suggestion.mesh.axis_names,
                "device_ids": suggestion.mesh.device_ids,
            },
            "bytes_change": suggestion.bytes_change,
            "seconds_change": suggestion.seconds_change,
            "parameter_bytes_change": suggestion.parameter_bytes_change,
        }
    return data


def _signed(value: float, unit: str) -> str:
    return f"{'-' if value < 0 else '+'}{amount(abs(value), unit)}"
