"""Workers with GPUs, or with what stands in for GPUs where CUDA_ON_HOST names it.

``CUDA_ON_HOST`` is the library made of the C++ files here, which
``tests/runtime/collectives/test_nccl_on_host.py`` builds; it runs these tests with it. Without it
they need a GPU and NCCL, and run as many threads as there are GPUs:
``python -m pytest tests/gpu -m gpu``.
Processes can have a GPU together, so that four of them run on any number of GPUs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

import distir_ext as dx
from distir_ext.native.machine import nvidia as _nvidia
from distir_ext.params.host_array import host_array
from distir_ext.workers.base import Workers
from distir_ext.workers.processes import ProcessWorkers
from distir_ext.workers.threads import ThreadWorkers

sys.path.insert(0, str(Path(__file__).parent / "on_workers"))  # workers get the controller's path
from gpu_functions import unwritten

MOST_WORKERS = 8
# Starting a process takes a second, so tests that do not end their session share some of these.
PROCESSES = 4
KINDS = ("threads", "processes")

DEVICES = "DISTIR_EXT_CUDA_DEVICES"
SHARE = "DISTIR_EXT_SHARE_CUDA_DEVICES"
BLOCKING = "CUDA_ON_HOST_BLOCKING"


def stand_in() -> ctypes.CDLL | None:
    """The library that plays CUDA and NCCL on the host, loaded; None with real GPUs."""
    path = os.environ.get("CUDA_ON_HOST")
    if path is None:
        return None
    for name in ("NCCL", "CUDART", "CUBLASLT"):
        os.environ[f"DISTIR_EXT_{name}_LIBRARY"] = path
    library = ctypes.CDLL(path)
    library.cuda_on_host_misuse.restype = ctypes.c_char_p
    return library


HOST = stand_in()
# Threads and processes that tests share have GPUs at the same time.
os.environ[SHARE] = "1"
_nvidia.prepare_runtime()
NUM_DEVICES = sum(bool(tvm.cuda(device).exist) for device in range(MOST_WORKERS))


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.gpu)


GROUPINGS = {
    "one worker": [[0]],
    "two workers": [[0, 1]],
    "three workers": [[0, 1, 2]],
    "four workers": [[0, 1, 2, 3]],
    "2x2 outer": [[0, 2], [1, 3]],
    "2x2 inner": [[0, 1], [2, 3]],
    "2x3 outer": [[0, 3], [1, 4], [2, 5]],
    "reversed order": [[3, 1], [2, 0]],
    "eight workers": [list(range(8))],
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Threads run all groupings, processes those that are not too many for them.

    The kinds of workers are here as well: pytest 9.2 refuses a fixture that has parameters of its
    own and gets others here.
    """
    if "groups" in metafunc.fixturenames:
        cases = {
            f"{kind}-{name}": (kind, groups)
            for kind in KINDS
            for name, groups in GROUPINGS.items()
            if kind == "threads" or sum(map(len, groups)) <= PROCESSES
        }
        names = ("worker_kind", "groups")
        metafunc.parametrize(names, cases.values(), ids=cases, indirect=True)
    elif "worker_kind" in metafunc.fixturenames and not states_kind(metafunc.definition):
        metafunc.parametrize("worker_kind", KINDS, indirect=True)


def states_kind(item: pytest.Item) -> bool:
    """True if a test parametrizes its kind of workers itself."""
    return any("worker_kind" in mark.args[0] for mark in item.iter_markers("parametrize"))


def pytest_runtest_setup() -> None:
    if NUM_DEVICES == 0:
        pytest.skip("there is no GPU")


def need_workers(kind: str, count: int) -> None:
    """Skips the test if there cannot be so many workers."""
    if kind == "threads" and count > NUM_DEVICES:
        pytest.skip(f"it needs {count} GPUs, this machine has {NUM_DEVICES}")
    assert kind == "threads" or count <= PROCESSES, "tests share fewer processes"


@pytest.fixture
def need() -> Callable[[int], None]:
    """Skips the test if there are fewer GPUs than it needs."""
    return lambda count: need_workers("threads", count)


@pytest.fixture
def worker_kind(request: pytest.FixtureRequest) -> str:
    """Kind of workers."""
    return str(request.param)


@pytest.fixture
def groups(request: pytest.FixtureRequest) -> list[list[int]]:
    """Disjoint groups of workers, in collective order."""
    return request.param


