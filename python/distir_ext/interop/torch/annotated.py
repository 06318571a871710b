"""Annotates a torch model by each of several plans, and picks the fastest plan that fits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import tvm

from distir_ext.analysis.estimate import estimate
from distir_ext.annotate.axes import Axes
from distir_ext.annotate.patterns import annotate
from distir_ext.autosharding.plan import autoshard
from distir_ext.interop.torch.entries import entries
from distir_ext.interop.torch.importer import ImportedModel
from distir_ext.interop.torch.marks import ModuleValue
from distir_ext.interop.torch.names import ModelNames
from distir_ext.interop.torch.plans import candidates, state_plan
from distir_ext.interop.torch.statements import Layout, Statements
from distir_ext.interop.torch.structure import state_structure
from distir_ext.mesh.cluster import Cluster
from distir_ext.native.reports import record
from distir_ext.text.errors.logs import package_logger

_LOGGER = package_logger("distir_ext.interop.torch")

_Found = TypeVar("_Found")


def _of_each(
    kinds: Sequence[str], compute: Callable[[str], _Found]
) -> tuple[dict[str, _Found], dict[str, str]]:
    """Computes something of each plan; of several, those that do not fit are left out.

    Returns:
        By kind what was computed, and why it could not be.

    Raises:
        ValueError: None of them fits: the first one's.
    """
    found: dict[str, _Found] = {}
    refused: dict[str, ValueError] = {}
    for kind in kinds:
        try:
            found[kind] = compute(kind)
        except ValueError as error:
            refused[kind] = error
    if not found:
        raise next(iter(refused.values()))
    return found, {kind: str(error) for kind, error in refused.items()}


@dataclass(frozen=True)
class Annotated:
    """A model as one plan shards it."""

    kind: str
    stated: Statements
    found: dict[str, Any]
    mod: tvm.IRModule


def stated_plans(
    model: torch.nn.Module,
    names: ModelNames,
    plan: str | Mapping[str, Any],
    axes: Axes,
    min_elements: int,
) -> tuple[dict[str, Statements], dict[str, str]]:
    """States the plans of which one is used, as far as that can be done before export.

    Returns:
        Statements by the kind of plan, and why others cannot be used.

    Raises:
        TypeError: The plan has a wrong type.
        ValueError: There is no plan that fits the model.
    """
    return _of_each(
        candidates(model, plan, axes),
        lambda kind: state_plan(model, names, kind, plan, axes, min_elements),
    )


def values_of(stated: Mapping[str, Statements]) -> dict[ModuleValue, list[Layout]]:
    """The values of modules that plans state, which an import has to mark."""
    return {value: layouts for each in stated.values() for value, layouts in each.values.items()}


def best_annotated(
    names: ModelNames,
    imported: ImportedModel,
    each_stated: Mapping[str, Statements],
    refused: Mapping[str, str],
    axes: Axes,
    cluster: Cluster | None,
    memory_limit: float | None,
) -> Annotated:
    """The model under the plan that takes the least time; its notes say what others take.

    Args:
        names: Of the model.
        imported: The model in Relax.
        each_stated: Statements by the kind of plan.
        refused: Why other plans cannot be used.
        axes: The mesh.
        cluster: The devices; by default H100s.
        memory_limit: Bytes that a device may hold; by default its memory.

    Raises:
        ValueError: No plan fits the model.
    """
    found, refused_late = _of_each(
        list(each_stated),
        lambda kind: (
            _searched(imported, each_stated[kind], axes, cluster, memory_limit)
            if kind == "search"
            else _annotated(names, imported, each_stated[kind], axes, kind)
        ),
    )
    best = _fastest(list(found.values()), imported.open_sizes, cluster, memory_limit)
    for kind, why in {**refused, **refused_late}.items():
        best.stated.notes.append(f"auto: {kind!r} cannot be used: {why}")
    return best


def _annotated(
    names: ModelNames, imported: ImportedModel, stated: Statements, axes: Axes, kind: str
) -> Annotated:
    start = time.perf_counter()
    if kind == "tp":
        state_structure(names, imported, axes, stated)
        stated.check()
    found = entries(names, imported, stated, axes, kind)
    _report(kind, imported, found, stated, time.perf_counter() - start)
    mod = annotate(imported.mod, axes.mesh, found)
    return Annotated(kind, stated, found, mod)


def _searched(
    imported: ImportedModel,
    stated: Statements,
    axes: Axes,
    cluster: Any,
    memory_limit: float | None,
) -> Annotated:
    start = time.perf_counter()
    plan = autoshard(
        imported.mod, axes.mesh, cluster, memory_limit=memory_limit, sizes=imported.open_sizes
    )
    stated.notes += [f"{each.name}: {each.dims}; {each.reason}" for each in plan.weights]
    found = dict(plan.plan)
    _report("search", imported, found, stated, time.perf_counter() - start)
    return Annotated("search", stated, found, plan.mod)


def _fastest(
    each: Sequence[Annotated],
    sizes: Mapping[str, int],
    cluster: Cluster | None,
    memory_limit: float | None,
) -> Annotated:
    """The one that takes the least time, the first of those; if none fits, the smallest.

    Args:
        each: The model under several plans.
        sizes: Those of the example inputs, for the sizes that are open.
        cluster: The devices; by default H100s.
        memory_limit: Bytes that a device may hold; by default its memory.
    """
    if len(each) == 1:
        return each[0]
    cluster = Cluster.preset("H100") if cluster is None else cluster
    estimates, unpriced = _of_each(
        [one.kind for one in each],
        lambda kind: estimate(
            next(one.mod for one in each if one.kind == kind), cluster, sizes=sizes
        ),
    )
    limit = cluster.device.memory if memory_limit is None and cluster.device else memory_limit
    assert limit is not None

    def price(one: Annotated) -> tuple[float, float]:
        found = estimates[one.kind]
        over = max(0.0, found.peak_memory - limit)
        return over, found.seconds

    priced = [one for one in each if one.kind in estimates]
    best = min(priced, key=price)
    of_example = ", with the sizes of the example inputs" if sizes else ""
    for one in priced:
        over, seconds = price(one)
        held = f", and holds {over:g} bytes more than a device may" if over else ""
        best.stated.notes.append(
            f"auto: {one.kind!r} takes {seconds:.4g} s by the estimate{of_example}{held}"
        )
    best.stated.notes += [
        f"auto: {kind!r} cannot be priced: {why}" for kind, why in unpriced.items()
    ]
    return best


def _report(
    kind: str,
    imported: ImportedModel,
    found: Mapping[str, Any],
    stated: Statements,
    seconds: float,
) -> None:
    for note in stated.notes:
        _LOGGER.info("%s: %s", kind, note)
    sharded = sum(name in found for name in imported.params)
    left = len(imported.params) - sharded
    skipped = {"parameters": {"left to propagation": left}} if left else {}
    done = {"parameters": sharded, "inputs and values": len(found) - sharded}
    record(f"TorchPlan({kind})", done, skipped, seconds)


def renamed(names: ModelNames, exported: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The parameters of the module that each name of the model's ``state_dict`` stands for.

    Args:
        names: Of the model.
        exported: From names of parameters in the module to the model's.
    """
    by_tensor: dict[int, list[str]] = {}
    for parameter, name in exported.items():
        by_tensor.setdefault(id(names.parameters[name]), []).append(parameter)
    found: dict[str, tuple[str, ...]] = dict.fromkeys(names.buffers, ())
    for name, value in names.parameters.items():
        # Files have one of the names of tied parameters: the first.
        found[name] = tuple(by_tensor.pop(id(value), ()))
    return found
