"""Runs builtins on workers without a compiler, and writes signatures by hand."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

import distir_ext  # noqa: F401  (loads the native library)
from distir_ext.params.host_array import host_array
from distir_ext.session.session import Session
from distir_ext.wire.tokens import TOKEN_VARIABLE
from distir_ext.workers.base import Workers
from distir_ext.workers.processes import ProcessWorkers
from distir_ext.workers.threads import ThreadWorkers

sys.path.insert(0, str(Path(__file__).parent / "on_workers"))  # workers get the controller's path
importlib.import_module("worker_functions")

# What hosts that tests start ask for.
TOKEN = "of tests, and of no use elsewhere"

KINDS_OF_WORKERS = ("threads", "processes")
# Starting a process takes a second, so tests that do not end their session share one of these.
PROCESSES = 4


def start_workers(
    kind: str, device_ids: Sequence[int], timeout: float | None = None
) -> ThreadWorkers | ProcessWorkers:
    """Workers that know the functions that tests run."""
    if kind == "threads":
        return ThreadWorkers(device_ids, "cpu", timeout)
    return ProcessWorkers(device_ids, "cpu", timeout, ["worker_functions"])


class Agent:
    """A running ``distir host``, at a free port of this host unless told otherwise."""

    def __init__(
        self,
        directory: Path,
        bind: str = "127.0.0.1:0",
        inside: Sequence[str] = (),
        is_cuttable: bool = False,
    ):
        folder = Path(__file__).parent / "on_workers"
        program = [str(folder / "cuttable_host.py")] if is_cuttable else ["-m", "distir_ext"]
        self._directory = directory
        environment = {
            **os.environ,
            TOKEN_VARIABLE: TOKEN,
            "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]),
        }
        self.process = subprocess.Popen(
            [*inside, sys.executable, *program, "host", "--bind", bind],
            stdout=subprocess.PIPE,
            text=True,
            cwd=directory,
            env=environment,
        )

    @functools.cached_property
    def address(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().removeprefix("listening at ").strip()

    def cut(self, other: Agent) -> None:
        """Cuts the lines of this host's agent to another's; see ``cuttable_host``."""
        (self._directory / "port").write_text(other.address.rpartition(":")[2])
        self.process.send_signal(signal.SIGUSR1)

    def end(self) -> None:
        assert self.process.stdout is not None
        self.process.terminate()
        self.process.wait(20)
        self.process.stdout.close()


@pytest.fixture(scope="session")
def start_agent() -> type[Agent]:
    """Starts an agent in a directory; whoever asks for it ends it."""
    return Agent


@pytest.fixture(scope="session")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Agent]]:
    """Two hosts, as far as sessions can tell, each with a directory of its own."""
    started = [Agent(tmp_path_factory.mktemp("host")) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TOKEN_VARIABLE, TOKEN)
        yield started
    for agent in started:
        agent.end()


class Runner:
    """Runs builtins on the first workers of a session, NumPy in and out."""

    def __init__(self, workers: Workers, num_workers: int | None = None) -> None:
        self.workers = workers
        self.num_workers = workers.num_workers if num_workers is None else num_workers

    def calls(self, calls: Sequence[tuple[str, Sequence[Any], tuple[int, ...] | None]]) -> Any:
        """One call per worker: (builtin, arguments, shape of the output or None).

        NumPy arrays among the arguments are copied to the worker. The output has the dtype of the
        worker's first array, else of anybody's, else float32.
        """
        kept, arguments = [], []
        dtypes = [a.dtype.name for _, args, _ in calls for a in args if isinstance(a, np.ndarray)]
        for name, args, shape in calls:
            mine: list[Any] = [name]
            for argument in args:
                if isinstance(argument, np.ndarray):
                    kept.append(host_array(argument))
                    argument = kept[-1].shard([0] * argument.ndim, argument.shape)
                mine.append(argument)
            own = [a.dtype.name for a in args if isinstance(a, np.ndarray)]
            mine += [
                None if shape is None else tvm_ffi.Shape(shape),
                (own or dtypes or ["float32"])[0],
            ]
            arguments.append(mine)
        others = self.workers.num_workers - len(calls)
        functions = ["distir.test.run_builtin"] * len(calls) + [None] * others
        outputs = self.workers.run("test", functions, arguments + [[]] * others)
        return [None if each is None else each.numpy() for each in outputs[: len(calls)]]

    def __call__(
        self, name: str, xs: Sequence[Any], args: Sequence[Any], shapes: Sequence[Any]
    ) -> Any:
        """Calls one builtin on every worker, with an array and an output shape for each."""
        return self.calls(
            [(name, (x, *args), tuple(shape)) for x, shape in zip(xs, shapes, strict=True)]
        )


@pytest.fixture(scope="session")
def shared_workers() -> Iterator[Callable[[str, int], Workers]]:
    """Workers that tests share that do not end them: of a kind, at least so many."""
    started: dict[Any, Workers] = {}

    def find(kind: str, num_workers: int) -> Workers:
        count = num_workers if kind == "threads" else max(num_workers, PROCESSES)
        if (kind, count) not in started:
            started[kind, count] = start_workers(kind, range(count))
        return started[kind, count]

    yield find
    for workers in started.values():
        workers.close()


@pytest.fixture
def worker_kind(request: pytest.FixtureRequest) -> str:
    """Kind of workers."""
    return str(request.param)


@pytest.fixture
def runner_on(shared_workers: Callable[[str, int], Workers]) -> Callable[[str, int], Runner]:
    """Runners by kind and number of workers, for tests that do not end their session."""
    return lambda kind, num_workers: Runner(shared_workers(kind, num_workers), num_workers)


@pytest.fixture
def runner_of(worker_kind: str, runner_on: Callable[[str, int], Runner]) -> Callable[[int], Runner]:
    """Makes runners by number of workers, for tests that run on all kinds."""
    return lambda num_workers: runner_on(worker_kind, num_workers)


@pytest.fixture(scope="session")
def run_on() -> type[Runner]:
    """Runners of workers that a test has started."""
    return Runner


@pytest.fixture(scope="session")
def process_session() -> Iterator[Session]:
    """A session of processes for tests that do not end it."""
    with Session(PROCESSES, workers="processes") as session:
        yield session


@pytest.fixture
def open_session(
    worker_kind: str, request: pytest.FixtureRequest
) -> Callable[[Any], contextlib.AbstractContextManager[Session]]:
    """Sessions for tests that do not end them; those of processes have more workers than needed."""
    if worker_kind == "threads":
        return Session
    return lambda mesh: contextlib.nullcontext(request.getfixturevalue("process_session"))


@pytest.fixture
def fresh_threads() -> Iterator[Callable[..., Runner]]:
    """As ``fresh_runner``, with threads only, for what is the same code for all workers."""
    runners = []

    def make(device_ids: Any) -> Runner:
        runners.append(Runner(start_workers("threads", range(device_ids))))
        return runners[-1]

    yield make
    for runner in runners:
        runner.workers.close()


@pytest.fixture
def fresh_runner(worker_kind: str) -> Iterator[Callable[..., Runner]]:
    """Runners for tests that end their session."""
    runners = []

    def make(device_ids: Any, timeout: float | None = None) -> Runner:
        ids = range(device_ids) if isinstance(device_ids, int) else device_ids
        runners.append(Runner(start_workers(worker_kind, ids, timeout)))
        return runners[-1]

    yield make
    for runner in runners:
        runner.workers.close()


def mesh_groups(shape: Sequence[int], axis: int) -> list[list[int]]:
    """Groups of devices along one axis of a mesh."""
    ids = np.arange(int(np.prod(shape))).reshape(shape)
    return np.moveaxis(ids, axis, -1).reshape(-1, shape[axis]).tolist()


# Those that workers run that are processes: an odd size, an axis, another order.
GROUPINGS_OF_PROCESSES = ("3 workers", "2x2 axis 0", "reversed order")
GROUPINGS = {
    **{f"{n} workers": mesh_groups((n,), 0) for n in (1, 2, 3, 4, 8)},
    **{
        f"{a}x{b} axis {axis}": mesh_groups((a, b), axis)
        for a, b in ((2, 2), (2, 3), (2, 4))
        for axis in (0, 1)
    },
    "reversed order": [[3, 1], [2, 0]],
}


@pytest.fixture
def groups(request: pytest.FixtureRequest) -> list[list[int]]:
    """Disjoint groups that cover all workers, in collective order."""
    return GROUPINGS[request.param]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of groups run all groupings on threads and some of them on processes."""
    if "worker_kind" not in metafunc.fixturenames:
        return
    if "groups" not in metafunc.fixturenames:
        metafunc.parametrize("worker_kind", KINDS_OF_WORKERS, indirect=True)
        return
    cases = [("threads", name) for name in GROUPINGS]
    cases += [("processes", name) for name in GROUPINGS_OF_PROCESSES]
    metafunc.parametrize(("worker_kind", "groups"), cases, indirect=True)


