"""Chooses how a program is sharded: ``dx.autoshard``."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from distir_ext.analysis.costs import Estimate
from distir_ext.analysis.estimate import estimate
from distir_ext.analysis.planned import check_cluster
from distir_ext.analysis.planned_program import resolve_target
from distir_ext.annotate.annotations import MeshTable, function_to_annotate
from distir_ext.annotate.named_plans import searches
from distir_ext.autosharding.counting import CountedModule, count
from distir_ext.autosharding.meshes import meshes_of
from distir_ext.autosharding.problem import INFINITE
from distir_ext.autosharding.reasons import WeightChoice, weight_choices
from distir_ext.mesh.cluster import Cluster
from distir_ext.mesh.mesh import Mesh, as_mesh
from distir_ext.native.modules import check_module
from distir_ext.native.steps import phase
from distir_ext.structure.annotated_function import (
    PARAMETER,
    VARIABLE,
    Site,
    variable_names,
    with_annotations,
)
from distir_ext.structure.sizes import symbolic_sizes, with_sizes
from distir_ext.text.display import Printed
from distir_ext.text.spelling import did_you_mean
from distir_ext.text.tracebacks import short_tracebacks

GAP = 0.01
"""By which part of its time a plan may exceed the bound."""

OBJECTIVES = ("time", "memory")

# Of symbolic sizes, where a plan is named and none are stated.
_ASSUMED_SIZE = 1024
_TICKS = 1e12  # per second, as src/autosharding/model.h has it
EFFORT = 8
"""Most rounds of a search; most programs need one or two to come within ``GAP``."""

_TRIES = 8
# Rounds of a search that only asks whether a limit can be held.
_FEW = 2
# Limits for the plan with the least memory, relative to the least that any plan needs.
_LIMITS = (1.0, 1.05, 1.15, 1.3, 1.6, 2.0, 3.0)

Dims = tuple[str | tuple[str, ...] | None, ...]
Progress = Callable[["float | None", "float | None"], bool]


@dataclass(frozen=True, repr=False)
class AutoPlan(Printed):
    """A plan that was searched, with a bound of how good any plan can be.

    ``print`` shows tables, and notebooks show them as HTML. :attr:`mod` goes to ``dx.lower``,
    ``dx.build`` and all else that takes annotated modules.
    """

    mod: tvm.IRModule
    """The module with annotations."""

    mesh: Mesh
    """The mesh."""

    cluster: Cluster
    """The devices that it was searched for."""

    plan: Mapping[str, Dims]
    """What is annotated in the main function, as a plan of :func:`distir_ext.annotate`: from
    names of parameters and variables to dims."""

    weights: tuple[WeightChoice, ...]
    """Parameters, with the reason why each is sharded so."""

    searched_seconds: float
    """Seconds of one call as the search adds them up."""

    bound: float
    """Seconds than which no plan takes less, by the costs of the search."""

    estimate: Estimate
    """Work, bytes sent and memory of each device, of the annotated module once it is lowered."""

    memory_limit: float
    """Bytes that a device may hold."""

    least_memory: float
    """Bytes than which no plan needs less, by the figures of the search."""

    others: tuple[AutoPlan, ...] = ()
    """The best plans of other meshes, the fastest first, if the mesh was chosen, too."""

    @property
    def seconds(self) -> float:
        """Seconds of one call by :func:`distir_ext.analysis.estimate`."""
        return self.estimate.seconds

    @property
    def memory(self) -> float:
        """Bytes that a device holds at the peak, by the estimate."""
        return self.estimate.peak_memory

    def to_json(self) -> str:
        """Returns the plan as JSON, with those of other meshes."""
        return json.dumps({**self._data(), "others": [each._data() for each in self.others]})

    def _data(self) -> dict[str, Any]:
        return {
            "mesh": dict(zip(self.mesh.axis_names, self.mesh.shape, strict=True)),
            "seconds": self.seconds,
            "bound": self.bound,
            "gap": self.gap,
            "memory": self.memory,
            "memory_limit": self.memory_limit,
            "least_memory": self.least_memory,
            "plan": dict(self.plan),
            "weights": [asdict(each) for each in self.weights],
        }

    @property
    def gap(self) -> float:
        """By what part of its time the plan may exceed the best one."""
        if self.searched_seconds <= 0:
            return 0.0
        return max(0.0, 1 - self.bound / self.searched_seconds)


@short_tracebacks
def autoshard(
    mod: tvm.IRModule,
    mesh: Mesh | Any | None = None,
    cluster: Cluster | None = None,
    *,
    devices: int | None = None,
    memory_limit: float | None = None,
    func: str = "main",
    objective: str = "time",
    sizes: Mapping[str, int] | None = None,
    gap: float = GAP,
    effort: int = EFFORT,
    progress: Progress | None = None,
) -> AutoPlan:
    """Finds shardings of a program that take the least time within a limit of memory.

    All parameters and values are chosen at once: from the ways in which each operator can be
    computed (its factor rule), with the time of its shards by the roofline, and with the
    redistributions between operators as they are planned. What is annotated already stays as it is.
    The result is annotations, so propagation, ``explain`` and all else work as for those that are
    written by hand. ``docs/autoshard.md`` says what is assumed.

    Args:
        mod: A module in which nothing is distributed yet; it may have annotations on the mesh.
        mesh: The mesh; without it, ``devices`` are arranged in each possible way.
        cluster: The devices with their links, with a :class:`distir_ext.Device`. By default H100s.
        devices: Number of devices, in place of a mesh.
        memory_limit: Bytes that a device may hold at any time; by default the memory of the
            cluster's device.
        func: The function that is called; those that it calls are planned with it.
        objective: ``"time"``, or ``"memory"`` for the least memory, and then time.
        sizes: Values for symbolic sizes, for which the plan is chosen.
        gap: It ends once no plan can be faster by more than this part, as 0.01.
        effort: Most rounds of the search.
        progress: Called several times a second with the seconds of the best plan so far (None if
            there is none) and the bound (None before there is one); true ends the search. By
            default a terminal shows both.

    Returns:
        The plan. Ctrl-C also ends the search, and returns the best so far.

    Raises:
        ValueError: The module is distributed already, or has annotations on another mesh; the
            limit is below what any plan needs (says the least); an axis of the mesh is larger than
            any dimension; a symbolic size has no value; there is no such function or objective.
        TypeError: It is no module, mesh or cluster.

    Example:
        >>> from tvm import relax
        >>> builder = relax.BlockBuilder()
        >>> x, w = (relax.Var(name, relax.TensorType((8192, 8192), "float32")) for name in "xw")
        >>> with builder.function("main", [x, w], {"num_input": 1}):
        ...     result = builder.emit_func_output(builder.emit(relax.op.matmul(x, w)))
        >>> plan = autoshard(builder.get(), Mesh(tp=4)).plan  # one of two that are as fast
        >>> sum(dims != (None, None) for dims in plan.values())
        1
    """
    check_module(mod)
    function_to_annotate(mod, func)
    cluster = Cluster.preset("H100") if cluster is None else cluster
    check_cluster(cluster)
    if objective not in OBJECTIVES:
        raise ValueError(
            f"there is no objective {objective!r}{did_you_mean(objective, OBJECTIVES)}; there are "
            f"{', '.join(OBJECTIVES)}"
        )
    if phase(mod) not in (None, "annotated"):
        raise ValueError(
            "the module is distributed already; automatic sharding takes it as it is before "
            "PropagateSharding"
        )
    if memory_limit is not None and not memory_limit > 0:
        raise ValueError(f"memory_limit is {memory_limit}; it is a positive number of bytes")
    chosen = _meshes(mesh, devices)
    search = _Search(
        mod, func, cluster, memory_limit, objective, sizes or {}, gap, effort, progress
    )
    found: list[AutoPlan] = []
    errors: list[ValueError] = []
    for each in chosen:
        try:
            found.append(search.on(each))
        except ValueError as error:
            if len(chosen) == 1:
                raise
            errors.append(error)
    if not found:
        raise errors[0]
    found.sort(key=lambda plan: plan.seconds)
    return replace(found[0], others=tuple(found[1:]))


def _meshes(mesh: Any, devices: int | None) -> list[Mesh]:
    if (mesh is None) == (devices is None):
        raise ValueError("state either a mesh or devices=, the number of devices")
    if mesh is not None:
        return [as_mesh(mesh, "the mesh to plan for")]
    if not isinstance(devices, int) or isinstance(devices, bool) or devices < 1:
        raise ValueError(f"devices is a positive number, not {devices!r}")
    return meshes_of(devices)


class _Search:
    """The search on several meshes, for which operators are counted once."""

    def __init__(
        self,
        mod: tvm.IRModule,
        func: str,
        cluster: Cluster,
        memory_limit: float | None,
        objective: str,
        sizes: Mapping[str, int],
        gap: float,
        effort: int,
        progress: Progress | None,
    ) -> None:
        self.mod = mod
        self.func = func
        self.cluster = cluster
        self.objective = objective
        assert cluster.device is not None
        self.device = cluster.device
        self.limit = float(self.device.memory if memory_limit is None else memory_limit)
        self.gap = gap
        self.effort = effort
        self.progress = progress
        self.sizes = sizes
        sized, _ = with_sizes(mod, sizes)
        self._sized = _native("SeparateBatchDims")(sized)
        self._counted: CountedModule | None = None

    def on(self, mesh: Mesh) -> AutoPlan:
        """The best plan on a mesh."""
        return _SearchOnMesh(self, mesh).plan()

    def native(self, mesh: Mesh) -> tuple[Mapping[str, Any], Callable[..., Mapping[str, Any]]]:
        """A description of the program on a mesh, and a function that chooses for a limit."""
        device = self.device
        if self._counted is None:
            self._counted = count(self._sized, device, resolve_target(device.target))
        known, choose = _native("Search")(
            self._sized,
            self._sized.get_global_var(self.func),
            mesh.device_mesh,
            self.cluster.as_data(),
            self._counted.outlined,
            self._counted.counts,
            {
                "launch": device.launch,
                "bandwidth": device.bandwidth,
                "caches": sorted([float(size), rate] for size, rate in device.caches.items()),
                "operations": max(device.flops.values()),
            },
        )
        return known, choose


class _SearchOnMesh:
    """The search on one mesh, for one limit of memory after the other.

    Raises:
        ValueError: An axis of the mesh can shard nothing.
    """

    def __init__(self, search: _Search, mesh: Mesh) -> None:
        self._search = search
        self._mesh = mesh
        self._limit = search.limit
        self._known, self._native_choose = search.native(mesh)
        self._least_memory = float(self._known["least_memory"])
        usable = self._known["usable"]
        for name, size, serves in zip(mesh.axis_names, mesh.shape, usable, strict=True):
            if size > 1 and not serves:
                raise ValueError(
                    f"the axis {name!r} of {mesh!r}, of {size} devices, can shard no operator: no "
                    "dimension has so many elements, or can be cut so"
                )

    def plan(self) -> AutoPlan:
        """The best plan."""
        if self._search.objective == "memory":
            return self._least()
        # The search leaves out some buffers, such as those of collectives. Where a plan holds more
        # than it says, another one is searched with a lower limit.
        limit = high = self._limit
        low = 0.0  # a limit within which no plan was found
        best: AutoPlan | None = None
        for tries in range(_TRIES):
            found = self._choose(limit)
            if "statements" in found:
                plan = self._plan(found)
                if plan.memory <= self._limit:
                    return plan
                if best is None or plan.memory < best.memory:
                    best = plan
                high = limit
                limit *= (1 - 0.002 * 2**tries) * self._limit / plan.memory
            elif best is None:
                break
            else:
                low = limit
            if limit <= low:
                limit = (low + high) / 2
        if best is not None:
            raise ValueError(
                f"no plan was found that holds at most {self._limit:g} bytes per device; the one "
                f"that comes nearest holds {best.memory:g}"
            )
        raise ValueError(self._too_little())

    def _least(self) -> AutoPlan:
        """The plan that holds least of those that are fastest within several limits.

        The search cannot tell how much of its storages TVM leaves unused.
        """
        least = self._least_memory
        best: AutoPlan | None = None
        for factor in _LIMITS:
            found = self._choose(factor * least, _FEW)
            if "statements" in found:
                plan = self._plan(found)
                best = plan if best is None or plan.memory < best.memory else best
        if best is None:
            raise ValueError(self._too_little())
        if best.memory > self._limit:
            raise ValueError(
                f"no plan on {self._mesh!r} was found within {self._limit:g} bytes per device; the "
                f"one with the least holds {best.memory:g}, and none needs less than {least:g}"
            )
        return best

    def _too_little(self) -> str:
        least = self._least_memory
        where = (
            f", while `{self._known['least_at']}` is computed" if "least_at" in self._known else ""
        )
        if least > self._limit:
            return (
                f"a limit of {self._limit:g} bytes per device is below what any plan on "
                f"{self._mesh!r} needs: at least {least:g} bytes{where}"
            )
        return (
            f"no plan was found within {self._limit:g} bytes per device; any plan needs at least "
            f"{least:g} bytes{where}"
        )

    def _choose(self, limit: float, effort: int | None = None) -> Mapping[str, Any]:
        raised: list[BaseException] = []
        search = self._search
        ask = search.progress or _Line().ask

        def stop(cost: int, bound: int) -> bool:
            try:
                return bool(
                    ask(
                        None if cost >= INFINITE else cost / _TICKS,
                        None if bound <= -INFINITE else bound / _TICKS,
                    )
                )
            except KeyboardInterrupt:
                raise  # native code takes it for an answer
            except BaseException as error:  # kept here: native code knows only some types of errors
                raised.append(error)
                return True

        rounds = search.effort if effort is None else min(effort, search.effort)
        found = self._native_choose(math.floor(limit), rounds, search.gap, stop)
        if raised:
            raise raised[0]
        return found

    def _plan(self, found: Mapping[str, Any]) -> AutoPlan:
        mesh, search = self._mesh, self._search
        names = mesh.axis_names

        def dims_of(axes: Sequence[Sequence[int]]) -> Dims:
            return tuple(_entry([names[int(axis)] for axis in dim]) for dim in axes)

        stated: dict[str, dict[Site, Dims]] = {}
        for function, is_param, name, path, axes in found["statements"]:
            kind = PARAMETER if is_param else VARIABLE
            site = Site(kind, str(name), tuple(map(int, path)))
            stated.setdefault(str(function), {})[site] = dims_of(axes)
        mod = search.mod
        table = MeshTable(mod)
        marked: dict[str, relax.Function] = {}
        for func, sites in stated.items():
            function = mod[func]
            named = Counter(variable_names(function))
            marks = {
                site: table.mark(str(site), mesh, dims, None)
                for site, dims in sites.items()
                if named[site.name] == 1
            }
            marked[func] = with_annotations(function, marks)
        mod = table.store(mod.clone())
        for func, function in marked.items():
            mod.update_func(mod.get_global_var(func), function)
        return AutoPlan(
            mod,
            mesh,
            search.cluster,
            {site.label: dims for site, dims in stated.get(search.func, {}).items()},
            tuple(weight_choices(mod[search.func], search.func, found, dims_of, names)),
            found["cost"] / _TICKS,
            found["bound"] / _TICKS,
            estimate(mod, search.cluster, sizes=search.sizes),
            self._limit,
            self._least_memory,
        )


def _entry(axes: Sequence[str]) -> str | tuple[str, ...] | None:
    if len(axes) == 1:
        return axes[0]
    return tuple(axes) or None


def _native(name: str) -> Any:
    return tvm_ffi.get_global_func(f"distir.autosharding.{name}")


class _Line:
    """Shows the best so far on a terminal, in one line."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._shown = 0.0

    def ask(self, seconds: float | None, bound: float | None) -> bool:
        """Shows it at most twice a second, after the first one; never ends the search."""
        now = time.monotonic()
        if now - self._start > 1 and now - self._shown > 0.5 and sys.stderr.isatty():
            self._shown = now
            best = "no plan yet" if seconds is None else f"{seconds * 1e3:.4g} ms"
            gap = ""
            if seconds and bound is not None:
                gap = f", at most {max(0.0, 1 - bound / seconds):.1%} above the best"
            print(f"\rautoshard: {best}{gap} ({now - self._start:.0f} s) ", end="", file=sys.stderr)
        return False


def _annotated(mod: tvm.IRModule, mesh: Any, cluster: Any, **options: Any) -> tvm.IRModule:
    sizes = dict.fromkeys(symbolic_sizes(mod), _ASSUMED_SIZE) | dict(options.pop("sizes", {}))
    return autoshard(mod, mesh, cluster, sizes=sizes, **options).mod


searches.append(_annotated)
