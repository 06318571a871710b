"""Resolves plans, given by name or as a dict, to statements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor.parallel import ParallelStyle

from distir_ext.annotate.axes import Axes
from distir_ext.interop.torch.fsdp import state_fully_sharded
from distir_ext.interop.torch.names import ModelNames
from distir_ext.interop.torch.plans_hf import own_plan, state_styles
from distir_ext.interop.torch.plans_torch import state_parallel_styles
from distir_ext.interop.torch.statements import Statements
from distir_ext.text.errors.spelling import did_you_mean

NAMED = ("auto", "hf", "tp", "fsdp", "search")
"""The plans that have a name."""


def candidates(model: torch.nn.Module, plan: str | Mapping[str, Any], axes: Axes) -> list[str]:
    """The plans of which one is used: ``"hf"``, ``"tp"``, ``"fsdp"``, ``"search"`` or ``"dict"``.

    Of ``"auto"`` there are several, in the order in which those that cost the same are chosen.

    Raises:
        TypeError: The plan is neither a name nor a dict.
        ValueError: There is no plan of this name, or ``"hf"`` of a model that has none.
    """
    if isinstance(plan, Mapping):
        return ["dict"]
    if not isinstance(plan, str):
        raise TypeError(
            f"the plan is a {type(plan).__name__}; it is one of {', '.join(map(repr, NAMED))}, or "
            "a dict from names to styles or dims"
        )
    if plan not in NAMED:
        raise ValueError(
            f"there is no plan {plan!r}; plans are {', '.join(map(repr, NAMED))}, and dicts"
            f"{did_you_mean(plan, NAMED)}"
        )
    own = own_plan(model, axes)
    if plan == "hf" and not own:
        raise ValueError(
            f"{type(model).__name__} has no plan of its own (tp_plan of a model of transformers); "
            '"tp" finds one by structure'
        )
    if plan != "auto":
        return [plan]
    only_fsdp = axes.find("tp") is None and axes.find("ep") is None and "fsdp" in _names(axes)
    has_layers = any("*" in key for key in own)  # some models have a rule for their head alone
    # A plan that leaves an axis of the mesh idle is no candidate.
    sharded = ["fsdp"] if only_fsdp or len(axes.mesh.axis_names) == 1 else []
    tensor = ["tp"] if _has_axis(axes, "tp") or not (has_layers or only_fsdp) else []
    return [*(["hf"] if has_layers else []), *tensor, *sharded, "search"]


def _has_axis(axes: Axes, role: str) -> bool:
    return axes.find(role) is not None or len(axes.mesh.axis_names) == 1


def _names(axes: Axes) -> set[str]:
    return {*axes.mesh.axis_names, *axes.given}


def state_plan(
    model: torch.nn.Module,
    names: ModelNames,
    kind: str,
    plan: str | Mapping[str, Any],
    axes: Axes,
    min_elements: int,
) -> Statements:
    """States what a plan can before export; all of ``"tp"`` is stated after it.

    Args:
        model: The model.
        names: Its names.
        kind: One of :func:`candidates`.
        plan: The plan as the user gave it.
        axes: The mesh.
        min_elements: For ``"fsdp"``.

    Raises:
        ValueError: The plan does not fit the model: all that is wrong.
    """
    stated = Statements()
    if kind == "hf":
        own = own_plan(model, axes)
        state_styles(names, own, axes, own, stated)
    elif kind == "fsdp":
        state_fully_sharded(names, axes, min_elements, stated)
    elif isinstance(plan, Mapping):
        _state_dict(model, names, plan, axes, stated)
    stated.check()
    return stated


def _state_dict(
    model: torch.nn.Module, names: ModelNames, plan: Mapping[str, Any], axes: Axes, to: Statements
) -> None:
    for key in plan:
        if not isinstance(key, str):
            raise TypeError(f"the plan has the key {key!r}, not a name")
    styles = {key: entry for key, entry in plan.items() if isinstance(entry, str)}
    parallel = {key: entry for key, entry in plan.items() if isinstance(entry, ParallelStyle)}
    if styles:
        own = {**(getattr(model, "tp_plan", None) or {}), **(getattr(model, "ep_plan", None) or {})}
        state_styles(names, styles, axes, own, to)
    if parallel:
        state_parallel_styles(names, parallel, axes, to)
    for key, entry in plan.items():
        if key in styles or key in parallel:
            continue
        found = names.find_parameters(key)
        for name in found:
            to.parameters.setdefault(name, entry)
        if not found:
            to.entries[key] = entry
