"""Describes the GPUs that the check runs on, or a stand-in for them in tests."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from distir_ext.mesh.device import DEVICES, Device
from distir_ext.native.environment import changed_environment
from distir_ext.native.machine import nvidia as _nvidia
from distir_ext.session.session import Session

# A host has no more in one process group of the check.
MOST_GPUS = 8

_RUNTIME = "DISTIR_EXT_CUDART_LIBRARY"
_DEVICES = "DISTIR_EXT_CUDA_DEVICES"
SHARE = "DISTIR_EXT_SHARE_CUDA_DEVICES"
_BLOCKING = "CUDA_ON_HOST_BLOCKING"


@dataclass(frozen=True)
class Machine:
    """GPUs, and how programs are built for them."""

    num_gpus: int
    simulated: bool
    runtime: Any
    """CUDA's runtime, by ctypes."""

    @property
    def target(self) -> dict[str, Any]:
        """Target that programs for this machine are built for."""
        if not self.simulated:
            return {"kind": "cuda"}
        # Kernels of the host, on tensors of the stand-in.
        return {"kind": "llvm", "target_device_type": tvm.cuda(0).dlpack_device_type()}

    def pick(self, real: Any, simulated: Any) -> Any:
        """A size: the one for GPUs, or a small one for the stand-in."""
        return simulated if self.simulated else real

    @property
    def names(self) -> list[str]:
        """Names of the GPUs by CUDA; those of the stand-in are ``"simulated"``."""
        if self.simulated:
            return ["simulated"] * self.num_gpus
        return [str(tvm.cuda(index).device_name) for index in range(self.num_gpus)]

    @property
    def sheet(self) -> Device | None:
        """Data sheet of the first GPU; None if it is not known."""
        name = self.names[0]
        return next((sheet for board, sheet in DEVICES.items() if board in name), None)

    @property
    def workers(self) -> int:
        """A power of two of GPUs."""
        count: int = 1 << (min(self.num_gpus, MOST_GPUS).bit_length() - 1)
        return count

    @contextmanager
    def programs(self) -> Iterator[None]:
        """Runs a block in which kernels of the host do not wait for the stand-in's streams."""
        if not self.simulated:
            yield
            return
        self.runtime.cuda_on_host_blocking(1)
        try:
            yield
        finally:
            self.runtime.cuda_on_host_blocking(0)

    @contextmanager
    def processes(self, count: int) -> Iterator[Session]:
        """A session of processes, which share GPUs where there are fewer."""
        devices = ",".join(str(rank % self.num_gpus) for rank in range(count))
        with changed_environment({_DEVICES: devices, _BLOCKING: "0"}):
            session = Session(
                count, ccl="nccl", workers="processes", imports="distir_ext.gpu_check.on_workers"
            )
        with session:
            yield session

    def wait(self) -> None:
        """Waits until the first GPU has done all."""
        tvm.cuda(0).sync()


def find_machine() -> Machine:
    """This machine.

    Raises:
        RuntimeError: It has no GPU that CUDA can use, or NCCL or CUDA's runtime are not there.
    """
    _nvidia.prepare_runtime()
    tvm_ffi.get_global_func("distir.runtime.load_nccl")()
    path = str(tvm_ffi.get_global_func("distir.runtime.cuda_library")())
    runtime = ctypes.CDLL(path)
    num_gpus = int(tvm_ffi.get_global_func("distir.runtime.num_gpus")())
    if num_gpus == 0:
        raise RuntimeError(
            "this machine has no GPU that CUDA can use; nvidia-smi and CUDA_VISIBLE_DEVICES say "
            "which there are"
        )
    return Machine(num_gpus, hasattr(runtime, "cuda_on_host_blocking"), runtime)


def relative_error(actual: Any, expected: Any) -> float:
    """Returns the relative error of the norm against a float64 reference."""
    difference = np.asarray(actual, "float64") - expected
    norm = float(np.linalg.norm(expected))
    return float(np.linalg.norm(difference)) / (norm or 1.0)


def as_json_groups(groups: Sequence[Sequence[int]]) -> str:
    """Groups as the runtime's functions take them."""
    return str([list(each) for each in groups]).replace(" ", "")
