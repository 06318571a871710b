"""Executables as bytes, for workers that are processes.

What TVM compiles for CPUs on LLVM travels as the virtual machine's code and constants, and LLVM
bitcode: TVM's just-in-time compiler makes machine code of it in each worker, as it does in the
process that compiled it, and nobody needs a C compiler. Whatever else TVM can export travels as
the shared library that ``export_library`` links, with the system's compiler.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import tvm_ffi

from distir_ext.native.libraries import load_library
from distir_ext.text.temporary import temporary_folder

_LIBRARY = "library"
_BITCODE = "bitcode"


def executable_module(exe: Any) -> Any:
    """The module that a virtual machine is made of.

    Args:
        exe: An executable, its module, or the path of an exported library.

    Raises:
        TypeError: it is none of these.
        OSError: a library cannot be read.
        ValueError: it is no library, or damaged; names it.
    """
    if hasattr(exe, "jit"):
        return exe.jit()
    if isinstance(exe, tvm_ffi.Module):
        return exe
    if isinstance(exe, str | os.PathLike):
        if not Path(exe).exists():
            raise FileNotFoundError(errno.ENOENT, "no such executable", os.fspath(exe))
        return load_library(exe)
    raise TypeError(f"expected an executable from dx.build, got {type(exe).__name__}")


def pack(exe: Any, module: Any) -> dict[str, Any]:
    """Encodes an executable's module for :func:`unpack` in another process.

    Args:
        exe: As for :func:`executable_module`.
        module: The module that :func:`executable_module` returned.

    Raises:
        TypeError: the module is a library that was loaded before, so its file is not known.
        OSError: there is no folder for temporary files.
    """
    if isinstance(exe, str | os.PathLike):
        return {"kind": _LIBRARY, "files": [Path(exe).read_bytes()]}
    compiled = getattr(exe, "mod", module)  # what jit() makes of some modules is linked already
    with temporary_folder() as folder:
        if all(each.kind == "llvm" and not each.imports for each in compiled.imports):
            code = folder / "code"
            files = []
            for part, form in [(compiled, ""), *((each, "bc") for each in compiled.imports)]:
                part.write_to_file(str(code), form)
                files.append(code.read_bytes())
            return {"kind": _BITCODE, "files": files}
        if any(each.kind == "library" for each in compiled.imports):
            raise TypeError(
                "the module was loaded from a library; workers that are processes load it "
                "themselves: pass the library's path"
            )
        library = folder / "library.so"
        (exe if hasattr(exe, "export_library") else module).export_library(str(library))
        return {"kind": _LIBRARY, "files": [library.read_bytes()]}


def unpack(packed: dict[str, Any]) -> Any:
    """The module of what :func:`pack` returned."""
    kind, files = packed["kind"], packed["files"]
    with temporary_folder() as folder:
        paths = []
        for index, content in enumerate(files):
            path = folder / f"{index}.{'so' if kind == _LIBRARY else 'bc'}"
            path.write_bytes(content)
            paths.append(str(path))
        if kind == _LIBRARY:
            return tvm_ffi.load_module(paths[0])
        load_code = tvm_ffi.get_global_func("ffi.Module.load_from_file.relax.VMExecutable")
        load_bitcode = tvm_ffi.get_global_func("ffi.Module.load_from_file.ll")
        module = load_code(paths[0])
        for bitcode in paths[1:]:
            module.import_module(load_bitcode(bitcode, "bc"))
        return module