@pytest.fixture
def inject() -> Iterator[Callable[[str], None]]:
    """Makes what stands in for NCCL fail, for workers that are threads."""
    if HOST is None:
        pytest.skip("NCCL itself cannot be made to fail")
    yield lambda fault: HOST.cuda_on_host_fault(fault.encode())
    HOST.cuda_on_host_fault(b"")


@pytest.fixture
def target() -> Iterator[Any]:
    """Target that programs are built for."""
    if HOST is None:
        yield "cuda"
        return
    # Kernels of the host that take tensors of the stand-in for CUDA.
    HOST.cuda_on_host_blocking(1)
    yield {"kind": "llvm", "target_device_type": tvm.cuda(0).dlpack_device_type()}
    HOST.cuda_on_host_blocking(0)


@contextlib.contextmanager
def environment_of_processes(count: int, runs_programs: bool) -> Iterator[None]:
    """Gives processes that start in this context GPUs, by turns if there are too few."""
    with pytest.MonkeyPatch.context() as patch:
        if DEVICES not in os.environ:
            patch.setenv(DEVICES, ",".join(str(i % NUM_DEVICES) for i in range(count)))
        patch.setenv(BLOCKING, str(int(runs_programs)))
        yield


def start_workers(
    kind: str, count: int, timeout: float | None = None, *, runs_programs: bool = False
) -> Workers:
    """Workers that know the functions that tests run."""
    if kind == "threads":
        return ThreadWorkers(range(count), "nccl", timeout)
    with environment_of_processes(count, runs_programs):
        return ProcessWorkers(range(count), "nccl", timeout, ["gpu_functions"])


