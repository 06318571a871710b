"""Runs builtins on workers without a compiler, and writes signatures by hand."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

import distir_ext  # noqa: F401  (loads the native library)
from distir_ext._disco import Workers
from distir_ext._host_array import host_array


class Runner:
    """Runs builtins on the workers of a session, destination passing, NumPy in and out."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers

    def calls(self, calls: Sequence[tuple[str, Sequence[Any], tuple[int, ...] | None]]) -> Any:
        """One call per worker: (builtin, arguments, shape of the output or None).

        NumPy arrays among the arguments are copied to the worker. The output has the dtype of the
        worker's first array, else of anybody's, else float32.
        """
        kept, functions, arguments, outputs = [], [], [], []
        dtypes = [a.dtype.name for _, args, _ in calls for a in args if isinstance(a, np.ndarray)]
        for name, args, shape in calls:
            functions.append(tvm_ffi.get_global_func(f"distir.runtime.{name}"))
            mine: list[Any] = []
            for argument in args:
                if isinstance(argument, np.ndarray):
                    kept.append(host_array(argument))
                    argument = kept[-1].shard([0] * argument.ndim, argument.shape)
                mine.append(argument)
            output = None
            if shape is not None:
                own = [a.dtype.name for a in args if isinstance(a, np.ndarray)]
                output = tvm.runtime.empty(shape, (own or dtypes or ["float32"])[0])
                poison(output)
                mine.append(output)
            arguments.append(mine)
            outputs.append(output)
        self.workers.run("test", functions, arguments)
        return [None if output is None else output.numpy() for output in outputs]

    def __call__(
        self, name: str, xs: Sequence[Any], args: Sequence[Any], shapes: Sequence[Any]
    ) -> Any:
        """The same builtin on every worker: an array and an output shape for each."""
        return self.calls(
            [(name, (x, *args), tuple(shape)) for x, shape in zip(xs, shapes, strict=True)]
        )


def poison(tensor: Any) -> None:
    """Fills a tensor with bytes that no test expects, so that unwritten elements show."""
    array = host_array(tensor)
    count = int(np.prod(array.shape))
    ctypes.memset(tensor.data_ptr(), 0xA5, count * tensor.numpy().dtype.itemsize)


@pytest.fixture(scope="session")
def runner_of() -> Iterator[Callable[[int], Runner]]:
    """Runners by number of workers, shared by all tests that do not end their session."""
    runners: dict[int, Runner] = {}

    def find(num_workers: int) -> Runner:
        if num_workers not in runners:
            runners[num_workers] = Runner(Workers(range(num_workers), "cpu", "threads"))
        return runners[num_workers]

    yield find
    for runner in runners.values():
        runner.workers.close()


@pytest.fixture
def fresh_runner() -> Iterator[Callable[..., Runner]]:
    """Runners for tests that end their session."""
    runners = []

    def make(device_ids: Any) -> Runner:
        ids = range(device_ids) if isinstance(device_ids, int) else device_ids
        runners.append(Runner(Workers(ids, "cpu", "threads")))
        return runners[-1]

    yield make
    for runner in runners:
        runner.workers.close()


def mesh_groups(shape: Sequence[int], axis: int) -> list[list[int]]:
    """Groups of devices along one axis of a mesh."""
    ids = np.arange(int(np.prod(shape))).reshape(shape)
    return np.moveaxis(ids, axis, -1).reshape(-1, shape[axis]).tolist()


GROUPINGS = {
    **{f"{n} workers": mesh_groups((n,), 0) for n in (1, 2, 3, 4, 8)},
    **{
        f"{a}x{b} axis {axis}": mesh_groups((a, b), axis)
        for a, b in ((2, 2), (2, 3), (2, 4))
        for axis in (0, 1)
    },
    "reversed order": [[3, 1], [2, 0]],
}


@pytest.fixture(params=GROUPINGS.values(), ids=GROUPINGS.keys())
def groups(request: pytest.FixtureRequest) -> list[list[int]]:
    """Disjoint groups that cover all workers, in collective order."""
    return request.param


@pytest.fixture
def signature() -> Callable[..., str]:
    """Writes a ``distir_signature``."""

    def write(device_ids: Sequence[int], **functions: dict[str, Any]) -> str:
        return json.dumps({"version": 1, "device_ids": list(device_ids), "functions": functions})

    return write


@pytest.fixture
def tensor_type() -> Callable[..., dict[str, Any]]:
    """Writes the type of a tensor in a signature."""

    def write(
        shape: Sequence[int | str],
        dtype: str,
        mesh: Sequence[int],
        placement: Sequence[int],
        device_ids: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        ids = list(range(int(np.prod(mesh)))) if device_ids is None else list(device_ids)
        return {
            "kind": "tensor",
            "shape": list(shape),
            "dtype": dtype,
            "mesh": {"shape": list(mesh), "device_ids": ids},
            "placement": list(placement),
        }

    return write


@pytest.fixture
def function_type() -> Callable[..., dict[str, Any]]:
    """Writes a function in a signature; by default one program that all devices run."""

    def write(
        params: dict[str, Any],
        result: dict[str, Any],
        programs: Sequence[tuple[str, Sequence[int], Sequence[int], Sequence[int]]],
        num_input: int | None = None,
    ) -> dict[str, Any]:
        return {
            "num_input": len(params) if num_input is None else num_input,
            "params": [{"name": name, "type": value} for name, value in params.items()],
            "result": result,
            "programs": [
                {
                    "name": name,
                    "device_ids": list(devices),
                    "params": list(taken),
                    "results": list(returned),
                }
                for name, devices, taken, returned in programs
            ],
        }

    return write
