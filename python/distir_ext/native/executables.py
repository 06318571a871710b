"""Converts executables to bytes and back, to send them to worker processes.

What TVM compiles for CPUs on LLVM travels as the virtual machine's code and constants, and LLVM
bitcode: TVM's just-in-time compiler makes machine code of it in each worker, as it does in the
process that compiled it, and nobody needs a C compiler. Whatever else TVM can export travels as
the shared library that ``export_library`` links, with the system's compiler.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tvm_ffi

from distir_ext.native import tvm_log
from distir_ext.native.machine.libraries import load_library
from distir_ext.text.files.temporary import temporary_folder

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
    files = bitcode_of(compiled)
    if files is not None:
        return {"kind": _BITCODE, "files": files}
    if any(each.kind == "library" for each in compiled.imports):
        raise TypeError(
            "the module was loaded from a library; workers that are processes load it "
            "themselves: pass the library's path"
        )
    with temporary_folder() as folder:
        library = folder / "library.so"
        (exe if hasattr(exe, "export_library") else module).export_library(str(library))
        return {"kind": _LIBRARY, "files": [library.read_bytes()]}


def unpack(packed: dict[str, Any]) -> Any:
    """The module of what :func:`pack` returned."""
    kind, files = packed["kind"], packed["files"]
    if kind == _LIBRARY:
        with temporary_folder() as folder:  # the loader knows libraries by their names
            library = folder / "0.so"
            library.write_bytes(files[0])
            return tvm_ffi.load_module(str(library))
    return from_bitcode(files)


def bitcode_of(compiled: Any) -> list[bytes] | None:
    """The files of :func:`from_bitcode`; None for a module with more than code of LLVM.

    Args:
        compiled: The module of an executable.
    """
    if any(each.kind != "llvm" or each.imports for each in compiled.imports):
        return None
    files = []
    for part, form in [(compiled, ""), *((each, "bc") for each in compiled.imports)]:
        with _in_memory() as code:
            part.write_to_file(str(code), form)
            files.append(code.read_bytes())
    return files


def from_bitcode(files: Sequence[bytes]) -> Any:
    """The module of an executable.

    Args:
        files: The virtual machine's code and constants, then bitcode of LLVM.
    """
    load_code = tvm_ffi.get_global_func("ffi.Module.load_from_file.relax.VMExecutable")
    load_bitcode = tvm_ffi.get_global_func("ffi.Module.load_from_file.ll")
    with _in_memory(files[0]) as code, tvm_log.dropped():
        module = load_code(str(code))
    for each in files[1:]:
        with _in_memory(each) as bitcode:
            module.import_module(load_bitcode(str(bitcode), "bc"))
    return module


@contextmanager
def _in_memory(content: bytes = b"") -> Iterator[Path]:
    """The path of a file in memory, of which a process that is killed leaves nothing."""
    descriptor = os.memfd_create("executable", os.MFD_CLOEXEC)
    try:
        path = Path(f"/proc/self/fd/{descriptor}")
        path.write_bytes(content)
        yield path
    finally:
        os.close(descriptor)
