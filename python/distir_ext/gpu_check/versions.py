"""Lists versions of the driver, the libraries and the packages, and the GPUs."""

from __future__ import annotations

import ctypes
import importlib.metadata
import platform
from collections.abc import Iterator

import tvm
import tvm_ffi

from distir_ext._version import __version__
from distir_ext.gpu_check.findings import Finding
from distir_ext.gpu_check.machine import Machine
from distir_ext.native.machine import nvidia as _nvidia

_PACKAGES = (
    "apache-tvm",
    "apache-tvm-ffi",
    "numpy",
    "cuda-bindings",
    "nvidia-nccl-cu13",
    "nvidia-cublas",
)


def check_versions(machine: Machine) -> Iterator[Finding]:
    """Libraries, driver and GPUs; too old ones have been refused before."""
    yield Finding("distir-ext", __version__)
    yield Finding("Python", f"{platform.python_version()} on {platform.platform()}")
    for name in _PACKAGES:
        try:
            yield Finding(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "not installed")
    yield Finding("NCCL", str(tvm_ffi.get_global_func("distir.runtime.describe_nccl")()))
    yield Finding("CUDA", str(tvm_ffi.get_global_func("distir.runtime.describe_cuda")()))
    yield Finding("cuBLASLt", _describe_cublaslt())
    compiler = _nvidia.describe_compiler()
    yield Finding("CUDA compiler", compiler or "none", "NVRTC or nvcc", compiler is not None)
    for index in range(machine.num_gpus):
        yield Finding(f"GPU {index}", _describe_gpu(machine, index))


def _describe_cublaslt() -> str:
    """Version and file of the library that multiplies matrices."""
    if not _nvidia.has_cublaslt():
        return "not installed: TVM's schedules multiply matrices"
    return str(tvm_ffi.get_global_func("distir.runtime.describe_cublaslt")())


def _describe_gpu(machine: Machine, index: int) -> str:
    if machine.simulated:
        return "simulated"
    device = tvm.cuda(index)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    machine.runtime.cudaSetDevice(index)
    machine.runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    memory = f"{free.value / 2**30:.1f} of {total.value / 2**30:.1f} GiB free"
    return f"{device.device_name}, compute capability {device.compute_version}, {memory}"
