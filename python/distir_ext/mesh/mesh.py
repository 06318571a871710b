"""Device meshes whose axes have names."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, SupportsIndex

import numpy as np
import tvm_ffi
from tvm.ir import Range
from tvm.relax.distributed import DeviceMesh, Placement, PlacementSpec

from distir_ext.mesh.dims import dims_text, has_terms
from distir_ext.mesh.frameworks import DeviceGrid, read_mesh
from distir_ext.text.display import Shown
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks

MOST_DEVICES = 1 << 20
"""As many as a compiled plan may name."""

DimSharding = str | Sequence[str] | None
"""The mesh axis that shards one tensor dimension, several from major to minor, or None."""


def device_ids_of(mesh: DeviceMesh) -> tuple[int, ...]:
    """The devices of TVM's form of a mesh, in row-major order."""
    devices = mesh.device_range
    if devices is not None:  # of very many devices this is read at once
        first = int(devices.min)
        return tuple(range(first, first + int(devices.extent)))
    return tuple(map(int, mesh.device_ids))


class Mesh(Shown):
    """An N-D array of devices with a name for each axis. Immutable.

    Args:
        shape: Number of devices along each axis. Or a mesh as others state it: an array of device
            ids, as ``jax.sharding.Mesh`` takes; a ``jax.sharding.Mesh``, PyTorch's ``DeviceMesh``
            or TVM's.
        axis_names: One distinct name per axis; by default those of the other mesh, or x, y, z, w
            where it has none.
        device_ids: One distinct, non-negative id per device, in row-major order; 0, 1, 2, ... if
            left out. With them, `shape` is a shape.
        **sizes: Instead of all these, the size of each axis by its name.

    Raises:
        ValueError: If sizes, names or ids break these rules; the message names the culprit.
        TypeError: If `shape`, `axis_names` or `device_ids` does not hold integers or strings.

    Example:
        >>> mesh = Mesh((2, 4), ("dp", "tp"))
        >>> mesh.device_mesh
        R.device_mesh((2, 4), R.Range(0, 8))
        >>> mesh.placement(None, "tp")
        "R, S[1]"
        >>> Mesh(dp=2, tp=4) == mesh == Mesh(mesh.device_mesh, ("dp", "tp"))
        True
    """

    @short_tracebacks
    def __init__(
        self,
        shape: Sequence[SupportsIndex] | Any = None,
        axis_names: Sequence[str] | None = None,
        device_ids: Iterable[SupportsIndex] | None = None,
        **sizes: int,
    ) -> None:
        if sizes:
            if shape is not None or axis_names is not None:
                raise TypeError("a mesh has a shape and axis_names, or a size by name of each axis")
            shape, axis_names = tuple(sizes.values()), tuple(sizes)
        if axis_names is not None:
            axis_names = _names(axis_names)
        grid = None if device_ids is not None else _grid(shape, axis_names)
        if grid is not None:
            shape, device_ids = grid.shape, grid.device_ids
            if axis_names is None:
                axis_names = grid.axis_names or _default_names(len(grid.shape))
        if shape is None or axis_names is None:
            raise TypeError(
                'a mesh needs a shape and axis_names, Mesh((2, 4), ("dp", "tp")), or sizes by '
                "name, Mesh(dp=2, tp=4)"
            )
        self._shape = _integers("shape", shape)
        self._axis_names = _names(axis_names)
        _check_axes(self._shape, self._axis_names)
        size = self.size
        self._device_ids = (
            tuple(range(size)) if device_ids is None else _integers("device_ids", device_ids)
        )
        _check_devices(self._shape, size, self._device_ids)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of devices along each axis."""
        return self._shape

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Name of each axis."""
        return self._axis_names

    @property
    def device_ids(self) -> tuple[int, ...]:
        """Id of each device, in row-major order."""
        return self._device_ids

    @property
    def size(self) -> int:
        """Number of devices."""
        size = 1
        for extent in self._shape:
            size *= extent
        return size

    @cached_property
    def device_mesh(self) -> DeviceMesh:
        """TVM's form of this mesh, always the same object.

        Consecutive ids become a range, which prints shorter. Note that TVM holds a mesh with a
        range and one with the same ids in a list for structurally different.
        """
        if self._is_consecutive():
            ids: Any = Range(self._device_ids[0], self._device_ids[-1] + 1)
        else:
            ids = list(self._device_ids)
        device_mesh = DeviceMesh(self._shape, ids)
        # Errors of type inference, which sees no module, name axes.
        tvm_ffi.get_global_func("distir.op.RememberNames")(device_mesh, list(self._axis_names))
        return device_mesh

    def placement(self, *dims: DimSharding) -> Placement:
        """TVM's placement of a tensor on this mesh.

        Args:
            *dims: For each tensor dimension the name of the mesh axis that shards it, a tuple of
                names, or None. The names of a tuple nest from major to minor and stand in the
                order of the mesh; :meth:`ordered_for` gives a mesh for other orders.

        Returns:
            The placement, with one entry for each axis of the *mesh*.

        Raises:
            ValueError: If a name is not an axis of this mesh, an axis is used twice, or a tuple is
                not in the order of the mesh.
            TypeError: If an argument is none of the above.
        """
        axis_to_dim: dict[int, int] = {}
        for dim, axes in enumerate(self._axes_of(dims)):
            if axes != sorted(axes):
                self._raise_order(dim, axes)
            axis_to_dim.update(dict.fromkeys(axes, dim))
        return Placement(
            [
                PlacementSpec.sharding(axis_to_dim[axis])
                if axis in axis_to_dim
                else PlacementSpec.replica()
                for axis in range(len(self._shape))
            ]
        )

    def ordered_for(self, *dims: DimSharding) -> Mesh:
        """A mesh over the same devices whose axes have the order in which dims name them.

        A placement nests the axes of a tensor dimension in the order of its mesh, so on this mesh
        it cannot state ``("tp", "dp")`` if "dp" comes first; on the mesh returned it can.

        Args:
            *dims: As for :meth:`placement`, the names of a tuple in any order.

        Returns:
            The mesh, which is this very object if the order is its own.

        Raises:
            ValueError: If a name is not an axis of this mesh, or an axis is used twice.
            TypeError: If an argument is none of the above.

        Example:
            >>> Mesh((2, 2), ("dp", "tp")).ordered_for(("tp", "dp"), None)
            Mesh((2, 2), ('tp', 'dp'), device_ids=(0, 2, 1, 3))
        """
        order = list(range(len(self._shape)))
        for axes in self._axes_of(dims):
            for place, axis in zip(sorted(axes), axes, strict=True):
                order[place] = axis
        if order == sorted(order):
            return self
        ids = np.array(self._device_ids).reshape(self._shape).transpose(order)
        return Mesh(ids, [self._axis_names[axis] for axis in order])

    def _axes_of(self, dims: Sequence[DimSharding]) -> list[list[int]]:
        """Per tensor dimension the indices of the axes that shard it, major to minor."""
        owner: dict[int, int] = {}
        found = []
        for dim, entry in enumerate(dims):
            axes = [self._axis(name, dim) for name in _entry_names(entry, dim)]
            for axis in axes:
                if axis in owner:
                    raise ValueError(
                        f"mesh axis {self._axis_names[axis]!r} is used twice in one tensor: by "
                        f"dimension {owner[axis]} and by dimension {dim}"
                    )
                owner[axis] = dim
            found.append(axes)
        return found

    def _axis(self, name: str, dim: int) -> int:
        if name not in self._axis_names:
            known = ", ".join(map(repr, self._axis_names))
            raise ValueError(
                f"tensor dimension {dim}: there is no mesh axis {name!r}; the axes are {known}"
                f"{did_you_mean(name, self._axis_names)}"
            )
        return self._axis_names.index(name)

    def _raise_order(self, dim: int, axes: list[int]) -> None:
        given = tuple(self._axis_names[axis] for axis in axes)
        ordered = tuple(self._axis_names[axis] for axis in sorted(axes))
        raise ValueError(
            f"tensor dimension {dim}: the axes {given} are not in the order of the mesh; write "
            f"{ordered}, or, if {given[0]!r} is to be the major one, place it on "
            f"mesh.ordered_for(...), which has the axes in that order"
        )

    def _is_consecutive(self) -> bool:
        first = self._device_ids[0]
        return self._device_ids == tuple(range(first, first + len(self._device_ids)))

    def __repr__(self) -> str:
        if not self._is_consecutive():
            ids = f", device_ids={self._device_ids}"
        elif self._device_ids[0] > 0:
            ids = f", device_ids=range({self._device_ids[0]}, {self._device_ids[-1] + 1})"
        else:
            ids = ""
        return f"Mesh({self._shape}, {self._axis_names}{ids})"

    def _key(self) -> tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...]]:
        return self._shape, self._axis_names, self._device_ids

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Mesh) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the cached TVM object, which does not pickle cheaply.
        return Mesh, self._key()


