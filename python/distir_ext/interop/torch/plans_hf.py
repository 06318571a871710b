"""Converts plans of transformers, which give modules a style, to dims of parameters.

A configuration has them as ``base_model_tp_plan`` and ``base_model_ep_plan``, a model as
``tp_plan`` and ``ep_plan``. A rule of a module holds for its own parameters. torch keeps the weight
of a linear layer as (out, in), and transformers those of experts as (expert, out, in):

    {"layers.*.mlp.up_proj": "colwise"}    model.layers.0.mlp.up_proj.weight: ("tp", None), ...

What styles do to activations at run time propagation finds by itself, so that a style may have
nothing to say here. That is noted, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from distir_ext.annotate.axes import Axes
from distir_ext.interop.torch.marks import ModuleValue
from distir_ext.interop.torch.names import ModelNames
from distir_ext.interop.torch.statements import Layout, Statements
from distir_ext.text.errors.spelling import did_you_mean


@dataclass(frozen=True)
class Style:
    """Effect of a transformers style on the tensors of a module.

    Attributes:
        weight: The dimension of weights that it shards; None for none.
        vector: The dimension of one-dimensional parameters that it shards.
        states: True if it states shardings of parameters.
        role: Of the mesh axis.
        sequence: The dimension of the module's input and output that it shards.
        gathers: True if the output is replicated.
        remark: Note about a part that needs nothing, or is done in another way.
    """

    weight: int | None = None
    vector: int | None = None
    states: bool = True
    role: str = "tp"
    sequence: int | None = None
    gathers: bool = False
    remark: str = ""


def _nothing(reason: str, role: str = "tp") -> Style:
    return Style(states=False, role=role, remark=reason)


_SUMS = "propagation adds partial sums where they are needed"
_PACKED = (
    "each device has a block of all columns, and what it lacks of the parts that they are split "
    "into is exchanged at run time"
)

STYLES: Mapping[str, Style] = {
    "colwise": Style(weight=-2, vector=0),
    "colwise_gather_output": Style(weight=-2, vector=0, gathers=True),
    "colwise_rep": Style(weight=-2, vector=0, gathers=True),
    "rowwise": Style(weight=-1),
    "rowwise_split_input": Style(weight=-1),
    "rowwise_rep": Style(weight=-1),
    "packed_colwise": Style(weight=-2, vector=0, remark=_PACKED),
    "packed_rowwise": Style(weight=-1, remark=_PACKED),
    "embedding_rowwise": Style(weight=0),
    "embedding_colwise": Style(weight=1),
    "sequence_parallel": Style(sequence=1),
    "replicate": Style(),
    "replicated_with_grad_allreduce": Style(),
    "mla_kv_a_proj": Style(),
    "local_params": _nothing("its parameters have rules of their own"),
    "all_reduce": _nothing(_SUMS),
    "moe_tp_experts": _nothing(_SUMS),
    "moe_identity_expert": _nothing("values are global, so that nothing is counted twice"),
    "grouped_gemm": Style(weight=0, vector=0, role="ep"),
    "ep_dispatch_experts": _nothing("propagation finds what tokens and experts exchange", "ep"),
}
"""All styles of transformers 5.23."""

_REMOVED = {
    "ep_router": "transformers has removed it; experts are 'grouped_gemm', 'ep_dispatch_experts'",
}


def own_plan(model: torch.nn.Module, axes: Axes) -> dict[str, str]:
    """The rules that a model of transformers brings along.

    Args:
        model: The model.
        axes: With an axis for experts, their plan is taken too, and comes first.

    Returns:
        Styles by key; none if the model has no plan.
    """
    tensor = dict(getattr(model, "tp_plan", None) or {})
    if axes.find("ep") is None:
        return tensor
    experts = dict(getattr(model, "ep_plan", None) or {})
    if axes.find("tp") is None:
        return experts
    kept = {key: style for key, style in tensor.items() if not _is_within(key, experts)}
    return {**experts, **kept}


def _is_within(key: str, rules: Mapping[str, str]) -> bool:
    return any(key == rule or key.startswith(f"{rule}.") for rule in rules)


def state_styles(
    names: ModelNames, plan: Mapping[str, str], axes: Axes, known: Mapping[str, Any], to: Statements
) -> None:
    """States the shardings that rules of transformers ask for.

    Args:
        names: Of the model.
        plan: Styles by key.
        axes: The mesh.
        known: The model's own plan: its rules may name nothing, as they are written for all models
            of a kind.
        to: Gets it, and what is wrong.
    """
    by_name = _resolved(names, plan, known, to)
    modules_done: dict[str, str] = {}
    for name, key in by_name.items():
        if name in names.parameters:
            _state_parameter(names, name, key, plan[key], axes, to)
            continue
        modules_done[name] = key
        for parameter in names.own_parameters(name):
            if parameter not in by_name:
                _state_parameter(names, parameter, key, plan[key], axes, to)
    for name, key in modules_done.items():
        _state_values(name, STYLES[plan[key]], axes, to)
    for key, style in plan.items():
        if style in STYLES and STYLES[style].remark:
            remark = STYLES[style].remark
            nothing = "" if STYLES[style].states else "nothing to do, "
            to.notes.append(f"{key}: style {style!r}: {nothing}{remark}")


def _resolved(
    names: ModelNames, plan: Mapping[str, str], known: Mapping[str, Any], to: Statements
) -> dict[str, str]:
    """The key that holds for each module and parameter that is named."""
    found: dict[str, str] = {}
    for key, style in plan.items():
        if style not in STYLES:
            removed = f" ({_REMOVED[style]})" if style in _REMOVED else ""
            to.problems.append(
                f"{key!r} has the style {style!r}, which is none of transformers'{removed}"
                f"{did_you_mean(str(style), STYLES)}"
            )
            continue
        matched = names.find_parameters(key) or names.find_modules(key)
        for name in matched:
            found.setdefault(name, key)
        if not matched and (key in known or f"{names.prefix}{key}" in known):
            to.notes.append(f"{key}: style {style!r} names nothing in this model")
        elif not matched:
            to.problems.append(names.unknown(key, f"style {style!r}"))
    return found


def _state_parameter(
    names: ModelNames, name: str, key: str, style_name: str, axes: Axes, to: Statements
) -> None:
    style = STYLES[style_name]
    if not style.states:
        return
    parameter = names.parameters[name]
    dim = style.weight if parameter.dim() > 1 else style.vector
    axis = axes.find(style.role) or axes.need("tp")
    to.shard(axes, name, parameter, dim, axis, f"style {style_name!r} of {key!r}")


def _state_values(module: str, style: Style, axes: Axes, to: Statements) -> None:
    if style.sequence is not None:
        layout = Layout(axes.need("tp"), style.sequence)
        to.lay_out(ModuleValue(module, "input", 0), [layout])
        to.lay_out(ModuleValue(module, "output", 0), [layout])
    if style.gathers:
        to.lay_out(ModuleValue(module, "output", 0), [Layout(axes.need("tp"), None)])
