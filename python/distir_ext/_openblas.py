"""Where OpenBLAS is: the shared library in the wheel ``scipy-openblas32``.

The wheel's module is not imported, since that would start OpenBLAS's own threads; the native
library opens the file when the first product is computed.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import tvm_ffi


def find_openblas() -> Path | None:
    """The shared library, or None if the wheel is not installed."""
    try:
        found = importlib.util.find_spec("scipy_openblas32")
    except ValueError:  # a module without a specification stands in its place
        return None
    folders = found.submodule_search_locations if found is not None else None
    for folder in folders or ():
        for path in sorted(Path(folder, "lib").glob("libscipy_openblas*.so")):
            return path
    return None


def use_openblas() -> bool:
    """Tells the native library where OpenBLAS is; whether there is one."""
    path = find_openblas()
    if path is not None:
        tvm_ffi.get_global_func("distir.runtime.set_blas_library")(str(path))
    return path is not None


AVAILABLE = use_openblas()
