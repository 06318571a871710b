"""Meshes of modules in TVMScript."""

from __future__ import annotations

import math

from tvm.relax.distributed import DeviceMesh
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R


def meshes(*shapes: tuple[int, ...]) -> dict[str, list[DeviceMesh]]:
    """Makes an ``I.module_global_infos``: meshes of these shapes over devices 0, 1, and so on.

    ``meshes((2,), (2, 2))`` has devices 0 and 1 in ``"mesh[0]"``, 2 to 5 in ``"mesh[1]"``.
    """
    found = []
    first = 0
    for shape in shapes:
        last = first + math.prod(shape)
        found.append(R.device_mesh(shape, I.Range(first, last)))
        first = last
    return {"mesh": found}
