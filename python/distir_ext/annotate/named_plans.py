"""Applies the built-in plans ``"tp"``, ``"fsdp"`` and ``"auto"`` to Relax functions.

``named_plan`` expands ``"tp"`` and ``"fsdp"`` to dims by parameter name, as users write plans.
``searched_plan`` runs :func:`distir_ext.autoshard`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from distir_ext.annotate.axes import Axes
from distir_ext.annotate.structure import find_structure
from distir_ext.mesh.dims import dims_text
from distir_ext.structure.calls import Calls
from distir_ext.structure.flat import flat_function
from distir_ext.structure.program import Program, sizes_of
from distir_ext.text.errors.logs import package_logger
from distir_ext.text.errors.plan_names import check_name

_LOGGER = package_logger("distir_ext.annotate")
_NOTES_IN_A_MESSAGE = 4

MIN_ELEMENTS = 1024
"""Weights with fewer elements ``"fsdp"`` does not shard: a collective costs more than they."""


searches: list[Callable[..., tvm.IRModule]] = []
"""What annotates a module by a search: :func:`distir_ext.autoshard` with its arguments, of which
only the module is given back. The package ``autosharding``, which is above this one, adds it."""

_CLUSTER: ContextVar[Any] = ContextVar("cluster of searched plans", default=None)


@contextmanager
def searching_for(cluster: Any) -> Iterator[None]:
    """Plans that are searched meanwhile are for a cluster."""
    before = _CLUSTER.set(cluster)
    try:
        yield
    finally:
        _CLUSTER.reset(before)


def searched_plan(
    mod: tvm.IRModule, mesh: Any, cluster: Any = None, **options: Any
) -> tvm.IRModule:
    """The module as :func:`distir_ext.autoshard` annotates it.

    Args:
        mod: The module.
        mesh: The mesh, or None with ``devices`` among the options.
        cluster: The devices; by default those of :func:`searching_for`, or H100s.
        **options: Further arguments. Symbolic sizes that are not stated are taken to be 1,024.

    Raises:
        ValueError: As ``autoshard``.
    """
    return searches[0](mod, mesh, _CLUSTER.get() if cluster is None else cluster, **options)


@dataclass
class NamedPlan:
    """Dims of parameters that a plan by name has found.

    Attributes:
        dims: By name of the parameter, or of its field.
        notes: One line for each parameter that it shards or leaves to propagation, with the reason.
    """

    dims: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def patterns(self) -> dict[str, Any]:
        """The dims by pattern, as :func:`distir_ext.annotate` takes them."""
        return {re.escape(name): dims for name, dims in self.dims.items()}


def named_plan(
    mod: tvm.IRModule, plan: str, axes: Axes, func: str, inputs: Sequence[str] | None
) -> NamedPlan:
    """Finds the dims that a plan's name means for a function.

    ``"tp"`` shards pairs of products by columns and rows, and the largest table;
    ``"fsdp"`` each weight by its largest dimension that the devices divide. Another axis of the
    mesh that is called as one for the batch shards the first dimension of inputs. What the
    function calls belongs to it.

    Args:
        mod: The module.
        plan: ``"tp"`` or ``"fsdp"``.
        axes: The mesh.
        func: The name of the function.
        inputs: The parameters that every call passes; None: as the function says.

    Raises:
        ValueError: There is no plan of this name; the function does not say which parameters are
            weights; axes cannot be told apart; or there is nothing that the plan can shard.
    """
    check_name(plan)
    function = mod[func]
    if inputs is not None:
        function = function.with_attr("num_input", len(set(inputs)))
    if function.attrs is None or "num_input" not in function.attrs:
        raise ValueError(
            f"{func} does not say which of its parameters are weights, which the plan {plan!r} "
            "shards: name the others, inputs=[..]"
        )
    function = flat_function(mod, function)
    program = Program(function)
    found = NamedPlan()
    axis = axes.need(plan)
    if plan == "fsdp":
        shards = axes.size(axis)
        for weight in program.weights:
            dim, reason = fully_sharded(sizes_of(weight), shards, axis, MIN_ELEMENTS)
            _state(found, weight, dim, axis, reason)
    else:
        structure = find_structure(function, axes.size(axis), axis, calls=Calls(mod))
        weights = {str(each.name): each for each in program.weights}
        for name, (dim, reason) in structure.dims.items():
            _state(found, weights[name], dim, axis, reason, replicates=True)
        found.notes += structure.notes
    batch = axis if plan == "fsdp" else axes.find("batch")
    if batch is not None and (plan == "fsdp" or batch != axis):
        dims, notes = batch_of(program.inputs, axes.size(batch), batch)
        found.dims.update(dims)
        found.notes += notes
    for note in found.notes:
        _LOGGER.info("%s: %s", plan, note)
    if not any(any(dims) for dims in found.dims.values()):
        raise ValueError(_nothing_sharded(plan, func, found.notes))
    return found


def _state(
    found: NamedPlan,
    weight: relax.Var,
    dim: int | None,
    axis: str,
    reason: str,
    replicates: bool = False,
) -> None:
    if dim is None and not replicates:
        found.notes.append(f"{weight.name}: left to propagation, {reason}")
        return
    rank = len(sizes_of(weight) or ())
    dims = tuple(axis if place == dim else None for place in range(rank))
    found.dims[str(weight.name)] = dims
    stated = "replicated" if dim is None else dims_text(dims)
    found.notes.append(f"{weight.name}: {stated} by {reason}")


def _nothing_sharded(plan: str, func: str, notes: Sequence[str]) -> str:
    shown = "; ".join(notes[:_NOTES_IN_A_MESSAGE])
    more = len(notes) - _NOTES_IN_A_MESSAGE
    listed = f": {shown}" + (f"; and {more} more" if more > 0 else "")
    return f"the plan {plan!r} finds nothing to shard in {func}{listed if notes else ''}"


def fully_sharded(
    sizes: Sequence[int] | None, shards: int, axis: str, min_elements: int
) -> tuple[int | None, str]:
    """Finds the dimension that ``"fsdp"`` shards: the largest that the devices divide.

    Args:
        sizes: Those of a weight, -1 for symbolic ones; None if it has no shape.
        shards: The number of devices.
        axis: The mesh axis, for the reason.
        min_elements: Weights with fewer elements are not sharded.

    Returns:
        The dimension, None if there is none; and the reason.
    """
    if sizes is None:
        return None, "its shape is not known"
    if 0 <= math.prod(sizes) < min_elements:
        return None, f"{math.prod(sizes)} elements are fewer than min_elements={min_elements}"
    even = [dim for dim, size in enumerate(sizes) if size > 0 and size % shards == 0]
    if not even:
        return None, (
            f"no dimension of {tuple(sizes)} is a multiple of the {shards} devices of axis {axis!r}"
        )
    return max(even, key=lambda dim: sizes[dim]), "its size"


def batch_of(
    inputs: Sequence[relax.Var], shards: int, axis: str
) -> tuple[dict[str, tuple[str | None, ...]], list[str]]:
    """Finds dims of the inputs that have the batch of the first one, if it is not too small.

    Args:
        inputs: The inputs.
        shards: The number of devices.
        axis: The mesh axis.

    Returns:
        Dims by name, and for each input a note.
    """
    shapes = [getattr(param.ty, "shape", None) for param in inputs]
    first = next((shape for shape in shapes[:1] if shape is not None and len(shape)), None)
    batch = None if first is None else str(first[0])
    dims: dict[str, tuple[str | None, ...]] = {}
    notes: list[str] = []
    for param, shape in zip(inputs, shapes, strict=True):
        name = str(param.name)
        if batch is None or shape is None or not len(shape) or str(shape[0]) != batch:
            notes.append(f"{name}: replicated, as it has no dimension of the batch")
        elif batch.isdecimal() and int(batch) < shards:
            notes.append(
                f"{name}: replicated, a batch of {batch} is fewer than the {shards} devices of "
                f"axis {axis!r}"
            )
        else:
            dims[name] = (axis, *[None] * (len(shape) - 1))
            notes.append(f"{name}: the batch over axis {axis!r}")
    return dims, notes
