"""Chooses stages of a pipeline, by dynamic programming over parts of a program.

A stage is a range of groups of bindings (:mod:`slices`) on a number of neighbouring devices. The
solver gives each the time of its best plan; equal ranges share a search. Of all ways to divide the
groups and the devices, the one is taken whose sum of stages and B - 1 times the slowest, for B
microbatches, is least, as Alpa does (Zheng and others, OSDI 2022).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi

from distir_ext.analysis.estimate import estimate_of
from distir_ext.analysis.programs.planned import planned_programs
from distir_ext.analysis.simulate import timeline_of
from distir_ext.autosharding.auto_plan import AutoPlan, AutoStage
from distir_ext.autosharding.meshes import AXES, meshes_of
from distir_ext.autosharding.reasons import WeightChoice, weight_choices
from distir_ext.autosharding.search import (
    TICKS,
    Options,
    Program,
    SearchOnMesh,
    Statements,
    annotated,
)
from distir_ext.autosharding.slices import Slice, Slices
from distir_ext.mesh.mesh import Mesh
from distir_ext.passes import transform
from distir_ext.structure.annotated_function import PARAMETER, VARIABLE, Site

STAGES = "pp"
"""The axis of stages."""

_AXES = 2  # of a stage
_ROUNDS = 2
# A stage computes at most so much more, or less, than its part of the devices.
_IMBALANCE = 1.6
# Slowest stages that are tried differ by at least this part.
_STEP = 0.005
_TRIES = 4


@dataclass(frozen=True)
class _Cost:
    """The best plan of a range of groups on so many devices.

    Attributes:
        seconds: Of a microbatch.
        bound: Than which no plan takes less.
        shape: Of the mesh.
        search: The search on it.
        found: What it found.
        of: The range that was searched, which equals this one.
    """

    seconds: float
    bound: float
    shape: tuple[int, ...]
    search: SearchOnMesh
    found: Mapping[str, Any]
    of: Slice


@dataclass(frozen=True)
class _Stage:
    begin: int
    end: int
    first_device: int
    devices: int
    moving: float  # seconds of the transfer into it
    sending: float  # seconds that it waits for the next stage
    cost: _Cost

    @property
    def seconds(self) -> float:
        """Of a microbatch, until the next stage has it."""
        return self.cost.seconds + self.moving

    @property
    def period(self) -> float:
        """Between two microbatches."""
        return self.seconds + self.sending


class Pipelines:
    """Finds pipelines for one size of microbatches.

    Args:
        mod: The module, with symbolic sizes.
        program: The module with numbers for them, of a microbatch.
        sizes: These numbers.
        devices: The number of devices.
        microbatches: The number of microbatches.
        options: Of the search.
    """

    def __init__(
        self,
        mod: tvm.IRModule,
        program: Program,
        sizes: Mapping[str, int],
        devices: int,
        microbatches: int,
        options: Options,
    ) -> None:
        self._mod = mod
        self._func = program.func
        self._sizes = sizes
        self._devices = devices
        self._microbatches = microbatches
        self._options = options
        self._slices = Slices(program)
        self._parts: dict[tuple[int, int], Slice] = {}
        self._equal: dict[int, list[Slice]] = {}
        self._searches: dict[tuple[int, tuple[int, ...]], SearchOnMesh | None] = {}
        self._costs: dict[tuple[int, int, float], _Cost | None] = {}

    @property
    def least_seconds(self) -> float:
        """Seconds than which no pipeline takes less: two stages that only compute."""
        whole = sum(self._slices.seconds)
        return whole / self._devices * (self._microbatches + 1)

    def fastest(self, below: float = math.inf) -> AutoPlan | None:
        """The fastest pipeline within the limit of memory.

        Args:
            below: Seconds that it has to take less than, as the search adds them up.

        Returns:
            The pipeline; None if there is none.
        """
        limit = self._options.limit
        for _ in range(_TRIES):
            stages = self._stages(limit)
            if stages is None or self._seconds(stages) >= below:
                return None
            plan = self._plan(stages)
            if plan.memory <= self._options.limit:
                return plan
            limit *= 0.995 * self._options.limit / plan.memory
        return None

    def _stages(self, limit: float) -> list[_Stage] | None:
        """The stages by dynamic programming, for each time of the slowest one."""
        groups = len(self._slices.cuts) - 1
        sizes = [
            size
            for size in range(1, self._devices)
            if self._devices % size == 0 and self._devices // size <= groups
        ]
        choices = [
            _Stage(begin, end, 0, size, *self._transfers(begin, end, size), cost)
            for size in sizes
            for begin in range(groups)
            for end in range(begin + 1, groups + 1)
            if self._balances(begin, end, size)
            if (cost := self._cost(begin, end, size, limit)) is not None
        ]
        best: list[_Stage] | None = None
        total = math.inf
        last = 0.0
        slowest = sorted({stage.period for stage in choices})
        for most in slowest:
            if (self._microbatches - 1) * most >= total:
                break
            if most < last * (1 + _STEP) and most != slowest[-1]:
                continue
            last = most
            found = self._least_sum([each for each in choices if each.period <= most])
            if found is not None and (now := self._seconds(found)) < total:
                best, total = found, now
        return best

    def _least_sum(self, choices: list[_Stage]) -> list[_Stage] | None:
        """The stages with the least sum of seconds."""
        groups = len(self._slices.cuts) - 1
        # By the groups and the devices before a stage: the sum, and the last stage.
        best: dict[tuple[int, int], tuple[float, _Stage | None]] = {(0, 0): (0.0, None)}
        for stage in sorted(choices, key=lambda each: each.begin):
            for first in range(0, self._devices - stage.devices + 1, stage.devices):
                before = best.get((stage.begin, first))
                if before is None:
                    continue
                total = before[0] + stage.seconds
                at = (stage.end, first + stage.devices)
                if total < best.get(at, (math.inf, None))[0]:
                    best[at] = (total, replace(stage, first_device=first))
        stages: list[_Stage] = []
        end = (groups, self._devices)
        while end in best and (last := best[end][1]) is not None:
            stages.insert(0, last)
            end = (last.begin, last.first_device)
        return stages or None

    def _seconds(self, stages: list[_Stage]) -> float:
        slowest = max(stage.period for stage in stages)
        return sum(stage.seconds for stage in stages) + (self._microbatches - 1) * slowest

    def _bound(self, stages: list[_Stage]) -> float:
        """Seconds that these stages take at least, however they are sharded."""
        whole = sum(stage.cost.bound + stage.moving for stage in stages)
        slowest = max(stage.cost.bound + stage.moving + stage.sending for stage in stages)
        return whole + (self._microbatches - 1) * slowest

    def _balances(self, begin: int, end: int, size: int) -> bool:
        if (begin, end) == (0, len(self._slices.cuts) - 1):
            return False  # no pipeline
        seconds = self._slices.seconds
        whole, share = sum(seconds), size / self._devices
        if not whole:
            return True
        # One group more or less is always allowed.
        part = sum(seconds[begin:end]) / whole
        largest = max(seconds) / whole
        return share / _IMBALANCE - largest <= part <= share * _IMBALANCE + largest

    def _part(self, begin: int, end: int) -> Slice:
        if (begin, end) not in self._parts:
            self._parts[begin, end] = self._slices.part(begin, end)
        return self._parts[begin, end]

    def _representative(self, begin: int, end: int) -> Slice:
        """The first range that equals one."""
        part = self._part(begin, end)
        key = tvm_ffi.structural_hash(part.function, map_free_vars=True)
        known = self._equal.setdefault(key, [])
        for each in known:
            if tvm_ffi.structural_equal(each.function, part.function, map_free_vars=True):
                return each
        known.append(part)
        return part

    def _cost(self, begin: int, end: int, size: int, limit: float) -> _Cost | None:
        of = self._representative(begin, end)
        key = (id(of), size, limit)
        if key in self._costs:
            return self._costs[key]
        best: _Cost | None = None
        for mesh in meshes_of(size, self._options.cluster, _AXES):
            shape = (*([1] * (_AXES - len(mesh.shape))), *mesh.shape)
            search = self._search(of, shape)
            if search is None or search.least_memory > limit:
                continue
            found = search.choose(limit, _ROUNDS)
            if "statements" in found and (best is None or found["cost"] < best.found["cost"]):
                best = _Cost(
                    found["cost"] / TICKS, found["bound"] / TICKS, shape, search, found, of
                )
        self._costs[key] = best
        return best

    def _search(self, of: Slice, shape: tuple[int, ...]) -> SearchOnMesh | None:
        key = (id(of), shape)
        if key not in self._searches:
            try:
                mesh = Mesh(shape, AXES[:_AXES])
                self._searches[key] = SearchOnMesh(of.program, mesh, self._options)
            except ValueError:  # an axis can shard nothing
                self._searches[key] = None
        return self._searches[key]

    def _transfers(self, begin: int, end: int, size: int) -> tuple[float, float]:
        """Seconds in which a stage gets what it reads, and is rid of its results.

        A send takes as long as its receiver on GPUs, and no time on CPUs.
        """
        device = self._options.cluster.device
        assert device is not None
        waits = not device.is_cpu and end < len(self._slices.cuts) - 1
        return (
            self._transfer(begin, size) if begin else 0.0,
            self._transfer(end, size) if waits else 0.0,
        )

    def _transfer(self, group: int, size: int) -> float:
        """Seconds in which so many devices get what is live before a group."""
        link = min(self._options.cluster.links.values(), key=lambda each: each.bandwidth)
        return link.latency + self._slices.live_bytes(group) / size / link.bandwidth

    def _plan(self, stages: list[_Stage]) -> AutoPlan:
        shapes = [stage.cost.shape for stage in stages]
        used = [at for at in range(_AXES) if any(shape[at] > 1 for shape in shapes)] or [0]
        names = [AXES[at] for at in used]
        meshes = [
            Mesh(
                [shape[at] for at in used],
                names,
                range(stage.first_device, stage.first_device + stage.devices),
            )
            for stage, shape in zip(stages, shapes, strict=True)
        ]
        stated, weights = self._stated(stages)
        first = self._slices.first_variable
        variables = {site.name for site in stated.get(self._func, {}) if site.kind == VARIABLE}
        begins = [first[stage.begin] for stage in stages[1:]]
        named = [f"{each}_computed" if each in variables else each for each in begins]
        mesh, axis = self._whole(meshes)
        mod = annotated(self._mod, mesh if axis else meshes[0], stated)
        assign = transform.AssignStages(
            mesh if axis else meshes, axis, func=self._func, begins=named
        )
        mod = assign(mod)
        cluster = self._options.cluster
        planned = planned_programs(mod, cluster, self._sizes)
        return AutoPlan(
            mod,
            mesh,
            cluster,
            {site.label: dims for site, dims in stated.get(self._func, {}).items()},
            weights,
            self._seconds(stages),
            self._bound(stages),
            estimate_of(planned),
            self._options.limit,
            max(stage.cost.search.least_memory for stage in stages),
            timeline_of(planned, self._func, self._microbatches).seconds,
            self._microbatches,
            tuple(
                AutoStage(mesh, name, stage.seconds, stage.cost.bound + stage.moving)
                for mesh, name, stage in zip(meshes, ["", *begins], stages, strict=True)
            ),
        )

    def _whole(self, meshes: list[Mesh]) -> tuple[Mesh, str | None]:
        """All devices, and the axis of stages if these are equal."""
        if all(mesh.shape == meshes[0].shape for mesh in meshes):
            shape, names = (len(meshes), *meshes[0].shape), (STAGES, *meshes[0].axis_names)
            sizes = list(zip(shape, names, strict=True))
            kept = [each for each in sizes if each[0] > 1] if len(meshes) > 1 else sizes
            return Mesh([size for size, _ in kept], [name for _, name in kept]), STAGES
        return Mesh((self._devices,), ("device",)), None

    def _stated(self, stages: list[_Stage]) -> tuple[Statements, tuple[WeightChoice, ...]]:
        """Returns the annotations of all stages, and why their weights are sharded so."""
        stated: Statements = {}
        choices: dict[str, WeightChoice] = {}
        params = {str(param.name) for param in self._mod[self._func].params}
        for stage in stages:
            part, cost = self._part(stage.begin, stage.end), stage.cost
            names = dict(
                zip(
                    (*cost.of.params, *cost.of.variables),
                    (*part.params, *part.variables),
                    strict=True,
                )
            )
            for func, sites in cost.search.statements(cost.found).items():
                own = stated.setdefault(func, {})
                for site, dims in sites.items():
                    here = site
                    if func == self._func:
                        placed = self._site(site, names, params)
                        if placed is None:
                            continue
                        here = placed
                    own.setdefault(here, dims)
            for choice in self._reasons(cost, names):
                if choice.name in params:
                    choices.setdefault(choice.name, choice)
        order = [str(param.name) for param in self._mod[self._func].params]
        return stated, tuple(choices[name] for name in order if name in choices)

    def _site(self, site: Site, names: Mapping[str, str], params: set[str]) -> Site | None:
        """A site of the main function; None for what another stage makes."""
        name = names[site.name]
        if site.kind == VARIABLE:
            return replace(site, name=name)
        if name in params:
            return replace(site, kind=PARAMETER, name=name)
        return replace(site, kind=VARIABLE, name=name) if name in self._slices.fields else None

    def _reasons(self, cost: _Cost, names: Mapping[str, str]) -> Iterator[WeightChoice]:
        search = cost.search
        for each in weight_choices(
            cost.of.function, self._func, cost.found, search.dims_of, AXES[:_AXES]
        ):
            reason = re.sub(
                r"`([^`]*)`", lambda value: f"`{names.get(value[1], value[1])}`", each.reason
            )
            yield replace(each, name=names[each.name], reason=reason)
