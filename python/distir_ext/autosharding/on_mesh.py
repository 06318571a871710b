"""Finds the fastest plan of a module on one mesh, or the plan that needs the least memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm

from distir_ext.analysis.estimate import estimate
from distir_ext.autosharding.auto_plan import AutoPlan
from distir_ext.autosharding.reasons import weight_choices
from distir_ext.autosharding.search import TICKS, Options, Program, SearchOnMesh, annotated
from distir_ext.mesh.mesh import Mesh

_TRIES = 8
# Rounds of a search that only asks whether a limit can be held.
_FEW = 2
# Limits for the plan with the least memory, relative to the least that any plan needs.
_LIMITS = (1.0, 1.05, 1.15, 1.3, 1.6, 2.0, 3.0)


class TooLittleMemoryError(ValueError):
    """A limit of memory is below what any plan needs.

    Attributes:
        least: Bytes that any plan needs.
    """

    def __init__(self, least: float, text: str) -> None:
        super().__init__(text)
        self.least = least


class PlanOnMesh:
    """Finds the plan of a module on a mesh.

    Args:
        mod: The module, with symbolic sizes.
        program: The module with numbers for them.
        sizes: These numbers.
        mesh: The mesh.
        options: Of the search.

    Raises:
        ValueError: An axis of the mesh can shard nothing.
    """

    def __init__(
        self,
        mod: tvm.IRModule,
        program: Program,
        sizes: Mapping[str, int],
        mesh: Mesh,
        options: Options,
    ) -> None:
        self._mod = mod
        self._program = program
        self._sizes = sizes
        self._mesh = mesh
        self._options = options
        self._limit = options.limit
        self._search = SearchOnMesh(program, mesh, options)

    def fastest(self) -> AutoPlan:
        """The fastest plan within the limit.

        Raises:
            ValueError: There is none.
        """
        closest: AutoPlan | None = None
        # Of plans that the search takes to be equal, one may leave less of its storages unused.
        for mixes in (True, False):
            plan = self._fitting(mixes)
            if plan is None:
                break
            if plan.memory <= self._limit:
                return plan
            closest = plan if closest is None or plan.memory < closest.memory else closest
        if closest is not None:
            raise ValueError(
                f"no plan was found that holds at most {self._limit:g} bytes per device; the one "
                f"that comes nearest holds {closest.memory:g}"
            )
        raise self._too_little()

    def _fitting(self, mixes: bool) -> AutoPlan | None:
        """A plan within the limit, else the one that comes nearest, or None."""
        # The search leaves out some buffers, such as those of collectives. Where a plan holds more
        # than it says, another one is searched with a lower limit.
        limit = high = self._limit
        low = 0.0  # a limit within which no plan was found
        best: AutoPlan | None = None
        for tries in range(_TRIES):
            found = self._search.choose(limit, mixes=mixes)
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
        return best

    def least(self) -> AutoPlan:
        """The plan that holds least of those that are fastest within several limits.

        The search cannot tell how much of its storages TVM leaves unused.

        Raises:
            ValueError: It holds more than the limit, or there is none.
        """
        least = self._search.least_memory
        best: AutoPlan | None = None
        for factor in _LIMITS:
            found = self._search.choose(factor * least, _FEW)
            if "statements" in found:
                plan = self._plan(found)
                best = plan if best is None or plan.memory < best.memory else best
        if best is None:
            raise self._too_little()
        if best.memory > self._limit:
            raise ValueError(
                f"no plan on {self._mesh!r} was found within {self._limit:g} bytes per device; the "
                f"one with the least holds {best.memory:g}, and none needs less than {least:g}"
            )
        return best

    def _too_little(self) -> TooLittleMemoryError:
        least, at = self._search.least_memory, self._search.least_at
        where = "" if at is None else f", while `{at}` is computed"
        if least > self._limit:
            text = (
                f"a limit of {self._limit:g} bytes per device is below what any plan on "
                f"{self._mesh!r} needs: at least {least:g} bytes{where}"
            )
        else:
            text = (
                f"no plan was found within {self._limit:g} bytes per device; any plan needs at "
                f"least {least:g} bytes{where}"
            )
        return TooLittleMemoryError(least, text)

    def _plan(self, found: Mapping[str, Any]) -> AutoPlan:
        func, search = self._program.func, self._search
        stated = search.statements(found)
        mod = annotated(self._mod, self._mesh, stated)
        estimated = estimate(mod, self._options.cluster, sizes=self._sizes)
        return AutoPlan(
            mod,
            self._mesh,
            self._options.cluster,
            {site.label: dims for site, dims in stated.get(func, {}).items()},
            tuple(
                weight_choices(self._mod[func], func, found, search.dims_of, self._mesh.axis_names)
            ),
            found["cost"] / TICKS,
            found["bound"] / TICKS,
            estimated,
            self._limit,
            search.least_memory,
            estimated.seconds,
        )
