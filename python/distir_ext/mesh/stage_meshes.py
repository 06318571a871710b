"""Splits a mesh along one axis into the meshes of a pipeline's stages."""

from __future__ import annotations

import numpy as np

from distir_ext.mesh.mesh import Mesh
from distir_ext.text.errors.tracebacks import short_tracebacks


@short_tracebacks
def stage_meshes(mesh: Mesh, axis: str) -> tuple[Mesh, ...]:
    """The meshes that a mesh falls into along one axis.

    Args:
        mesh: The mesh of all stages.
        axis: Its axis that numbers the stages.

    Returns:
        One mesh per coordinate, with the other axes; where there are no others, with an axis of
        this name and size 1.

    Raises:
        ValueError: the mesh has no such axis.

    Example:
        >>> stage_meshes(Mesh((2, 2), ("pp", "tp")), "pp")
        (Mesh((2,), ('tp',)), Mesh((2,), ('tp',), device_ids=range(2, 4)))
    """
    if axis not in mesh.axis_names:
        known = ", ".join(map(repr, mesh.axis_names))
        raise ValueError(f"there is no mesh axis {axis!r}; the axes are {known}")
    index = mesh.axis_names.index(axis)
    shape = mesh.shape[:index] + mesh.shape[index + 1 :] or (1,)
    names = mesh.axis_names[:index] + mesh.axis_names[index + 1 :] or (axis,)
    by_stage = np.moveaxis(np.reshape(mesh.device_ids, mesh.shape), index, 0)
    return tuple(Mesh(shape, names, stage.ravel().tolist()) for stage in by_stage)