def as_mesh(value: Any, what: str) -> Mesh:
    """A mesh from what users pass for one: a Mesh, or another framework's (see :class:`Mesh`).

    Args:
        value: A :class:`Mesh`, or a mesh of TVM, JAX, PyTorch or NumPy.
        what: Its use, as errors begin: ``"the mesh of a sharding"``.

    Raises:
        TypeError: It is none; the message begins with what it is for.
        ValueError: Its names, sizes or ids are none of a mesh.
    """
    if isinstance(value, Mesh):
        return value
    if read_mesh(value) is None:
        raise TypeError(
            f"{what} is of type {type(value).__name__}; it has to be a Mesh, or a mesh of TVM, "
            "JAX, PyTorch or NumPy"
        )
    return Mesh(value)


def is_mesh(value: Any) -> bool:
    """Returns whether a value is a mesh for :func:`as_mesh`.

    Args:
        value: Anything.
    """
    return isinstance(value, Mesh) or read_mesh(value) is not None


def has_names(mesh: Any) -> bool:
    """Returns whether a mesh of any framework has axis names.

    Args:
        mesh: A mesh, or anything else, which has none.
    """
    grid = read_mesh(mesh)
    return isinstance(mesh, Mesh) or (grid is not None and grid.axis_names is not None)


def _grid(value: Any, axis_names: Sequence[str] | None) -> DeviceGrid | None:
    """The mesh that something is; None if it is a shape."""
    if isinstance(value, Mesh):
        return DeviceGrid(value.shape, value.axis_names, value.device_ids)
    names = 1 if axis_names is None else len(axis_names)
    if isinstance(value, np.ndarray) and value.ndim == 1 and names > 1:
        return None  # ids in a row have one axis, so this is the shape of several
    return read_mesh(value)


