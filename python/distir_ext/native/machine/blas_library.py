"""Finds the BLAS library: MKL on Intel's CPUs if the wheel ``mkl`` is installed, else OpenBLAS.

No module of these wheels is imported, since that would start threads of their own; the native
library opens the file when the first product is computed. ``DISTIR_EXT_BLAS``, ``openblas`` or
``mkl``, chooses one of them. (On other CPUs MKL is slower than OpenBLAS.)
"""

from __future__ import annotations

import importlib.util
import os
from importlib import metadata
from pathlib import Path

import tvm_ffi

# The wheel scipy-openblas32 puts this before every symbol.
_OPENBLAS_PREFIX = "scipy_"


def find_mkl() -> Path | None:
    """MKL's shared library, or None if the wheel is not installed."""
    try:
        files = metadata.files("mkl")
    except metadata.PackageNotFoundError:
        return None
    found = [Path(str(each.locate())) for each in files or () if "libmkl_rt.so" in each.name]
    return next((path.resolve() for path in found if path.exists()), None)


def find_openblas() -> Path | None:
    """OpenBLAS's shared library, or None if the wheel is not installed."""
    try:
        found = importlib.util.find_spec("scipy_openblas32")
    except ValueError:  # a module without a specification stands in its place
        return None
    folders = found.submodule_search_locations if found is not None else None
    for folder in folders or ():
        for path in sorted(Path(folder, "lib").glob("libscipy_openblas*.so")):
            return path
    return None


def is_intel(cpus: Path = Path("/proc/cpuinfo")) -> bool:
    """Returns whether this machine's CPU is Intel's."""
    try:
        return "GenuineIntel" in cpus.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def use_blas() -> Path | None:
    """Tells the native library which BLAS to open; None if there is none."""
    path, prefix = find_openblas(), _OPENBLAS_PREFIX
    if os.environ.get("DISTIR_EXT_BLAS", "mkl" if is_intel() else "openblas") == "mkl":
        mkl = find_mkl()
        if mkl is not None:
            path, prefix = mkl, ""
    if path is not None:
        tvm_ffi.get_global_func("distir.runtime.set_blas_library")(str(path), prefix)
    return path


LIBRARY = use_blas()
"""Library that computes matrix products."""
