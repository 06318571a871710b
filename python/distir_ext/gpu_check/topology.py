"""Checks which GPUs reach each other's memory, and over which links."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from distir_ext.gpu_check.findings import Finding
from distir_ext.gpu_check.links import ask
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
    matrix, _, _ = (ask("topo", "-m") or "nvidia-smi does not say").partition("Legend:")
    yield Finding("links", matrix.strip())


def _reaches(machine: Machine, index: int, other: int) -> bool:
    reaches = ctypes.c_int()
    machine.runtime.cudaDeviceCanAccessPeer(ctypes.byref(reaches), index, other)
    return bool(reaches.value)