def _default_names(count: int) -> tuple[str, ...]:
    # As messages of the passes name axes that have no names (mesh/format.cc).
    return tuple("xyzw"[axis] if axis < 4 else f"a{axis}" for axis in range(count))


def _integers(what: str, values: Iterable[SupportsIndex]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(value) for value in values)
    except TypeError:
        raise TypeError(f"{what} must be integers, one after another, not {values!r}") from None


def _names(axis_names: Sequence[str]) -> tuple[str, ...]:
    # A string is a sequence of strings, too: "dp" would name two axes "d" and "p".
    if isinstance(axis_names, str):
        raise TypeError(f"axis_names must be a tuple; write ({axis_names!r},)")
    if not isinstance(axis_names, Iterable):
        raise TypeError(f"axis_names must be a tuple of strings, not {axis_names!r}")
    names = tuple(axis_names)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"axis_names must be strings, not {name!r}")
    return names


def _check_axes(shape: tuple[int, ...], axis_names: tuple[str, ...]) -> None:
    if not shape:
        raise ValueError("a mesh needs at least one axis")
    if len(axis_names) != len(shape):
        raise ValueError(
            f"a mesh of shape {shape} needs one name for each axis, but the names are {axis_names}"
        )
    for axis, (name, extent) in enumerate(zip(axis_names, shape, strict=True)):
        if not name:
            raise ValueError(f"the name of mesh axis {axis} is empty")
        if name in axis_names[:axis]:
            raise ValueError(f"two mesh axes are named {name!r}")
        if extent < 1:
            raise ValueError(f"mesh axis {name!r} has size {extent}; it must be positive")
    if math.prod(shape) > MOST_DEVICES:
        raise ValueError(
            f"a mesh of shape {shape} has {math.prod(shape)} devices; at most {MOST_DEVICES} are "
            "supported"
        )


def _check_devices(shape: tuple[int, ...], size: int, device_ids: tuple[int, ...]) -> None:
    if len(device_ids) != size:
        raise ValueError(
            f"a mesh of shape {shape} has {size} devices, but {len(device_ids)} device ids are "
            f"given"
        )
    seen: set[int] = set()
    for device_id in device_ids:
        if device_id < 0:
            raise ValueError(f"device id {device_id} is negative")
        if device_id in seen:
            raise ValueError(f"device id {device_id} occurs twice in the mesh")
        seen.add(device_id)


def _entry_names(entry: DimSharding, dim: int) -> tuple[str, ...]:
    if entry is None:
        return ()
    if isinstance(entry, str):
        return (entry,)
    if has_terms(entry):
        raise TypeError(
            f"tensor dimension {dim} is {dims_text((entry,))[1:-2]}: a placement has axes only; "
            "annotate and constrain take dimensions that are open or have a priority"
        )
    if not isinstance(entry, Sequence) or not all(isinstance(name, str) for name in entry):
        raise TypeError(
            f"tensor dimension {dim} takes the name of a mesh axis, a tuple of names or None, "
            f"not {entry!r}"
        )
    return tuple(entry)
