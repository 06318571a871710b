"""Named plans, for functions of any origin: ``"tp"``, ``"fsdp"`` and ``"auto"``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tvm
from tvm import relax

from distir_ext.annotate.axes import Axes
from distir_ext.annotate.structure import find_structure
from distir_ext.structure.program import Program, sizes_of
from distir_ext.text.plan_names import check_name

MIN_ELEMENTS = 1024
"""Parameters with fewer elements ``"fsdp"`` does not shard: a collective costs more than they."""


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


def named_plan(
    function: relax.Function, plan: str, axes: Axes, func: str, inputs: Sequence[str] | None
) -> dict[str, Any]:
    """Expands a plan's name to dims by patterns on parameter names.

    ``"tp"`` shards pairs of products by columns and rows, and the largest table;
    ``"fsdp"`` each parameter by its largest dimension that the devices divide. Another axis of the
    mesh that is called as one for the batch shards the first dimension of inputs.

    Args:
        function: The function.
        plan: ``"tp"`` or ``"fsdp"``.
        axes: The mesh.
        func: The name of the function.
        inputs: The parameters that every call passes; None: as the function says.

    Raises:
        ValueError: There is no plan of this name; the function does not say which parameters are
            weights; it has branches; or axes cannot be told apart.
    """
    check_name(plan)
    if inputs is not None:
        function = function.with_attr("num_input", len(set(inputs)))
    if function.attrs is None or "num_input" not in function.attrs:
        raise ValueError(
            f"{func} does not say which of its parameters are weights, which the plan {plan!r} "
            "shards: name the others, inputs=[..]"
        )
    program = Program(function)
    dims: dict[str, tuple[str | None, ...]] = {}
    if plan == "fsdp":
        used = axes.need("fsdp")
        dims.update(_fully_sharded(program.weights, axes.size(used), used))
    else:
        for binding in program.bindings:
            if isinstance(binding.value, relax.If):
                raise ValueError(
                    f"{func} has a branch, {binding.var.name}; the plan 'tp' is for functions "
                    "without branches"
                )
        used = axes.need("tp")
        found = find_structure(function, axes.size(used), used)
        ranks = {str(each.name): len(sizes_of(each) or ()) for each in program.weights}
        for name, (dim, _) in found.dims.items():
            dims[name] = tuple(used if place == dim else None for place in range(ranks[name]))
    batch = used if plan == "fsdp" else axes.find("batch")
    if batch is not None and (plan == "fsdp" or batch != used):
        dims.update(batch_of(program.inputs, axes.size(batch), batch))
    return {re.escape(name): entry for name, entry in dims.items()}


def largest_dimension(sizes: Sequence[int], shards: int) -> int | None:
    """The largest dimension that devices divide; None if there is none."""
    even = [dim for dim, size in enumerate(sizes) if size > 0 and size % shards == 0]
    return max(even, key=lambda dim: sizes[dim]) if even else None


def _fully_sharded(
    weights: Iterable[relax.Var], shards: int, axis: str
) -> Iterator[tuple[str, tuple[str | None, ...]]]:
    for param in weights:
        sizes = sizes_of(param)
        if sizes is None or math.prod(sizes) < MIN_ELEMENTS:
            continue
        dim = largest_dimension(sizes, shards)
        if dim is not None:
            yield (
                str(param.name),
                tuple(axis if place == dim else None for place in range(len(sizes))),
            )


def batch_of(
    inputs: Sequence[relax.Var], shards: int, axis: str
) -> Iterator[tuple[str, tuple[str | None, ...]]]:
    """Dims of the inputs that have the batch of the first one, if it is not too small."""
    shapes = [getattr(param.ty, "shape", None) for param in inputs]
    first = next((shape for shape in shapes[:1] if shape is not None and len(shape)), None)
    if first is None or (str(first[0]).isdecimal() and int(str(first[0])) < shards):
        return
    for param, shape in zip(inputs, shapes, strict=True):
        if shape is not None and len(shape) and str(shape[0]) == str(first[0]):
            yield str(param.name), (axis, *[None] * (len(shape) - 1))
