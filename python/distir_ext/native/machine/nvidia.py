"""Finds CUDA's compiler and NVIDIA's libraries in packages, and TVM's part for CUDA.

TVM compiles CUDA source with NVRTC or nvcc, when it builds for a GPU of this machine or loads
what another one has built; without a GPU it keeps the source. It looks for headers beside nvcc.
Packages such as ``nvidia-cuda-nvrtc`` have everything as well, in ``site-packages/nvidia``.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm.support.nvcc import get_target_compute_version

from distir_ext.native.environment import changed_environment

# What a program is compiled for if neither the target nor a GPU says: the first with bfloat16.
DEFAULT_ARCH = "sm_80"

# What every GPU gives to a block of threads without being asked for more.
_SHARED_MEMORY = "max_shared_memory_per_block"
_SHARED_MEMORY_BYTES = 49152

# What TVM calls to compile, when it builds or loads kernels.
_CALLBACK = "tvm_callback_cuda_compile"

_MODE = "TVM_CUDA_COMPILE_MODE"
_ROOT = "CUDA_PATH"
_OPTIONS = "TVM_CUDA_NVRTC_EXTRA_OPTS"

# What kernels include: those for tensor cores the second one, which has a package of its own.
_HEADERS = ("cuda_runtime.h", "crt/mma.h")

# cuBLASLt in packages, and the variable that names another file (src/runtime/cublaslt/library.cc).
_CUBLASLT = "libcublasLt.so.*"
_CUBLASLT_VARIABLE = "DISTIR_EXT_CUBLASLT_LIBRARY"

# The oldest architecture of CUDA 13, which TVM's wheel is built with (its release notes).
_OLDEST_ARCHITECTURE = 75

# The first architectures of which there is one with this suffix (CUDA's programming guide).
_FIRST_WITH_SUFFIX = {"": 0, "a": 90, "f": 100}


def resolve_target(target: Any) -> Any:
    """The target, with an architecture if it is for CUDA and has none.

    TVM asks the GPU of this machine. Where there is none it takes an architecture that today's
    compilers refuse, so such a target gets :data:`DEFAULT_ARCH`. It gets the shared memory that
    TVM's schedules assume too, which warn where they have to.

    Raises:
        ValueError: the CUDA compiler that is installed does not know the architecture.
    """
    if target == "cuda":
        target = {"kind": "cuda"}
    if isinstance(target, Mapping):
        if target.get("kind") != "cuda":
            return target
        if "arch" not in target and tvm.cuda(0).exist:
            return target
        target = {"arch": DEFAULT_ARCH, _SHARED_MEMORY: _SHARED_MEMORY_BYTES, **target}
        check_architecture(str(target["arch"]))
        return target
    known = tvm.target.Target(target)
    if known.kind.name == "cuda" and "arch" in known.attrs:
        check_architecture(str(known.attrs["arch"]))
    return target


def check_architecture(arch: str) -> None:
    """Raises an error for an architecture that the CUDA compiler does not know.

    Without a compiler, one that CUDA 13 has dropped: there may be a later one where it is loaded.

    Raises:
        ValueError: names the architecture, the compiler, and what it compiles for.
    """
    with compiler():
        mode = os.environ.get(_MODE)
    found = {"nvrtc": _nvrtc_architectures, "nvcc": _nvcc_architectures}.get(mode or "", _unknown)()
    if found is None:
        return
    name, numbers = found
    parts = re.fullmatch(r"sm_(\d+)([af]?)", arch)
    number = int(parts[1]) if parts else 0
    is_known = number in numbers if numbers else number >= _OLDEST_ARCHITECTURE
    if parts is not None and is_known and number >= _FIRST_WITH_SUFFIX[parts[2]]:
        return
    known = ", ".join(f"sm_{each}" for each in numbers) or f"sm_{_OLDEST_ARCHITECTURE} and later"
    raise ValueError(
        f'the target\'s architecture is "{arch}"; {name} compiles for {known}. State '
        'target={"kind": "cuda", "arch": ...} with one of these'
        + (", or install a CUDA compiler that knows it" if parts else "")
    )


def describe_compiler() -> str | None:
    """The CUDA compiler that is installed, and what it compiles for; None if there is none."""
    with compiler():
        mode = os.environ.get(_MODE)
    ask = {"nvrtc": _nvrtc_architectures, "nvcc": _nvcc_architectures}.get(mode or "")
    found = ask() if ask else None
    if found is None:
        return None
    name, numbers = found
    return f"{name} for sm_{numbers[0]} to sm_{numbers[-1]}" if numbers else name


def _unknown() -> tuple[str, list[int]] | None:
    return "CUDA 13", []


def _nvrtc_architectures() -> tuple[str, list[int]] | None:
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
        _, numbers = nvrtc.nvrtcGetSupportedArchs()
    except (ImportError, RuntimeError):
        return None  # TVM says what it lacks when it compiles
    return f"NVRTC {major}.{minor}", sorted(numbers)


def _nvcc_architectures() -> tuple[str, list[int]] | None:
    def ask(option: str) -> str:
        return subprocess.run(
            ["nvcc", option], capture_output=True, text=True, check=True, timeout=60
        ).stdout

    try:
        listed = re.findall(r"compute_(\d+)\b", ask("--list-gpu-arch"))
        version = re.search(r"release (\S+),", ask("--version"))
    except (OSError, subprocess.SubprocessError):
        return None
    return f"nvcc {version[1] if version else ''}".strip(), sorted(map(int, listed))


@contextlib.contextmanager
def compiler() -> Iterator[None]:
    """Lets TVM find a CUDA compiler: NVRTC with its headers, otherwise nvcc.

    What the environment says already (TVM_CUDA_COMPILE_MODE) is left as it is, and so is an
    environment in which there is neither: then TVM's own message says what it needs.
    """
    settings: dict[str, str] = {}
    if _MODE not in os.environ:
        root = _headers() if _has_module("cuda.bindings.nvrtc") else None
        if root is not None:
            settings = {_MODE: "nvrtc", _ROOT: str(root)}
            if (root / "include" / "cccl").is_dir():
                options = f"{os.environ.get(_OPTIONS, '')} -I{root / 'include' / 'cccl'}"
                settings[_OPTIONS] = options.strip()
        elif shutil.which("nvcc"):
            settings = {_MODE: "nvcc"}
    with changed_environment(settings, force=True):
        yield


def install() -> None:
    """Lets TVM compile CUDA source inside :func:`compiler`, wherever it does so."""
    compile_source = tvm_ffi.get_global_func(_CALLBACK, allow_missing=True)
    if compile_source is None:
        return

    def compile_with_what_is_there(code: Any) -> Any:
        version = get_target_compute_version(tvm.target.Target.current(allow_none=True))
        check_architecture("sm_" + version.replace(".", ""))
        with compiler():
            return compile_source(code)

    tvm_ffi.register_global_func(_CALLBACK, compile_with_what_is_there, override=True)


def has_cublaslt() -> bool:
    """Returns whether this machine has cuBLASLt: in a package, or where the loader finds it."""
    return bool(
        os.environ.get(_CUBLASLT_VARIABLE)
        or packaged(_CUBLASLT)
        or ctypes.util.find_library("cublasLt")
    )


def prepare_runtime() -> None:
    """Tells the native side where packages have NCCL and cuBLASLt, and loads TVM's CUDA runtime.

    TVM loads it when it is imported, if the loader finds CUDA's runtime. It does not look in
    packages, so where that failed it is tried again.
    """
    cudart = packaged("libcudart.so.*")
    tvm_ffi.get_global_func("distir.runtime.nccl_library_paths")(packaged("libnccl.so.2"), cudart)
    tvm_ffi.get_global_func("distir.runtime.cublaslt_library_paths")(packaged(_CUBLASLT))
    if tvm_ffi.get_global_func("device_api.cuda", allow_missing=True) is not None:
        return
    library = Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"
    if not library.is_file():
        return
    with contextlib.suppress(OSError):  # no driver: the session finds no device, and says so
        for path in cudart:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(library))


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def package_roots() -> list[Path]:
    """The folders of the namespace package ``nvidia``."""
    spec = importlib.util.find_spec("nvidia")
    return [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []


def packaged(name: str) -> list[str]:
    """Shared libraries of the packages, newest CUDA first."""
    found = [path for root in package_roots() for path in root.glob(f"*/lib/{name}")]
    return [str(path) for path in sorted(found, reverse=True)]


def _headers() -> Path | None:
    """A CUDA root that has headers: what CUDA_PATH says, the packages', or nvcc's."""
    given = os.environ.get(_ROOT)
    if given is not None:
        return Path(given)
    roots = [each for root in package_roots() for each in sorted(root.glob("cu*"), reverse=True)]
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        roots.append(Path(nvcc).resolve().parent.parent)
    roots.append(Path("/usr/local/cuda"))
    for required in (_HEADERS, _HEADERS[:1]):
        for root in roots:
            if all((root / "include" / each).is_file() for each in required):
                return root
    return None
