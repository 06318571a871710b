"""Loads the native library into TVM when it is imported, once per process.

Every other module of the package relies on this having happened, so the package imports it first.
A TVM that cannot be used ends here, in one ImportError, before anything of TVM is touched.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import re
from pathlib import Path

from distir_ext._version import __version__

SUPPORTED_TVM = ">=0.27,<0.28"
_FIRST_SUPPORTED = (0, 27)
_FIRST_UNSUPPORTED = (0, 28)

_LIBRARY_NAME = "libdistir_ext.so"
_LIBRARY_VARIABLE = "DISTIR_EXT_LIBRARY"


def installed_tvm_version() -> str | None:
    """The version of TVM that ``import tvm`` will give, without importing it where possible.

    Returns:
        For example ``"0.27.0.post1"``, or None if there is no TVM.
    """
    try:
        return importlib.metadata.version("apache-tvm")
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        tvm = importlib.import_module("tvm")  # a source build on PYTHONPATH has no metadata
    except ModuleNotFoundError:
        return None
    return str(getattr(tvm, "__version__", "unknown"))


def check_tvm_version() -> str:
    """Checks that the installed TVM is one this package works with.

    Returns:
        The version found.

    Raises:
        ImportError: TVM is missing, too old or too new; names what was found and what is supported.
    """
    found = installed_tvm_version()
    advice = f"install a supported one with: pip install 'apache-tvm{SUPPORTED_TVM}'"
    if found is None:
        raise ImportError(
            f"distir_ext {__version__} needs TVM (apache-tvm {SUPPORTED_TVM}), and none is "
            f"installed; {advice}"
        )
    match = re.match(r"v?(\d+)\.(\d+)", found)
    release = (int(match[1]), int(match[2])) if match else None
    if release is not None and _FIRST_SUPPORTED <= release < _FIRST_UNSUPPORTED:
        return found
    if release is None:
        judgement = "is not a version number that can be compared"
    elif release < _FIRST_SUPPORTED:
        judgement = "is too old"
    else:
        judgement = "is too new"
    raise ImportError(
        f"distir_ext {__version__} supports apache-tvm {SUPPORTED_TVM}; the installed TVM {found} "
        f"{judgement}; {advice}"
    )


def library_path() -> Path:
    """The native library's file: beside this package, or what DISTIR_EXT_LIBRARY names.

    Raises:
        ImportError: there is no such file.
    """
    override = os.environ.get(_LIBRARY_VARIABLE)
    if override is not None:
        if not Path(override).is_file():
            raise ImportError(f"{_LIBRARY_VARIABLE} names {override!r}, which is not a file")
        return Path(override)
    # An editable installation has two folders: the sources and what CMake installed.
    folders = importlib.import_module(__package__).__path__
    for folder in folders:
        path = Path(folder) / _LIBRARY_NAME
        if path.is_file():
            return path
    raise ImportError(
        f"distir_ext {__version__} is installed without its native library: no {_LIBRARY_NAME} in "
        f"{', '.join(folders)}"
    )


def _load() -> None:
    found = check_tvm_version()
    tvm_ffi = importlib.import_module("tvm_ffi")
    importlib.import_module("tvm")  # registers the functions that the library resolves

    # A second load from another path would register every function twice, which ends the process.
    native_version = tvm_ffi.get_global_func("distir.version", allow_missing=True)
    if native_version is None:
        path = library_path()
        try:
            ctypes.CDLL(str(path))  # its static initialisation registers its functions
        except OSError as error:
            raise ImportError(
                f"distir_ext {__version__} cannot load its native library with TVM {found} "
                f"(supported: {SUPPORTED_TVM}): {error}"
            ) from error
        native_version = tvm_ffi.get_global_func("distir.version")
    if native_version() != __version__:
        raise ImportError(
            f"distir_ext {__version__} found its native library in version {native_version()}; "
            "reinstall the package"
        )

    resolve = tvm_ffi.get_global_func("distir.ir.Resolve", allow_missing=True)
    if resolve is not None:
        try:
            resolve()
        except RuntimeError as error:
            raise ImportError(
                f"distir_ext {__version__} supports apache-tvm {SUPPORTED_TVM}; the installed TVM "
                f"{found} lacks what it needs: {error}"
            ) from error


_load()
