"""Runs the native search for the cheapest plan of a program on one mesh, within a memory limit.

``Program`` is a module with numbers for its symbolic sizes and with counted operators.
``SearchOnMesh`` searches for one memory limit after the other and returns annotations.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from distir_ext.analysis.programs.planned_program import resolve_target
from distir_ext.annotate.annotations import MeshTable
from distir_ext.autosharding.auto_plan import Dims
from distir_ext.autosharding.counting import CountedModule, count
from distir_ext.autosharding.problem import INFINITE
from distir_ext.mesh.cluster import Cluster
from distir_ext.mesh.mesh import Mesh
from distir_ext.structure.annotated_function import (
    PARAMETER,
    VARIABLE,
    Site,
    variable_names,
    with_annotations,
)
from distir_ext.structure.sizes import with_sizes

TICKS = 1e12
"""Costs per second, as ``src/autosharding/model.h`` has it."""

Progress = Callable[["float | None", "float | None"], bool]
Statements = dict[str, dict[Site, Dims]]


@dataclass(frozen=True)
class Options:
    """Options of all searches of a plan.

    Attributes:
        cluster: The devices.
        limit: Bytes that a device may hold.
        gap: By which part of its time a plan may exceed the bound.
        effort: Most rounds of a search.
        progress: As for :func:`distir_ext.autoshard`.
    """

    cluster: Cluster
    limit: float
    gap: float
    effort: int
    progress: Progress | None


class Program:
    """A module with numbers for its sizes, whose operators are counted once for all meshes.

    Args:
        mod: The module, not distributed yet.
        func: The function that is called.
        sizes: Values for symbolic sizes.
        cluster: The devices.
    """

    def __init__(
        self, mod: tvm.IRModule, func: str, sizes: Mapping[str, int], cluster: Cluster
    ) -> None:
        self.func = func
        self._cluster = cluster
        sized, _ = with_sizes(mod, sizes)
        self.mod: tvm.IRModule = native("SeparateBatchDims")(sized)
        self._counted: CountedModule | None = None

    @classmethod
    def of_part(cls, whole: Program, part: tvm.IRModule, outlined: tvm.IRModule) -> Program:
        """A part of a program, whose operators are counted.

        Args:
            whole: The program.
            part: Some of its bindings as its function.
            outlined: The same bindings of the outlined module.
        """
        program = cls.__new__(cls)
        program.func = whole.func
        program._cluster = whole._cluster
        program.mod = part
        program._counted = CountedModule(outlined, whole.counted.counts)
        return program

    @property
    def counted(self) -> CountedModule:
        """The work of its operators."""
        if self._counted is None:
            device = self._cluster.device
            assert device is not None
            self._counted = count(self.mod, device, resolve_target(device.target))
        return self._counted

    def on(self, mesh: Mesh) -> tuple[Mapping[str, Any], Callable[..., Mapping[str, Any]]]:
        """A description of the program on a mesh, and a function that chooses for a limit."""
        device = self._cluster.device
        assert device is not None
        known, choose = native("Search")(
            self.mod,
            self.mod.get_global_var(self.func),
            mesh.device_mesh,
            self._cluster.as_data(),
            self.counted.outlined,
            self.counted.counts,
            {
                "launch": device.launch,
                "bandwidth": device.bandwidth,
                "caches": sorted([float(size), rate] for size, rate in device.caches.items()),
                "operations": max(device.flops.values()),
            },
        )
        return known, choose


class SearchOnMesh:
    """The search for a program on one mesh, for one limit of memory after the other.

    Raises:
        ValueError: An axis of the mesh can shard nothing.
    """

    def __init__(self, program: Program, mesh: Mesh, options: Options) -> None:
        self._options = options
        self._mesh = mesh
        self._known, self._native_choose = program.on(mesh)
        self.least_memory = float(self._known["least_memory"])
        """Bytes that any plan needs."""
        usable = self._known["usable"]
        for name, size, serves in zip(mesh.axis_names, mesh.shape, usable, strict=True):
            if size > 1 and not serves:
                raise ValueError(
                    f"the axis {name!r} of {mesh!r}, of {size} devices, can shard no operator: no "
                    "dimension has so many elements, or can be cut so"
                )

    @property
    def least_at(self) -> str | None:
        """The name of a value that is computed while this memory is needed."""
        return str(self._known["least_at"]) if "least_at" in self._known else None

    def choose(
        self, limit: float, effort: int | None = None, mixes: bool = True
    ) -> Mapping[str, Any]:
        """The best choice within a limit of memory; without statements if there is none.

        Args:
            limit: Bytes.
            effort: Most rounds, if they are fewer than those of the options.
            mixes: Whether the solver mixes choices; without, it may find another one.
        """
        raised: list[BaseException] = []
        ask = self._options.progress or _Line().ask

        def stop(cost: int, bound: int) -> bool:
            try:
                seconds = None if cost >= INFINITE else cost / TICKS
                least = None if bound <= -INFINITE else bound / TICKS
                return bool(ask(seconds, least))
            except KeyboardInterrupt:
                raise  # native code takes it for an answer
            except BaseException as error:  # kept here: native code knows only some types of errors
                raised.append(error)
                return True

        most = self._options.effort
        rounds = most if effort is None else min(effort, most)
        found = self._native_choose(math.floor(limit), rounds, self._options.gap, mixes, stop)
        if raised:
            raise raised[0]
        return found

    def dims_of(self, axes: Sequence[Sequence[int]]) -> Dims:
        """Dims of axes by number."""
        names = self._mesh.axis_names
        return tuple(_entry([names[int(axis)] for axis in dim]) for dim in axes)

    def statements(self, found: Mapping[str, Any]) -> Statements:
        """Returns the annotations of a choice, by function."""
        stated: Statements = {}
        for function, is_param, name, path, axes in found["statements"]:
            kind = PARAMETER if is_param else VARIABLE
            site = Site(kind, str(name), tuple(map(int, path)))
            stated.setdefault(str(function), {})[site] = self.dims_of(axes)
        return stated


def annotated(mod: tvm.IRModule, mesh: Mesh, stated: Statements) -> tvm.IRModule:
    """The module with annotations on a mesh; variables of one name are left out."""
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
    return mod


def native(name: str) -> Any:
    """A function of the native library."""
    return tvm_ffi.get_global_func(f"distir.autosharding.{name}")


def _entry(axes: Sequence[str]) -> str | tuple[str, ...] | None:
    if len(axes) == 1:
        return axes[0]
    return tuple(axes) or None


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
