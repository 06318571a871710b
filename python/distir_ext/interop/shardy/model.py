"""Meshes and shardings of Shardy as data, with their validity checks.

A sharding says for each tensor dimension which axes of a mesh shard it, major to minor. An axis
reference is a whole axis or a sub-axis: ``"y":(2)4`` sees an axis of size 8 as 2 x 4 and takes the
4. HLO's named shardings are the same with the mesh written in, and may have manual axes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from distir_ext.mesh.mesh import MOST_DEVICES, Mesh
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks

REDUCTIONS = ("sum", "max", "min")

SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")
"""Names that MLIR prints without quotes."""

_LONG_NAME = 100


@dataclass(frozen=True)
class LogicalMesh:
    """A mesh as Shardy has it: named axes, and the order of devices.

    Without axes it is *maximal*, one device that has all of a tensor, or without devices *empty*:
    what is sharded on it is replicated on every mesh. :class:`distir_ext.Mesh` has no empty ones.

    Example:
        >>> LogicalMesh((("x", 2), ("y", 4))).to_mesh()
        Mesh((2, 4), ('x', 'y'))

    Raises:
        ValueError: Two axes have one name, a size is not positive, or the devices are not as many
            as the sizes say, or one of them is there twice.
    """

    axes: tuple[tuple[str, int], ...] = ()
    """Name and size of each axis."""

    device_ids: tuple[int, ...] = ()
    """The devices in row-major order; empty for 0, 1, 2, ..."""

    @short_tracebacks
    def __post_init__(self) -> None:
        seen: set[str] = set()
        size = 1
        for name, extent in self.axes:
            if name in seen:
                raise ValueError(f"two mesh axes are named {name!r}")
            if extent < 1:
                raise ValueError(f"mesh axis {name!r} has size {extent}; it must be positive")
            seen.add(name)
            size *= extent
            if size > MOST_DEVICES:
                raise ValueError(f"a mesh has at most {MOST_DEVICES} devices")
        if self.device_ids and len(self.device_ids) != size:
            needs = f"its axes {dict(self.axes)} say {size}" if self.axes else "it has no axes"
            raise ValueError(f"a mesh has {len(self.device_ids)} device ids, but {needs}")
        if len(set(self.device_ids)) < len(self.device_ids):
            raise ValueError("a device is in a mesh twice")
        if self.axes and self.device_ids == tuple(range(size)):
            object.__setattr__(self, "device_ids", ())

    @classmethod
    def from_mesh(cls, mesh: Mesh) -> LogicalMesh:
        """Converts a mesh; one of a single device with another id than 0 becomes maximal.

        Args:
            mesh: A mesh with names of axes.
        """
        if mesh.size == 1 and mesh.device_ids != (0,):
            return cls((), mesh.device_ids)
        return cls(tuple(zip(mesh.axis_names, mesh.shape, strict=True)), mesh.device_ids)

    def to_mesh(self) -> Mesh:
        """Converts to a :class:`distir_ext.Mesh`; a maximal mesh gets one axis, ``device``.

        Raises:
            ValueError: It is empty.
        """
        if self.is_maximal:
            return Mesh((1,), ("device",), self.device_ids)
        if not self.axes:
            raise ValueError("an empty mesh has no devices: it says replicated on any mesh")
        names, shape = zip(*self.axes, strict=True)
        return Mesh(shape, names, self.device_ids or None)

    @property
    def is_maximal(self) -> bool:
        """True for a mesh of a single device without axes."""
        return not self.axes and bool(self.device_ids)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The size of each axis by its name."""
        return dict(self.axes)

    @property
    def size(self) -> int:
        """The number of devices; 0 of an empty mesh."""
        return math.prod(self.sizes.values()) if self.axes else len(self.device_ids)

    def __str__(self) -> str:
        return f"#sdy.mesh{self.body()}"

    def body(self) -> str:
        """The text behind ``#sdy.mesh``, or behind ``sdy.mesh @name =`` in a module.

        Raises:
            ValueError: Its devices are not numbered from 0 on; Shardy has no such mesh.
        """
        if self.axes and self.device_ids and max(self.device_ids) >= self.size:
            raise ValueError(
                f"Shardy numbers the {self.size} devices of a mesh from 0 on; it has no device "
                f"{max(self.device_ids)}"
            )
        axes = ", ".join(f"{quoted(name)}={size}" for name, size in self.axes)
        ids = f", device_ids=[{', '.join(map(str, self.device_ids))}]" if self.device_ids else ""
        return f"<[{axes}]{ids}>"


