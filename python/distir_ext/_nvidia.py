"""CUDA from Python: its compiler, NVIDIA's libraries in packages, and TVM's part for it.

TVM compiles CUDA source with NVRTC or nvcc, when it builds for a GPU of this machine or loads
what another one has built; without a GPU it keeps the source. It looks for headers beside nvcc.
Packages such as ``nvidia-cuda-nvrtc`` have everything as well, in ``site-packages/nvidia``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

# What a program is compiled for if neither the target nor a GPU says: the first with bfloat16.
DEFAULT_ARCH = "sm_80"

# What TVM calls to compile, when it builds or loads kernels.
_CALLBACK = "tvm_callback_cuda_compile"

_MODE = "TVM_CUDA_COMPILE_MODE"
_ROOT = "CUDA_PATH"
_OPTIONS = "TVM_CUDA_NVRTC_EXTRA_OPTS"


def resolve_target(target: Any) -> Any:
    """The target, with an architecture if it is for CUDA and has none.

    TVM asks the GPU of this machine. Where there is none it takes an architecture that today's
    compilers refuse, so such a target gets :data:`DEFAULT_ARCH`.
    """
    if target == "cuda":
        target = {"kind": "cuda"}
    if not isinstance(target, Mapping) or target.get("kind") != "cuda" or "arch" in target:
        return target
    return target if tvm.cuda(0).exist else {**target, "arch": DEFAULT_ARCH}


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
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def install() -> None:
    """Lets TVM compile CUDA source inside :func:`compiler`, wherever it does so."""
    compile_source = tvm_ffi.get_global_func(_CALLBACK, allow_missing=True)
    if compile_source is None:
        return

    def compile_with_what_is_there(code: Any) -> Any:
        with compiler():
            return compile_source(code)

    tvm_ffi.register_global_func(_CALLBACK, compile_with_what_is_there, override=True)


def prepare_runtime() -> None:
    """Tells the native side where packages have NCCL, and loads TVM's CUDA runtime.

    TVM loads it when it is imported, if the loader finds CUDA's runtime. It does not look in
    packages, so where that failed it is tried again.
    """
    cudart = _packaged("libcudart.so.*")
    tvm_ffi.get_global_func("distir.runtime.nccl_library_paths")(_packaged("libnccl.so.2"), cudart)
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


def _packaged(name: str) -> list[str]:
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
    return next((root for root in roots if (root / "include" / "cuda_runtime.h").is_file()), None)
