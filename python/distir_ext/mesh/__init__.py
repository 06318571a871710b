"""Meshes with named axes, clusters of devices, and the notation of shardings on them.

Worker processes import parts of it, so that nothing of TVM is imported here; the names of
``mesh.py`` are found when they are asked for.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("DimSharding", "Mesh", "as_mesh", "has_names", "is_mesh"):
        return getattr(importlib.import_module("distir_ext.mesh.mesh"), name)
    raise AttributeError(f"module {__name__} has no attribute {name!r}")