@dataclass(frozen=True)
class AxisRef:
    """A mesh axis, or part of one.

    Example:
        >>> str(AxisRef("x")), str(AxisRef("y", 2, 4))
        ('"x"', '"y":(2)4')
    """

    name: str
    """Of the axis."""

    pre_size: int = 1
    """The product of the sizes of the parts of the axis that are major to this one."""

    size: int | None = None
    """Of the sub-axis; None for the whole axis."""

    def bounds(self, mesh: LogicalMesh) -> tuple[int, int]:
        """Pre-size and pre-size times size.

        Args:
            mesh: The mesh whose axis it is.

        Raises:
            KeyError: The mesh has no axis of this name.
        """
        size = mesh.sizes[self.name] if self.size is None else self.size
        return self.pre_size, self.pre_size * size

    def __str__(self) -> str:
        return quoted(self.name) + ("" if self.size is None else f":({self.pre_size}){self.size}")


@dataclass(frozen=True)
class DimSharding:
    """Sharding of one tensor dimension."""

    axes: tuple[AxisRef, ...] = ()
    """Major to minor."""

    open: bool = False
    """True if propagation may shard it further, ``{"x", ?}``."""

    priority: int | None = None
    """When propagation uses it, ``{"x"}p1``; none is 0, the first."""

    def __str__(self) -> str:
        parts = [*map(str, self.axes), *(["?"] if self.open else [])]
        return f"{{{', '.join(parts)}}}" + ("" if self.priority is None else f"p{self.priority}")


