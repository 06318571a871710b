"""Workers with GPUs, or with what stands in for GPUs where CUDA_ON_HOST names it.

``CUDA_ON_HOST`` is the library made of ``cuda_on_host.cc`` and ``nccl_on_host.cc``;
``tests/runtime/test_nccl_on_host.py`` builds it and runs these tests with it. Without it they need
a GPU and NCCL, and run as many workers as there are GPUs: ``python -m pytest tests/gpu -m gpu``.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

from distir_ext import _nvidia
from distir_ext._host_array import host_array
from distir_ext._workers.threads import ThreadWorkers

MOST_WORKERS = 8


def stand_in() -> ctypes.CDLL | None:
    """The library that plays CUDA and NCCL on the host, loaded; None with real GPUs."""
    path = os.environ.get("CUDA_ON_HOST")
    if path is None:
        return None
    os.environ["DISTIR_EXT_NCCL_LIBRARY"] = os.environ["DISTIR_EXT_CUDART_LIBRARY"] = path
    return ctypes.CDLL(path)


HOST = stand_in()
_nvidia.prepare_runtime()
NUM_DEVICES = sum(bool(tvm.cuda(device).exist) for device in range(MOST_WORKERS))


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.gpu)


def pytest_runtest_setup() -> None:
    if NUM_DEVICES == 0:
        pytest.skip("there is no GPU")


@pytest.fixture
def inject() -> Iterator[Callable[[str], None]]:
    """Makes what stands in for NCCL fail."""
    if HOST is None:
        pytest.skip("NCCL itself can not be made to fail")
    yield lambda kind: HOST.cuda_on_host_fault(kind.encode())
    HOST.cuda_on_host_fault(b"")


@pytest.fixture
def target() -> Iterator[Any]:
    """What programs are built for."""
    if HOST is None:
        yield "cuda"
        return
    # Kernels of the host that take tensors of the stand-in for CUDA.
    HOST.cuda_on_host_blocking(1)
    yield {"kind": "llvm", "target_device_type": tvm.cuda(0).dlpack_device_type()}
    HOST.cuda_on_host_blocking(0)


@pytest.fixture
def need() -> Callable[[int], None]:
    """Skips the test if there are fewer GPUs than it needs."""

    def check(count: int) -> None:
        if count > NUM_DEVICES:
            pytest.skip(f"it needs {count} GPUs, this machine has {NUM_DEVICES}")

    return check


class Runner:
    """Runs builtins on workers with GPUs, NumPy in and out."""

    def __init__(self, num_workers: int) -> None:
        self.workers = ThreadWorkers(range(num_workers), "nccl")
        self._complete = tvm_ffi.get_global_func("distir.runtime.synchronized")

    def __call__(
        self,
        name: str,
        xs: Sequence[np.ndarray],
        args: Sequence[Any],
        shape: Sequence[int],
    ) -> list[np.ndarray]:
        """One array for each worker; the outputs have this shape and bytes that nobody expects."""
        arguments, outputs = [], []
        for rank, x in enumerate(xs):
            output = tvm.runtime.empty(tuple(shape), x.dtype.name)
            array = host_array(output)
            ctypes.memset(output.data_ptr(), 0xA5, int(np.prod(shape)) * x.dtype.itemsize)
            output = output.copyto(tvm.cuda(rank))
            shard = host_array(x).shard([0] * x.ndim, x.shape)
            arguments.append([shard, *args, output])
            outputs.append((output, array))
        self.workers.open_groups([each for each in args[:1] if each.startswith("[[")])
        function = self._complete(tvm_ffi.get_global_func(f"distir.runtime.{name}"))
        self.workers.run(name, [function] * len(xs), arguments)
        return [output.numpy() for output, _ in outputs]


@pytest.fixture(scope="session")
def runner_of() -> Iterator[Callable[[int], Runner]]:
    """Runners by number of workers, shared by all tests that do not end their session."""
    runners: dict[int, Runner] = {}

    def find(num_workers: int) -> Runner:
        if num_workers > NUM_DEVICES:
            pytest.skip(f"it needs {num_workers} GPUs, this machine has {NUM_DEVICES}")
        if num_workers not in runners:
            runners[num_workers] = Runner(num_workers)
        return runners[num_workers]

    yield find
    for runner in runners.values():
        runner.workers.close()


@pytest.fixture
def fresh_runner(need: Callable[[int], None]) -> Iterator[Callable[[int], Runner]]:
    """Runners for tests that end their session."""
    runners = []

    def make(num_workers: int) -> Runner:
        need(num_workers)
        runners.append(Runner(num_workers))
        return runners[-1]

    yield make
    for runner in runners:
        runner.workers.close()
