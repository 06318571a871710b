"""Converts plans for torch's ``parallelize_module`` to statements on parameters and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)

from distir_ext.annotate.axes import Axes
from distir_ext.interop.torch.marks import ModuleValue
from distir_ext.interop.torch.names import ModelNames
from distir_ext.interop.torch.statements import Layout, Statements

_COLUMNS = {torch.nn.Linear: 0, torch.nn.Embedding: 1}
"""The dimension of the weight that ColwiseParallel shards; RowwiseParallel shards the other one."""


def state_parallel_styles(
    names: ModelNames, plan: Mapping[str, ParallelStyle], axes: Axes, to: Statements
) -> None:
    """States the shardings that a plan of ``parallelize_module`` asks for.

    Args:
        names: Of the model.
        plan: Styles by pattern on names of modules; ``""`` is the model itself.
        axes: The mesh; the plan is for its axis for tensor parallelism.
        to: Gets it, and what is wrong.
    """
    axis = axes.need("tp")
    for key, style in plan.items():
        modules = names.find_modules(key) if key else [""]
        if not modules:
            to.problems.append(names.unknown(key, type(style).__name__))
        for module in modules:
            _StyleOf(names, module, key, axes, axis, to).state(style)


class _StyleOf:
    """One style on one module."""

    def __init__(
        self, names: ModelNames, module: str, key: str, axes: Axes, axis: str, to: Statements
    ) -> None:
        self._names, self._module, self._key = names, module, key
        self._axes, self._axis, self._to = axes, axis, to

    def state(self, style: Any) -> None:
        if isinstance(style, ColwiseParallel | RowwiseParallel):
            self._linear(style)
        elif isinstance(style, SequenceParallel):
            self._sequence(style)
        elif isinstance(style, PrepareModuleInput):
            self._prepare_input(style)
        elif isinstance(style, PrepareModuleOutput):
            self._prepare_output(style)
        elif isinstance(style, PrepareModuleInputOutput):
            self._prepare_input(style.prepare_module_input)
            self._prepare_output(style.prepare_module_output)
        else:
            self._problem(
                f"{type(style).__name__} is none of ColwiseParallel, RowwiseParallel, "
                "SequenceParallel, PrepareModuleInput, PrepareModuleOutput and "
                "PrepareModuleInputOutput"
            )

    def _linear(self, style: ColwiseParallel | RowwiseParallel) -> None:
        module = self._names.modules[self._module]
        kind = type(style).__name__
        columns = next((dim for known, dim in _COLUMNS.items() if isinstance(module, known)), None)
        if columns is None:
            self._problem(
                f"{kind} shards nn.Linear and nn.Embedding; {self._module!r} is "
                f"{type(module).__name__}"
            )
            return
        by_columns = isinstance(style, ColwiseParallel)
        for name, parameter in self._names.own_parameters(self._module).items():
            dim: int | None = columns if by_columns else 1 - columns
            if parameter.dim() == 1:  # the bias
                dim = 0 if by_columns else None
            self._to.shard(self._axes, name, parameter, dim, self._axis, f"{kind} of {self._key!r}")
        # Layouts that are the style's own follow from how it shards the weight.
        own = (Replicate(), Shard(-1)) if by_columns else (Shard(-1), Replicate())
        embedding = isinstance(module, torch.nn.Embedding)
        wanted = Replicate() if embedding else own[0]
        self._lay_out("input", 0, own[0], style.input_layouts[0], wanted)
        if style.output_layouts[0] != own[1]:
            self._lay_out("output", 0, None, style.output_layouts[0])

    def _sequence(self, style: SequenceParallel) -> None:
        for name, parameter in self._names.own_parameters(self._module).items():
            self._to.shard(
                self._axes, name, parameter, None, self._axis, f"SequenceParallel of {self._key!r}"
            )
        (layout,) = style.sequence_sharding
        self._lay_out("input", 0, None, layout)
        self._lay_out("output", 0, None, layout)

    def _prepare_input(self, style: PrepareModuleInput) -> None:
        pairs = zip(style.input_layouts or (), style.desired_input_layouts or (), strict=True)
        for which, (given, desired) in enumerate(pairs):
            self._lay_out("input", which, None, given, desired)
        for name, given in style.input_kwarg_layouts.items():
            self._lay_out("input", name, None, given, style.desired_input_kwarg_layouts.get(name))

    def _prepare_output(self, style: PrepareModuleOutput) -> None:
        pairs = zip(style.output_layouts, style.desired_output_layouts, strict=True)
        for which, (given, desired) in enumerate(pairs):
            self._lay_out("output", which, None, given, desired)

    def _lay_out(self, side: str, which: int | str, own: Any, *placements: Any) -> None:
        """States the placements of a value, unless the first is the style's own."""
        if placements[0] == own:
            return
        layouts = []
        for placement in placements:
            if placement is None:
                continue
            if isinstance(placement, Replicate):
                layouts.append(Layout(self._axis, None))
            elif type(placement) is Shard:
                layouts.append(Layout(self._axis, placement.dim))
            else:
                self._problem(f"{placement!r} is neither Shard nor Replicate")
        if layouts:
            self._to.lay_out(ModuleValue(self._module, side, which), layouts)

    def _problem(self, text: str) -> None:
        self._to.problems.append(f"{self._key!r}: {text}")