@dataclass(frozen=True, repr=False)
class Sharding:
    """Sharding of a tensor.

    Example:
        >>> from distir_ext.interop import shardy
        >>> sharding = shardy.parse('<@mesh, [{"x", ?}, {}], replicated={"y"}>')
        >>> sharding.dims[0].open, sharding.replicated
        (True, (AxisRef(name='y', pre_size=1, size=None),))
    """

    mesh: str | LogicalMesh
    """The name of a mesh, or a mesh that is written in."""

    dims: tuple[DimSharding, ...] = ()
    """One for each tensor dimension."""

    replicated: tuple[AxisRef, ...] = ()
    """Axes that propagation must not use."""

    unreduced: tuple[AxisRef, ...] = ()
    """Axes over which the value is partial and still has to be reduced."""

    reduction: str = "sum"
    """Reduction over :attr:`unreduced` axes: ``"sum"``, ``"max"`` or ``"min"``."""

    manual: tuple[AxisRef, ...] = ()
    """Axes of which a manual computation has one place; HLO's named shardings only."""

    def __str__(self) -> str:
        if self.manual:
            raise ValueError(
                "Shardy's shardings have no manual axes; sdy.manual_computation has them"
            )
        return f"#sdy.sharding{self._body()}"

    def __repr__(self) -> str:
        return f"<Sharding {self._body()}>"

    def _body(self) -> str:
        mesh = self.mesh
        if isinstance(mesh, LogicalMesh):
            where = f"mesh{mesh.body()}"
        else:
            where = f"@{mesh if SYMBOL.fullmatch(mesh) else quoted(mesh)}"
        kind = "" if self.reduction == "sum" else self.reduction
        text = f"{where}, [{', '.join(map(str, self.dims))}]"
        for words, refs in (
            ("replicated=", self.replicated),
            (f"unreduced={kind}", self.unreduced),
            ("manual=", self.manual),
        ):
            text += f", {words}{{{', '.join(map(str, refs))}}}" if refs else ""
        return f"<{text}>"

    def refs(self) -> Iterator[AxisRef]:
        """All axis references."""
        for dim in self.dims:
            yield from dim.axes
        yield from (*self.replicated, *self.unreduced, *self.manual)

    def closed(self) -> Sharding:
        """Returns the sharding without the parts that only propagation reads.

        These are open dimensions, priorities, and axes that must not be used.
        """
        dims = tuple(DimSharding(dim.axes) for dim in self.dims)
        return replace(self, dims=dims, replicated=())

    def on(self, mesh: LogicalMesh) -> Sharding:
        """Returns the sharding with this mesh written in, in a canonical form.

        Adjacent parts of an axis are joined; replicated, unreduced and manual axes have the order
        of the mesh.

        Args:
            mesh: The mesh whose axes the sharding names.

        Raises:
            ValueError: It names an axis that the mesh lacks, a sub-axis that it does not have, or
                axes that overlap.
        """
        self._check(mesh)
        place = {name: number for number, (name, _) in enumerate(mesh.axes)}

        def ordered(refs: Iterable[AxisRef]) -> tuple[AxisRef, ...]:
            by_place = sorted(refs, key=lambda ref: (place[ref.name], ref.pre_size))
            return joined(by_place, mesh)

        return replace(
            self,
            mesh=mesh,
            dims=tuple(replace(dim, axes=joined(dim.axes, mesh)) for dim in self.dims),
            replicated=ordered(self.replicated),
            unreduced=ordered(self.unreduced),
            manual=ordered(self.manual),
        )

    def _check(self, mesh: LogicalMesh) -> None:
        by_axis: dict[str, list[AxisRef]] = {}
        for ref in self.refs():
            size = mesh.sizes.get(ref.name)
            if size is None:
                known = ", ".join(map(repr, mesh.sizes)) or "none"
                raise ValueError(
                    f"there is no mesh axis {ref.name!r}; the axes are {known}"
                    f"{_hint(ref.name, mesh.sizes)}"
                )
            if ref.size is not None and not _is_part(ref, size):
                raise ValueError(
                    f"{ref} is no part of mesh axis {ref.name!r} of size {size}: pre-size and size "
                    "are positive and their product divides it, and the size is more than 1 and "
                    "less than that of the axis"
                )
            by_axis.setdefault(ref.name, []).append(ref)
        for refs in by_axis.values():
            refs.sort(key=lambda ref: ref.bounds(mesh))
            for left, right in pairwise(refs):
                if right.pre_size < left.bounds(mesh)[1]:
                    raise ValueError(f"{left} and {right} shard one tensor, but overlap")
                if right.pre_size % left.bounds(mesh)[1]:
                    raise ValueError(f"{left} and {right} cut an axis in ways that do not fit")


def quoted(text: str) -> str:
    r"""A string as MLIR prints it.

    Example:
        >>> print(quoted('a "b"'))
        "a \22b\22"
    """
    data = text.encode("utf-8", "surrogateescape")
    return f'"{"".join(_printed(byte) for byte in data)}"'


def _printed(byte: int) -> str:
    if byte == 0x5C:
        return "\\\\"
    return chr(byte) if 0x20 <= byte < 0x7F and byte != 0x22 else f"\\{byte:02X}"


def _hint(name: str, known: Iterable[str]) -> str:
    """Names that are like this one; comparing long ones takes too long."""
    short = [each for each in known if len(each) < _LONG_NAME]
    return did_you_mean(name, short) if len(name) < _LONG_NAME else ""


def _is_part(ref: AxisRef, size: int) -> bool:
    assert ref.size is not None
    end = ref.pre_size * ref.size
    return ref.pre_size > 0 and 1 < ref.size < size and size % end == 0


def joined(refs: Iterable[AxisRef], mesh: LogicalMesh) -> tuple[AxisRef, ...]:
    """Joins neighbouring references that form one part of an axis."""
    found: list[AxisRef] = []
    for ref in refs:
        begin, end = ref.bounds(mesh)
        last = found[-1] if found else None
        if last is not None and last.name == ref.name and last.bounds(mesh)[1] == begin:
            begin = found.pop().pre_size
        found.append(part(ref.name, begin, end, mesh))
    return tuple(found)


def part(name: str, begin: int, end: int, mesh: LogicalMesh) -> AxisRef:
    """The part of an axis between two products of sizes, which may be all of it."""
    if (begin, end) == (1, mesh.sizes[name]):
        return AxisRef(name)
    return AxisRef(name, begin, end // begin)
