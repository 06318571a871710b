"""Functions of the native library that have no use in the product, called by tests.

The sources of the algebra (no IR) are compiled once more, with the files of this folder, into a
library that is kept in ``build/`` under the hash of its sources. They are one translation unit, as
the headers take most of the time: so two of these files can not have different local functions of
one name and signature.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi

ROOT = Path(__file__).parents[2]
FOLDERS = ("src/support", "src/abi", "src/mesh", "tests/algebra")
ALONE = ("src/stages/partition.h", "src/stages/partition.cc")
# These register functions of the product, or need TVM.
NOT_ALGEBRA = ("ffi.cc", "load.cc", "log_capture.cc")
OPTIONS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden")


def call(name: str, *args: Any) -> Any:
    """Calls a function of the algebra; arrays come back as tuples."""
    load()
    return plain(tvm_ffi.get_global_func(f"distir.test.{name}")(*args))


def plain(value: Any) -> Any:
    """Arrays as tuples, text as Python's."""
    if isinstance(value, tvm_ffi.Array):
        return tuple(plain(item) for item in value)
    return str(value) if isinstance(value, str) else value


@functools.cache
def load() -> ctypes.CDLL:
    """Compiles the library, unless these very sources were compiled before, and loads it."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    folder = ROOT / "build" / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"libalgebra_{sources_hash(compiler)}.so"
    with (folder / "algebra.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes of a test run wait for the first one
        if not library.exists():
            for old in folder.glob("libalgebra_*"):
                old.unlink()
            compile_into(library, compiler)
        return ctypes.CDLL(str(library))


def sources() -> list[Path]:
    files = [file for folder in FOLDERS for file in (ROOT / folder).glob("*.*")]
    files += [ROOT / file for file in ALONE]
    return sorted(
        file for file in files if file.suffix in (".cc", ".h") and file.name not in NOT_ALGEBRA
    )


def sources_hash(compiler: str) -> str:
    digest = hashlib.sha256(repr((compiler, OPTIONS, tvm_ffi.__version__)).encode())
    for file in sources():
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def compile_into(library: Path, compiler: str) -> None:
    """Others never see a part of the file."""
    unit = library.with_suffix(".cc")
    unit.write_text(
        "".join(f'#include "{file}"\n' for file in sources() if file.suffix == ".cc"),
        encoding="utf-8",
    )
    includes = [ROOT, ROOT / "src", *tvm_ffi.libinfo.include_paths()]
    ffi = Path(tvm_ffi.libinfo.find_libtvm_ffi())
    made = library.with_suffix(".making")
    command = [*shlex.split(compiler), *OPTIONS, *(f"-I{path}" for path in includes), str(unit)]
    subprocess.run([*command, "-o", str(made), f"-L{ffi.parent}", "-ltvm_ffi"], check=True)
    made.rename(library)
