"""Loads the native library into TVM when it is imported, once per process.

Every other module of the package relies on this having happened, so the package imports it first.
A TVM that cannot be used ends here, in one ImportError, before anything of TVM is touched.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from distir_ext._version import __version__
from distir_ext.text.printable import shown

SUPPORTED_TVM = ">=0.27,<0.28"
# The line that the wheel of TVM 0.27 was built with. TVM itself accepts later ones, and crashes
# with them: in save_json, pickle, deepcopy, and in the schedules of float16 products (docs/tvm.md).
SUPPORTED_TVM_FFI = ">=0.1.14.post0,<0.1.15"

_LIBRARY_NAME = "libdistir_ext.so"
_LIBRARY_VARIABLE = "DISTIR_EXT_LIBRARY"
_ADVICE = f"pip install 'apache-tvm{SUPPORTED_TVM}' 'apache-tvm-ffi{SUPPORTED_TVM_FFI}'"


def _installed_version(distribution: str, module: str) -> str | None:
    """The version that importing the module will give, without importing it where possible."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        pass
    try:  # a source build on PYTHONPATH has no metadata
        return str(getattr(importlib.import_module(module), "__version__", "unknown"))
    except ModuleNotFoundError:
        return None


def _fault(found: str, supported: str) -> str | None:
    """Returns the reason why a version is not supported, or None if it is."""
    try:
        version = Version(found)
    except InvalidVersion:
        return "is not a version number that can be compared"
    # A development version counts as the release that it leads to.
    release = Version(version.base_version) if version.is_prerelease else version
    if release in SpecifierSet(supported):
        return None
    lowest = min(Version(s.version) for s in SpecifierSet(supported) if s.operator == ">=")
    return "is too old" if release < lowest else "is too new"


def check_versions() -> str:
    """Checks that the installed TVM and tvm-ffi are ones that this package works with.

    Returns:
        The version of TVM.

    Raises:
        ImportError: One of them is missing, too old or too new. The message names what was found,
            what is supported and the command that installs it.
    """
    tvm = _installed_version("apache-tvm", "tvm")
    if tvm is None:
        raise ImportError(
            f"distir_ext {__version__} needs TVM (apache-tvm {SUPPORTED_TVM}), and none is "
            f"installed; install it with: {_ADVICE}"
        )
    ffi = _installed_version("apache-tvm-ffi", "tvm_ffi")
    wrong = [
        f"supports {distribution} {supported}; the installed {name} {found} {fault}"
        for distribution, name, found, supported in [
            ("apache-tvm", "TVM", tvm, SUPPORTED_TVM),
            ("apache-tvm-ffi", "tvm-ffi", ffi or "unknown", SUPPORTED_TVM_FFI),
        ]
        if (fault := _fault(found, supported)) is not None
    ]
    if wrong:
        raise ImportError(
            f"distir_ext {__version__} {', and '.join(wrong)}; install what is supported with: "
            f"{_ADVICE}"
        )
    return tvm


def library_path() -> Path:
    """The native library's file: in the package's folder, or what DISTIR_EXT_LIBRARY names.

    Raises:
        ImportError: there is no such file.
    """
    override = os.environ.get(_LIBRARY_VARIABLE)
    if override is not None:
        if not os.path.isfile(override):  # noqa: PTH113 (long names are no error)
            raise ImportError(f"{_LIBRARY_VARIABLE} names '{shown(override)}', which is not a file")
        return Path(override)
    # An editable installation has two folders: the sources and what CMake installed.
    folders = importlib.import_module("distir_ext").__path__
    for folder in folders:
        path = Path(folder) / _LIBRARY_NAME
        if path.is_file():
            return path
    raise ImportError(
        f"distir_ext {__version__} is installed without its native library: no {_LIBRARY_NAME} in "
        f"{', '.join(folders)}"
    )


def native_libraries() -> list[tuple[str, int]]:
    """The native libraries of TVM and of this package that programs on CPUs need.

    Others, such as those of GPUs, are loaded when TVM is imported.

    Returns:
        In the order in which another process can load them: the file, and the mode for
        ``ctypes.CDLL``.
    """
    loaded = importlib.import_module("tvm.base")._LOADED_LIBS
    modes = {  # as TVM loads them
        "tvm_runtime": ctypes.RTLD_GLOBAL,
        "tvm_compiler": ctypes.RTLD_LOCAL,
        "tvm_runtime_extra": ctypes.RTLD_LOCAL,
    }
    libraries = [(str(loaded[name]._name), mode) for name, mode in modes.items() if name in loaded]
    return [*libraries, (str(library_path().absolute()), ctypes.RTLD_LOCAL)]


def _load() -> None:
    found = check_versions()
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
