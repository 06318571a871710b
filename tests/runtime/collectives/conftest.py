"""Builds the stand-in for GPUs: a library made of the C++ files of tests/gpu."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import tvm
import tvm_ffi

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory):
    """The file of the library."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    library = tmp_path_factory.mktemp("cuda_on_host") / "libcuda_on_host.so"
    includes = [
        f"-I{ROOT / 'src'}",
        f"-I{Path(tvm.__file__).parent / 'include'}",
        *(f"-I{path}" for path in tvm_ffi.libinfo.include_paths()),
    ]
    command = [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden"]
    if "libtsan" in os.environ.get("LD_PRELOAD", ""):
        # Else the sanitizer does not see what orders the first calls of several threads.
        command.append("-fsanitize=thread")
    sources = [str(path) for path in sorted((ROOT / "tests" / "gpu").glob("*.cc"))]
    subprocess.run([*command, *includes, *sources, "-o", str(library)], check=True)
    return library


@pytest.fixture(scope="module")
def folder():
    """Folder for the files of NCCL's stand-in: in memory if possible."""
    in_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as made:
        yield made