class SignatureWriter:
    """Writes types and functions as a signature has them (``src/lower/signature.h``)."""

    def __init__(self) -> None:
        self.meshes: list[Any] = []
        self.shardings: dict[str, str] = {}

    def type_text(self, value: dict[str, Any]) -> str:
        if value["kind"] == "tuple":
            return "(" + "; ".join(self.type_text(each) for each in value["fields"]) + ")"
        if value["kind"] != "tensor":
            return str(value["kind"])
        mesh = [value["mesh"]["shape"], ", ".join(map(str, value["mesh"]["device_ids"]))]
        if mesh not in self.meshes:
            self.meshes.append(mesh)
        number = self.meshes.index(mesh)
        text = f"{value['dtype']}[{', '.join(map(str, value['shape']))}] "
        text += f"mesh[{number}] " if number > 0 else ""
        text += ", ".join("R" if dim < 0 else f"S[{dim}]" for dim in value["placement"])
        self.shardings[text] = value["sharding"]
        return text

    def function(self, value: dict[str, Any]) -> dict[str, Any]:
        params = [f"{each['name']}: {self.type_text(each['type'])}" for each in value["params"]]
        programs = [
            {
                "name": program["name"],
                "devices": ", ".join(map(str, program["device_ids"])),
                "params": ", ".join(map(str, program["params"])),
                "results": ", ".join(map(str, program["results"])),
            }
            for program in value["programs"]
        ]
        result = self.type_text(value["result"])
        return {**value, "params": params, "result": result, "programs": programs}


@pytest.fixture
def signature() -> Callable[..., str]:
    """Writes a ``distir_signature``."""

    def write(**functions: dict[str, Any]) -> str:
        writer = SignatureWriter()
        written = {name: writer.function(each) for name, each in functions.items()}
        return json.dumps(
            {
                "version": 9,
                "meshes": writer.meshes,
                "functions": written,
                "shardings": writer.shardings,
            }
        )

    return write


def sharding_text(ndim: int, placement: Sequence[int]) -> str:
    """A placement on axes x, y, z, w in the words of a plan."""
    dims = [
        tuple("xyzw"[axis] for axis, d in enumerate(placement) if d == dim) for dim in range(ndim)
    ]
    return repr(tuple(axes if len(axes) > 1 else axes[0] if axes else None for axes in dims))


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
            "sharding": sharding_text(len(shape), placement),
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
