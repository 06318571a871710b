"""Workers that are threads, on TVM's disco: loads disco from the wheel, and runs steps.

Disco is TVM's runtime for several workers. Everything that this package needs to know about it is
here and in the native ``src/runtime/session/session.cc``:

- In the released wheel ``tvm.runtime.disco`` is None, because its Python part is imported before
  the library that implements it; :func:`load_disco` imports it again.
- Disco ends the process when a function that it runs on a worker throws. Workers therefore run
  nothing but the native ``distir.runtime.guarded_call``, which catches, records and passes on.
- Disco's queues carry numbers and strings. Functions, arrays and results of workers that are
  threads are handed over inside the process, as a job.
- Disco has workers that are processes, too; they are not used, for the reasons in docs/runtime.md.
"""

from __future__ import annotations

import atexit
import importlib
import math
import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import tvm_ffi

from distir_ext.native.machine.cores import CONFIGURE_CORES, share_of_cores
from distir_ext.params.host_array import on_host
from distir_ext.params.memory_file import MappedMemory, MemoryFile
from distir_ext.params.process_memory import can_read
from distir_ext.params.stored_array import MappedFiles
from distir_ext.signature.flattening import flatten
from distir_ext.workers.base import (
    GRACE,
    LEAVE_LIMIT,
    UNWIND_LIMIT,
    Addresses,
    BoundProgram,
    ProgramStep,
    StepOutcome,
    Takers,
    WorkerError,
    Workers,
    check_equal_counts,
    stalled_message,
    wait_for_one_running,
)
from distir_ext.workers.cuts import shard_for

# Global functions that a first, failed import of tvm.runtime.disco leaves behind; registering them
# again would fail.
_LEFT_BEHIND = (
    "runtime.disco.create_process_pool",
    "runtime.disco.create_socket_session_local_workers",
    "runtime.disco._configure_structlog",
    "runtime.disco._import_python_module",
)

# How long the controller waits without looking for a KeyboardInterrupt, in seconds.
_WAIT_SLICE = 0.03


def load_disco() -> ModuleType:
    """``tvm.runtime.disco``, imported again where TVM's own import of it has failed.

    Returns:
        The module; ``tvm.runtime.disco`` is the same one afterwards.

    Raises:
        RuntimeError: this TVM was built without disco.
    """
    import tvm

    found = getattr(tvm.runtime, "disco", None)
    if isinstance(found, ModuleType):
        return found
    if tvm_ffi.get_global_func("runtime.disco.SessionThreaded", allow_missing=True) is None:
        raise RuntimeError("this TVM was built without disco (libtvm_runtime_extra)")
    for name in [name for name in sys.modules if name.startswith("tvm.runtime.disco")]:
        del sys.modules[name]
    for name in _LEFT_BEHIND:
        if tvm_ffi.get_global_func(name, allow_missing=True) is not None:
            tvm_ffi.registry.remove_global_func(name)
    module = importlib.import_module("tvm.runtime.disco")
    tvm.runtime.disco = module
    return module


_OWNER = os.getpid()


def _wait_for_those_left_alone() -> None:
    """Waits a moment for workers that compute after the end of their session.

    A thread that is in Python when that ends would end the process with an abort.
    """
    if os.getpid() != _OWNER:
        return  # a fork has none of the threads
    count = tvm_ffi.get_global_func("distir.runtime.num_sessions_left_alone")
    deadline = time.monotonic() + LEAVE_LIMIT
    while count() and time.monotonic() < deadline:
        time.sleep(_WAIT_SLICE)


atexit.register(_wait_for_those_left_alone)


@dataclass(frozen=True)
class _Bound:
    """A program of each worker.

    Attributes:
        programs: By rank.
        kept: By rank its arguments, with None where a run's inputs are.
        places: Places of these inputs: the place among the arguments, and the index of the input.
    """

    programs: Mapping[int, Any]
    kept: Mapping[int, list[Any]]
    places: Sequence[tuple[int, int]]

    def arguments(self, rank: int, device: int, inputs: Sequence[Any]) -> list[Any]:
        """Those of a run."""
        found = self.kept[rank].copy()
        for at, index in self.places:
            found[at] = shard_for(device, inputs[index])
        return found


