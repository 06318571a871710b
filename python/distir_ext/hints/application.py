"""Applies layer hints to a module: splits fused weights, groups experts, annotates parameters."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
from tvm import relax

from distir_ext.annotate.annotations import function_to_annotate, relax_function
from distir_ext.annotate.patterns import annotate
from distir_ext.hints.detection import detect, with_inputs
from distir_ext.hints.geometry import Placed, place_weights
from distir_ext.hints.replicated import replicated_weights
from distir_ext.hints.report import LOGGER, Node, Report
from distir_ext.hints.resolution import ResolvedLayer, resolve
from distir_ext.hints.vocabulary import DistConfig, Hints
from distir_ext.hints.weights import CutWeights
from distir_ext.mesh.dims import dims_text
from distir_ext.mesh.mesh import Mesh
from distir_ext.native import reports
from distir_ext.structure.axes import LayerAxes
from distir_ext.structure.layers.products import Weights
from distir_ext.structure.program import Program
from distir_ext.structure.weights.apart import keep_apart
from distir_ext.structure.weights.blocks import cut_weights
from distir_ext.structure.weights.experts import group_experts
from distir_ext.structure.weights.fused_parameters import with_fused_parameters
from distir_ext.text.errors.tracebacks import short_tracebacks


@dataclass(frozen=True)
class Hinted:
    """A module as hints shard it.

    Attributes:
        mod: The annotated module, for :func:`distir_ext.build`.
        mesh: Its mesh.
        report: Report of the applied hints.
        plan: The annotations: dims by name of a parameter or variable.
        weights: Conversion of the model's weights to those of the module.
    """

    mod: tvm.IRModule
    mesh: Mesh
    report: Report
    plan: Mapping[str, Any]
    weights: CutWeights

    def params(self, params: Any) -> dict[str, Any]:
        """The weights that :meth:`distir_ext.Session.load` takes for the module.

        Fused weights are cut; nothing is copied.

        Args:
            params: The model's, by name: arrays, such as a torch ``state_dict``, or the path of a
                file or directory that ``Session.load`` reads, here on this host.

        Raises:
            OSError: A file cannot be read.
            ValueError: A file is damaged, or a fused weight has another shape.
        """
        return self.weights.cut(params)


@short_tracebacks
def apply(
    mod: tvm.IRModule,
    dist: DistConfig | None = None,
    hints: Hints | None = None,
    func: str = "main",
    inputs: Sequence[str] | None = None,
) -> Hinted:
    """Shards a module as hints say.

    Weights that are fused become one parameter per block. Experts that are divided over devices are
    computed by group. Then weights are annotated; propagation does the rest.

    Args:
        mod: A module without annotations.
        dist: Division of devices; None: as the hints state it.
        hints: The layers; None: as they are detected.
        func: The name of the function.
        inputs: As in :func:`distir_ext.annotate`: all parameters but these are weights.

    Raises:
        TypeError: ``mod`` is no module.
        ValueError: Neither says how devices are shared out; a hint is of no weight, or contradicts
            the shape of one; experts cannot be divided over so many groups.
    """
    start = time.perf_counter()
    mod = with_inputs(mod, func, inputs)
    hints = detect(mod, func) if hints is None else hints
    dist = dist or hints.dist
    if dist is None:
        raise ValueError("the hints do not say how many devices there are: pass a DistConfig")
    function = function_to_annotate(mod, func)
    weights = [str(p.name) for p in list(function.params)[int(function.attrs["num_input"]) :]]
    layers = resolve(hints, weights)
    placed, axes = place_weights(function, layers, dist)
    made = _Applied(mod, func, dist, placed, axes).run()
    report = Report(
        tuple(_nodes(layers, placed, _uses(function))),
        {layer.name: layer.hint.why for layer in layers if layer.hint.why},
        tuple(made.notes),
        partial(replicated_weights, mod, made.mod, func, list(placed), made.weights.blocks),
    )
    LOGGER.info(report.log_line())
    reports.record(
        "ApplyHints",
        report.counts(),
        {"weights": report.reasons()} if report.skipped else {},
        time.perf_counter() - start,
    )
    return Hinted(made.mod, made.mesh, report, made.plan, made.weights)


def _nodes(
    layers: Sequence[ResolvedLayer], placed: Mapping[str, Placed], uses: Mapping[str, int]
) -> list[Node]:
    found = []
    for layer in layers:
        for weight in layer.weights:
            each = placed[weight.param]
            dims = "; ".join(dims_text(dims) for dims in dict.fromkeys(each.dims))
            found.append(
                Node(
                    weight.param,
                    layer.name,
                    layer.hint.layer_type,
                    weight.hint.tp_mode,
                    "" if each.skipped else dims,
                    each.shards,
                    each.skipped,
                    max(uses.get(weight.param, 1), 1),
                )
            )
    return found


def _uses(function: relax.Function) -> Counter[str]:
    """Counts the products that read each weight."""
    program = Program(function)
    weights = Weights(program)
    found = (weights.product(binding.var) for binding in program.bindings)
    return Counter(str(each.param.name) for each in found if each is not None)


class _Applied:
    """The steps from a module and placed weights to an annotated module."""

    def __init__(
        self,
        mod: tvm.IRModule,
        func: str,
        dist: DistConfig,
        placed: Mapping[str, Placed],
        axes: LayerAxes,
    ) -> None:
        self.mod, self._func, self._dist = mod, func, dist
        self._placed, self._axes = placed, axes
        self.notes: list[str] = []
        self.names: dict[str, list[str]] = {}
        self.plan: dict[str, Any] = {}
        self.mesh = Mesh((1,), ("tp",))
        self.weights = CutWeights({}, {})

    def run(self) -> _Applied:
        """Runs all steps."""
        function = relax_function(self.mod, self._func)
        axes = self._axes
        function = self._group(self._cut(function))
        function = keep_apart(function, self._sharded_columns())
        self.mesh = Mesh(tuple(axes.sizes.values()), tuple(axes.sizes))
        for name, each in self._placed.items():
            for block, dims in zip(self.names[name], each.dims, strict=True):
                self.plan[re.escape(block)] = dims
        self._batch(function)
        mod = self.mod.clone()
        mod.update_func(mod.get_global_var(self._func), function)
        self.mod = annotate(mod, self.mesh, self.plan, self._func)
        return self

    def _cut(self, function: relax.Function) -> relax.Function:
        cuts = {name: each.cut for name, each in self._placed.items() if each.cut is not None}
        found = cut_weights(Program(function), cuts)
        self.weights = CutWeights(found.cuts, found.blocks)
        for name in self._placed:
            self.names[name] = list(found.blocks.get(name, (name,)))
        for name, reader in found.joined.items():
            self.notes.append(f"blocks of {name} are joined again: relax.{reader} reads the whole")
        for name, reader in found.divided.items():
            self.notes.append(f"{name} is cut while it runs: relax.{reader} reads its blocks")
        return with_fused_parameters(found.function, found.parameters)

    def _sharded_columns(self) -> set[str]:
        """The weights, and blocks of weights, whose columns are sharded."""
        return {
            block
            for name, each in self._placed.items()
            if not each.skipped and each.is_by_columns
            for block in self.names[name]
        }

    def _group(self, function: relax.Function) -> relax.Function:
        groups = self._dist.moe_ep_size
        experts = {
            block: each.expert_dim
            for name, each in self._placed.items()
            for block in self.names[name]
            if each.expert_dim is not None and not each.skipped
        }
        if groups == 1 or not experts:
            return function
        found = group_experts(function, experts, groups)
        for name, why in found.refused.items():
            self.notes.append(f"experts of {name} are not computed by group: {why}")
        if self._dist.enable_attention_dp:
            over = batch_axes(self._dist, self._axes)
            for name, rank in found.tokens.items():
                data = (self._axes.data,) if self._axes.data else ()
                self.plan[re.escape(name)] = (data or None, *[None] * (rank - 1))
            for name, (rank, dim) in found.sums.items():
                self.plan[re.escape(name)] = tuple(over if d == dim else None for d in range(rank))
        return found.function

    def _batch(self, function: relax.Function) -> None:
        """Shards the batch over devices that do not share layers."""
        over = batch_axes(self._dist, self._axes)
        if not over:
            return
        inputs = list(function.params)[: int(function.attrs["num_input"])]
        batches = {each: each.ty.shape[0] for each in inputs if len(each.ty.shape)}
        first = str(next(iter(batches.values()), ""))  # it may be symbolic
        for each, size in batches.items():
            if str(size) == first:
                rest = [None] * (len(each.ty.shape) - 1)
                self.plan[re.escape(str(each.name))] = (over, *rest)


def batch_axes(dist: DistConfig, axes: LayerAxes) -> tuple[str, ...]:
    """The axes over which the batch is sharded."""
    data = (axes.data,) if axes.data else ()
    return (*data, *axes.layer) if dist.enable_attention_dp else data
