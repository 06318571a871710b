"""Writes the manual regions (``shard_map``) of a function as Relax.

Shardy writes a region as an operation with a body. GSPMD has no such operation: custom calls enter
and leave a region value by value, and what is computed of a value that has entered is in it::

    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"}
    %2 = stablehlo.add %1, %1                                                    # in the region
    %3 = stablehlo.custom_call @SPMDShardToFullShape(%2) {mhlo.sharding = "{devices=[2,1]<=[2]}"}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from tvm import relax

from distir_ext.annotate.open_regions import Region
from distir_ext.annotate.regions import crossing_call
from distir_ext.interop.jax.known import Known
from distir_ext.interop.jax.program import Program
from distir_ext.interop.jax.sizes import Size
from distir_ext.interop.jax.stablehlo import UnsupportedError
from distir_ext.mesh.mesh import Mesh


class _Around(NamedTuple):
    """Surroundings of a region, restored at its end."""

    region: Region | None
    parts: set[relax.Expr]


class RegionWriter:
    """Writes how values enter and leave regions; base class of the writer of a function.

    Args:
        program: The program that the function belongs to.
        region: The region that calls it.
        parts: The values of this region.
    """

    def __init__(
        self, program: Program, region: Region | None, parts: Iterable[relax.Expr]
    ) -> None:
        self.program = program
        self.region = region
        self._parts = set(parts)
        self._values_of: dict[Region, set[relax.Expr]] = {}
        self._around: dict[Region, _Around] = {}

    def emit(self, expr: relax.Expr, name: str = "lv") -> relax.Var:
        """Binds an expression to a variable."""
        raise NotImplementedError

    def write_out(self, known: Known) -> relax.Expr:
        """A value as an expression of its own shape."""
        raise NotImplementedError

    @contextmanager
    def inside(self, region: Region, parts: set[relax.Expr] | None = None) -> Iterator[None]:
        """Makes a region the current one, while its operations are written.

        Args:
            region: The region.
            parts: Its values so far; none at the begin of a body.
        """
        around = self.region, self._parts
        self.region, self._parts = region, set() if parts is None else parts
        try:
            yield
        finally:
            self.region, self._parts = around

    @contextmanager
    def entering(self, region: Region) -> Iterator[None]:
        """Makes a region the current one, which a value enters by a custom call or a constraint."""
        self._around.setdefault(region, _Around(self.region, self._parts))
        with self.inside(region, self._values_of.setdefault(region, set())):
            yield

    @contextmanager
    def leaving(self) -> Iterator[Region]:
        """Makes the region around the current one, for a value that leaves it by a custom call.

        Raises:
            UnsupportedError: It has entered none in this function.
        """
        region = self.region
        if region is None or region not in self._around:
            raise UnsupportedError("of a value that @SPMDFullToShardShape has not given here")
        outside, within = self._around[region], (region, self._parts)
        self.region, self._parts = outside
        try:
            yield region
        finally:
            self.region, self._parts = within

    @contextmanager
    def with_values(self, values: Iterable[Any]) -> Iterator[None]:
        """Makes the region that values have entered the current one, to write what uses them."""
        regions: list[Region] = []
        if self._values_of:
            exprs = {getattr(each, "base", each) for each in values}
            regions = [
                each for each, inside in self._values_of.items() if not inside.isdisjoint(exprs)
            ]
        innermost = max(regions, key=lambda each: len(each.manual), default=self.region)
        if innermost is None or innermost == self.region:
            yield
            return
        with self.inside(innermost, self._values_of[innermost]):
            yield

    def part(self, known: Known) -> relax.Expr:
        """A value as one of the region that is written, if any is: what every device has enters."""
        expr = self.write_out(known)
        if self.region is None or expr in self._parts:
            return expr
        return self.enter(expr, self.region.mesh, None, self.region.manual, "a value")

    def enter(
        self, expr: relax.Expr, mesh: Mesh, dims: Any, axes: Sequence[str], entity: str
    ) -> relax.Expr:
        """The part of a value that a device of the region has; see ``crossing_call``."""
        call = crossing_call(self.program.meshes, "enter_manual", expr, mesh, dims, axes, entity)
        made = self.emit(call)
        self._parts.add(made)
        return made

    def leave(
        self, expr: relax.Expr, region: Region, dims: Any, shape: Sequence[Size], entity: str
    ) -> relax.Expr:
        """The value of this shape of which devices of a region have parts."""
        mesh, axes = region.base, region.entered
        is_static = all(isinstance(size, int) for size in shape)
        kind = None if is_static else relax.TensorType(shape, expr.ty.dtype)
        meshes = self.program.meshes
        made = self.emit(
            crossing_call(meshes, "leave_manual", expr, mesh, dims, axes, entity, kind)
        )
        if self.region is not None:
            self._parts.add(made)
        return made