@dataclass(frozen=True)
class _Queued:
    """A step as the native session takes it.

    Attributes:
        programs: By rank, or None.
        arguments: By rank.
        continues: By rank the step before it of the same call, or None.
        keeps: Ranks that keep their results for another step.
        after: By rank a step that the finishers must have ended before, or None.
        finishers: Ranks.
    """

    programs: Any
    arguments: Any
    continues: Sequence[int | None]
    keeps: tvm_ffi.Shape
    after: Sequence[int | None]
    finishers: tvm_ffi.Shape


class ThreadWorkers(Workers):
    """Workers that are threads of this process, started by disco.

    Args:
        device_ids: Ascending device ids; the worker of rank ``i`` is device ``device_ids[i]``.
        ccl: Name of the communication backend.
        timeout: Time limit of a step, in seconds; None for no limit.
        announce: Called with this object before the first step, so that it can be closed meanwhile.

    Raises:
        ValueError: an unknown backend.
    """

    def __init__(
        self,
        device_ids: Sequence[int],
        ccl: str,
        timeout: float | None = None,
        announce: Callable[[Workers], None] | None = None,
    ) -> None:
        super().__init__(device_ids, timeout)
        load_disco()
        native = tvm_ffi.get_global_func("distir.runtime.session_open")(
            "threads", tvm_ffi.Shape(self.device_ids), ccl
        )
        self.device_type = int(
            tvm_ffi.get_global_func("distir.runtime.session_device_type")(native)
        )
        self._native = native
        self._memory = MappedMemory()
        # Joins the threads if nobody closes the session, at the latest when the process ends.
        self._finalizer = weakref.finalize(
            self, tvm_ffi.get_global_func("distir.runtime.session_close"), native
        )
        self._submit = tvm_ffi.get_global_func("distir.runtime.session_submit")
        self._submit_queued = tvm_ffi.get_global_func("distir.runtime.session_submit_queued")
        self._wait = tvm_ffi.get_global_func("distir.runtime.job_wait")
        self._times = tvm_ffi.get_global_func("distir.runtime.job_times")
        self._results = tvm_ffi.get_global_func("distir.runtime.job_results")
        self._failure = tvm_ffi.get_global_func("distir.runtime.session_failure")
        self._check_not_worker = tvm_ffi.get_global_func("distir.runtime.session_check_not_worker")
        self._is_stuck = False
        if announce is not None:
            announce(self)
        try:
            self._divide_cores()
            self.connect()
        except BaseException:
            self.close("it could not be started")
            raise

    def _divide_cores(self) -> None:
        """Gives each worker its share of the cores."""
        shares = [share_of_cores(rank, self.num_workers) for rank in range(self.num_workers)]
        self.run("divide cores", [CONFIGURE_CORES] * self.num_workers, shares)

    def run(
        self, name: str, functions: Sequence[Any], arguments: Sequence[Sequence[Any]]
    ) -> list[Any]:
        functions = [
            tvm_ffi.get_global_func(function) if isinstance(function, str) else function
            for function in functions
        ]

        def step() -> list[Any]:
            job = self._submit(self._native, name, functions, [list(a) for a in arguments])
            self._await(name, [job])
            return list(self._results(job))

        return self._in_turn(step)

    def run_programs(
        self,
        name: str,
        steps: Sequence[ProgramStep],
        finishers: Sequence[int] = (),
        timed: bool = False,
    ) -> list[StepOutcome]:
        return self._in_turn(lambda: self._run_programs(name, steps, finishers, timed))

    def _run_programs(
        self, name: str, steps: Sequence[ProgramStep], finishers: Sequence[int], timed: bool
    ) -> list[StepOutcome]:
        queued = [self._queued(step, finishers) for step in steps]
        return self._run_queued(name, steps, queued, timed)

    def repeated(self, name: str, steps: Sequence[ProgramStep]) -> Callable[[], list[StepOutcome]]:
        queued = [self._queued(step, ()) for step in steps]
        return lambda: self._in_turn(lambda: self._run_queued(name, steps, queued, False))

    def _queued(self, step: ProgramStep, finishers: Sequence[int]) -> _Queued:
        programs: list[Any] = [None] * self.num_workers
        arguments: list[list[Any]] = [[]] * self.num_workers
        continues: list[int | None] = [None] * self.num_workers
        for part in step.parts:
            native: _Bound = part.program.native
            for rank in part.program.ranks:
                programs[rank] = native.programs[rank]
                arguments[rank] = native.arguments(rank, self.device_ids[rank], part.inputs)
                continues[rank] = part.continues
        keeps = [rank for part in step.parts if part.keeps for rank in part.program.ranks]
        return _Queued(
            tvm_ffi.convert(programs),
            tvm_ffi.convert(arguments),
            continues,
            tvm_ffi.Shape(tuple(sorted(keeps))),
            [step.after.get(rank) for rank in range(self.num_workers)],
            tvm_ffi.Shape(tuple(finishers)),
        )

    def _run_queued(
        self, name: str, steps: Sequence[ProgramStep], queued: Sequence[_Queued], timed: bool
    ) -> list[StepOutcome]:
        jobs: list[Any] = []
        for index, (step, each) in enumerate(zip(steps, queued, strict=True)):
            if index == step.call and len(steps) == 1:
                jobs.append(self._submit(self._native, name, each.programs, each.arguments))
                continue
            jobs.append(
                self._submit_queued(
                    self._native,
                    name,
                    each.programs,
                    each.arguments,
                    None if step.call == index else jobs[step.call],
                    [None if of is None else jobs[of] for of in each.continues],
                    each.keeps,
                    [None if of is None else jobs[of] for of in each.after],
                    each.finishers,
                )
            )
        self._await(name, jobs)
        return [
            StepOutcome(
                self._leaves(step, self._results(job)),
                [(time[0], time[1], time[2]) for time in self._times(job)] if timed else None,
            )
            for step, job in zip(steps, jobs, strict=True)
        ]

    def _leaves(self, step: ProgramStep, results: Any) -> list[list[Mapping[int, Any]]]:
        """Returns the leaves of the workers' results by part, each by device."""
        found: list[list[Mapping[int, Any]]] = []
        for part in step.parts:
            if part.keeps:
                found.append([])
                continue
            devices = [self.device_ids[rank] for rank in part.program.ranks]
            by_rank = [list(flatten(results[rank])) for rank in part.program.ranks]
            check_equal_counts(part.program.name, devices, [len(each) for each in by_rank])
            found.append(
                [dict(zip(devices, leaf, strict=True)) for leaf in zip(*by_rank, strict=True)]
            )
        return found

    def _await(self, name: str, jobs: Sequence[Any]) -> None:
        """Waits for all workers, for each step as long as it may take; raises what one raised."""
        self._is_stuck = True
        try:
            self._is_stuck = not all(self._wait_until_done(job) for job in jobs)
        except BaseException as interruption:
            reason = f'"{name}" was interrupted by {type(interruption).__name__}'
            self._begin_to_close(reason)
            self._is_stuck = not self._wait(jobs[-1], GRACE)  # workers in collectives wake up
            raise
        failure = self._failure(self._native)
        if failure is not None:
            self.check_open()  # it fails because somebody closes the session
            error = WorkerError(dict(failure.items()))
            self._begin_to_close(str(error))
            raise error

    def _wait_until_done(self, job: Any) -> bool:
        """Waits for all workers, and returns whether they are done.

        If not, the session has failed, or a worker has stalled.
        """
        deadline = math.inf if self.timeout is None else time.monotonic() + self.timeout
        while (left := deadline - time.monotonic()) > 0:
            if self._wait(job, min(left, _WAIT_SLICE)):
                return True
            if self._failure(self._native) is not None:
                return bool(self._wait(job, UNWIND_LIMIT))
        assert self.timeout is not None
        why = stalled_message(self.timeout)
        num_running = tvm_ffi.get_global_func("distir.runtime.session_num_running")
        wait_for_one_running(lambda: num_running(self._native, job))
        tvm_ffi.get_global_func("distir.runtime.session_stalled")(self._native, job, why)
        return bool(self._wait(job, GRACE))

    def fetch(self, tensors: Mapping[int, Any]) -> Mapping[int, Any]:
        return {device: on_host(tensor) for device, tensor in tensors.items()}

    @property
    def is_this_process(self) -> bool:
        return True

    @property
    def shares_memory(self) -> bool:
        return True

    def share(self, file: MemoryFile, tensors: Mapping[int, Sequence[tuple[Any, int]]]) -> None:
        self._memory.put(file.path, (each for mine in tensors.values() for each in mine))

    def addresses(self, tensors: Mapping[int, Sequence[Any]]) -> Mapping[int, Addresses]:
        address = tvm_ffi.get_global_func("distir.runtime.address")
        return {
            device: Addresses(os.getpid(), [address(each) for each in mine])
            for device, mine in tensors.items()
        }

    def can_read(self, places: Sequence[tuple[int, int]]) -> bool:
        return can_read(places)

    def let_go_of_files(self) -> None:
        self._memory = MappedMemory()

    def load(self, exe: Any, module: Any) -> Any:
        record = tvm_ffi.get_global_func("distir.runtime.record_operator")
        everyone = range(self.num_workers)
        functions = ["distir.runtime.load_virtual_machine" for _ in everyone]
        return self.run("load", functions, [[module, record] for _ in everyone])

    def bind(
        self, machine: Any, name: str, devices: Sequence[int], takes: Sequence[Any]
    ) -> BoundProgram:
        ranks = tuple(sorted(self.rank_of[device] for device in devices))
        synchronized = tvm_ffi.get_global_func("distir.runtime.synchronized")
        places = [(at, each) for at, each in enumerate(takes) if isinstance(each, int)]
        programs, kept = {}, {}
        for rank in ranks:
            programs[rank] = synchronized(machine[rank][name])
            device = self.device_ids[rank]
            kept[rank] = [
                None if isinstance(each, int) else shard_for(device, each) for each in takes
            ]
        return BoundProgram(name, ranks, self.devices_of(ranks), _Bound(programs, kept, places))

    def hold(self, name: str, values: Sequence[Sequence[Any]]) -> list[list[Any]]:
        files = MappedFiles(self._memory)
        opened = [[files.native(each) for each in mine] for mine in values]
        keeper_of = tvm_ffi.get_global_func("distir.runtime.keeper_of")
        held = self.run(name, [keeper_of(each) for each in opened], [[]] * self.num_workers)
        return [list(each) for each in held]

    def keep(
        self, name: str, values: Sequence[Any], takers: Sequence[Takers]
    ) -> list[Mapping[int, Any]]:
        mine: list[list[Any]] = [[] for _ in self.device_ids]
        taken: list[list[int]] = [[] for _ in self.device_ids]
        for each in takers:
            for rank in each.ranks:
                taken[rank] = sorted(each.indices)
                mine[rank] = [shard_for(self.device_ids[rank], values[i]) for i in taken[rank]]
        found: list[dict[int, Any]] = [{} for _ in values]
        for device, indices, held in zip(
            self.device_ids, taken, self.hold(name, mine), strict=True
        ):
            for index, value in zip(indices, held, strict=True):
                found[index][device] = value
        return list(found)

    def _check_caller(self, action: str) -> None:
        self._check_not_worker(self._native, action)

    def _interrupt(self) -> None:
        # Workers that wait for others fail.
        abort = tvm_ffi.get_global_func("distir.runtime.session_abort")
        abort(self._native, self._reason or "the session is closed")

    def _end(self) -> None:
        """Joins the workers, or leaves those that are not done alone.

        A thread cannot be stopped; it stays until what it runs ends.
        """
        end = "distir.runtime.session_abandon" if self._is_stuck else "distir.runtime.session_close"
        tvm_ffi.get_global_func(end)(self._native)
        self._finalizer.detach()
        self._give_memory_back()