class Runner:
    """Runs builtins on the first workers of a session, NumPy in and out."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers

    def _padded(self, values: list[Any], other: Any) -> list[Any]:
        """One for each worker: those that have no part get another one."""
        return values + [other] * (self.workers.num_workers - len(values))

    def __call__(
        self,
        name: str,
        xs: Sequence[np.ndarray],
        args: Sequence[Any],
        shape: Sequence[int],
    ) -> list[np.ndarray]:
        """One array for each worker; the outputs have this shape."""
        self.workers.open_groups([each for each in args[:1] if each.startswith("[[")])
        arrays = [host_array(x) for x in xs]
        shards = [each.shard([0] * len(each.shape), each.shape) for each in arrays]
        run = self._on_processes if isinstance(self.workers, ProcessWorkers) else self._on_threads
        return [out.numpy() for out in run(name, shards, args, tuple(shape), xs[0].dtype.name)]

    def _on_threads(
        self, name: str, xs: Sequence[Any], args: Sequence[Any], shape: tuple[int, ...], dtype: str
    ) -> list[Any]:
        """Nothing of Python runs on threads: it may collect tensors, and so wait for a GPU."""
        outs = [unwritten(shape, dtype).copyto(tvm.cuda(rank)) for rank in range(len(xs))]
        complete = tvm_ffi.get_global_func("distir.runtime.synchronized")
        function = complete(tvm_ffi.get_global_func(f"distir.runtime.{name}"))
        arguments = [[x, *args, out] for x, out in zip(xs, outs, strict=True)]
        self.workers.run(
            name, self._padded([function] * len(xs), None), self._padded(arguments, [])
        )
        return outs

    def _on_processes(
        self, name: str, xs: Sequence[Any], args: Sequence[Any], shape: tuple[int, ...], dtype: str
    ) -> list[Any]:
        functions = self._padded(["distir.test.on_gpu"] * len(xs), None)
        arguments = self._padded([[name, x, *args, tvm_ffi.Shape(shape)] for x in xs], [])
        return self.workers.run(name, functions, arguments)[: len(xs)]


class SharedWorkers:
    """Workers of each kind, as many as there can be, for tests that do not end their session."""

    def __init__(self) -> None:
        self._started: dict[str, Workers] = {}

    def find(self, kind: str, num_workers: int) -> Workers:
        """Those of a kind, of which there are at least so many."""
        need_workers(kind, num_workers)
        if kind not in self._started:
            count = NUM_DEVICES if kind == "threads" else PROCESSES
            self._started[kind] = start_workers(kind, count)
        return self._started[kind]

    def leave(self, kind: str) -> None:
        """Ends those of a kind: two sessions of a process cannot have a GPU together."""
        workers = self._started.pop(kind, None)
        if workers is not None:
            workers.close()


SHARED = SharedWorkers()


@pytest.fixture(scope="session", autouse=True)
def end_shared_workers() -> Iterator[None]:
    """Closes the sessions that tests have shared."""
    yield
    for kind in KINDS:
        SHARED.leave(kind)


@pytest.fixture(autouse=True)
def leave_gpus(request: pytest.FixtureRequest) -> None:
    """Tests that open sessions of threads have the GPUs for themselves."""
    if "runner_of" not in request.fixturenames:
        SHARED.leave("threads")


@pytest.fixture(autouse=True)
def nothing_is_misused() -> Iterator[None]:
    """Fails on misuse of CUDA or NCCL that the stand-in reports; real ones would crash."""
    yield
    if HOST is not None:
        assert HOST.cuda_on_host_misuse().decode() == ""
        reported = Path(os.environ["CUDA_ON_HOST_FOLDER"]) / "misuse"
        assert not reported.exists(), reported.read_text()


@pytest.fixture
def runner_of(worker_kind: str) -> Callable[[int], Runner]:
    """Runners by number of workers."""
    return lambda num_workers: Runner(SHARED.find(worker_kind, num_workers))


@pytest.fixture
def fresh_runner(need: Callable[[int], None]) -> Iterator[Callable[..., Runner]]:
    """Runners with threads, for tests that end their session."""
    runners = []

    def make(num_workers: int, timeout: float | None = None) -> Runner:
        need(num_workers)
        runners.append(Runner(start_workers("threads", num_workers, timeout)))
        return runners[-1]

    yield make
    for runner in runners:
        runner.workers.close()


@pytest.fixture
def fresh_processes() -> Iterator[Callable[..., Runner]]:
    """Makes runners on new worker processes, and closes them."""
    runners = []

    def make(num_workers: int, timeout: float | None = None) -> Runner:
        runners.append(Runner(start_workers("processes", num_workers, timeout)))
        return runners[-1]

    yield make
    for runner in runners:
        runner.workers.close()


@pytest.fixture
def start() -> Iterator[Callable[[str, int], Workers]]:
    """Starts workers of a kind for programs."""
    started = []

    def find(kind: str, count: int) -> Workers:
        started.append(start_workers(kind, count, runs_programs=True))
        return started[-1]

    yield find
    for workers in started:
        workers.close()


@pytest.fixture(scope="session")
def num_devices() -> int:
    """The number of GPUs."""
    return NUM_DEVICES


@contextlib.contextmanager
def open_processes(count: int) -> Iterator[dx.Session]:
    """A session of processes for programs."""
    with environment_of_processes(count, runs_programs=True):
        session = dx.Session(count, ccl="nccl", workers="processes")
    with session:
        yield session


@pytest.fixture(scope="session")
def process_session() -> Iterator[dx.Session]:
    """The session of processes that tests share."""
    with open_processes(PROCESSES) as session:
        yield session


@pytest.fixture
def open_session(
    worker_kind: str, request: pytest.FixtureRequest
) -> Callable[[int], contextlib.AbstractContextManager[dx.Session]]:
    """Sessions for programs, with so many workers or more."""

    def find(num_workers: int) -> contextlib.AbstractContextManager[dx.Session]:
        if worker_kind == "threads":
            need_workers(worker_kind, num_workers)
            return dx.Session(num_workers, ccl="nccl")
        if num_workers > PROCESSES:
            return open_processes(num_workers)
        return contextlib.nullcontext(request.getfixturevalue("process_session"))

    return find


# A process of its own, which nothing of the stand-in outlives.
_ALONE = """
import os, sys, time
sys.path[:0] = [{root!r}, {root!r} + "/tests/gpu/on_workers"]
import numpy as np, tvm, tvm_ffi
import distir_ext as dx
from distir_ext.params.host_array import host_array
from tests.gpu.conftest import HOST, Runner, start_workers, unwritten
X = np.arange(6, dtype="float32").reshape(2, 3)
def boom(seconds):
    time.sleep(seconds)
    raise ValueError("boom")
sleep_and_fail = tvm_ffi.convert(boom)
runner = Runner(start_workers("threads", 4))
{code}
misuse = HOST.cuda_on_host_misuse().decode()
print(misuse, file=sys.stderr, end="")
sys.stdout.flush(); sys.stderr.flush()
os._exit(1 if misuse else 0)
"""


def run_alone(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code with four workers in a process of its own."""
    if HOST is None:
        pytest.skip("NCCL itself cannot be made to fail")
    root = str(Path(__file__).parents[2])
    source = _ALONE.format(root=root, code=textwrap.dedent(code))
    return subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
