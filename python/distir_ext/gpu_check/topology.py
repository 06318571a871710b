"""Which GPUs reach each other's memory, and by what."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator

from distir_ext.gpu_check.findings import Finding
from distir_ext.gpu_check.machine import Machine


def check_topology(machine: Machine) -> Iterator[Finding]:
    """Peer access as CUDA says it, and the links as nvidia-smi does."""
    for index in range(machine.num_gpus):
        peers = [
            str(other)
            for other in range(machine.num_gpus)
            if other != index and _reaches(machine, index, other)
        ]
        yield Finding(f"peers of GPU {index}", ", ".join(peers) or "none")
    if machine.simulated:
        return
    if shutil.which("nvidia-smi") is None:
        yield Finding("links", "nvidia-smi is not installed")
        return
    run = subprocess.run(
        ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=60, check=False
    )
    yield Finding("links", (run.stdout or run.stderr).strip())


def _reaches(machine: Machine, index: int, other: int) -> bool:
    reaches = ctypes.c_int()
    machine.runtime.cudaDeviceCanAccessPeer(ctypes.byref(reaches), index, other)
    return bool(reaches.value)
