"""Entry point of worker processes: loads the runtime libraries without importing TVM.

To import TVM takes over a second of processor time, nearly all of it for Python modules that
compile programs. A worker runs programs: it needs tvm-ffi and the native libraries, which take a
fifth of that. So ``distir_ext`` is not imported as a package here, which would import TVM; whoever
does so later, a module of the user or :func:`import_all`, gets all of it.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Sequence
from typing import Any

PACKAGE = "distir_ext"


def main(libraries: Sequence[tuple[str, int]], imports: Sequence[str], **arguments: Any) -> None:
    """Loads what a worker needs and runs it.

    Args:
        libraries: The native libraries of TVM and of this package, in order, each with the mode in
            which it is loaded.
        imports: See ``worker_process.main``.
        **arguments: As well.
    """
    # tvm-ffi imports torch where that is installed, in seconds. Modules of the user that use torch
    # import it themselves.
    sys.modules["torch"] = None  # type: ignore[assignment]
    importlib.import_module("tvm_ffi")
    del sys.modules["torch"]
    for path, mode in libraries:
        ctypes.CDLL(path, mode)
    # Tells the native library where BLAS is.
    importlib.import_module(f"{PACKAGE}.native.machine.blas_library")
    worker_process = importlib.import_module(f"{PACKAGE}.workers.worker_process")
    del sys.modules[PACKAGE]  # what has stood for it so far; its modules stay
    worker_process.main(imports=imports, **arguments)


def import_all() -> bool:
    """Imports this package, and with it TVM.

    Returns:
        Whether that had not been done before.
    """
    if PACKAGE in sys.modules:
        return False
    importlib.import_module(PACKAGE)
    return True
