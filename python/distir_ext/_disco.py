"""TVM's disco underneath a session: what the wheel needs mended, and running steps on workers.

Disco is TVM's runtime for several workers. Everything that this package needs to know about it is
here and in the native ``src/runtime/session.cc``:

- In the released wheel ``tvm.runtime.disco`` is None, because its Python part is imported before
  the library that implements it; :func:`load_disco` imports it again.
- Disco ends the process when a function that it runs on a worker throws. Workers therefore run
  nothing but the native ``distir.runtime.guarded_call``, which catches, records and passes on.
- Disco's queues carry numbers and strings. Functions, arrays and results of workers that are
  threads are handed over inside the process, as a job.
- Each worker has its own pool of threads for parallel kernels, by default as large as the machine.
"""

from __future__ import annotations

import importlib
import os
import sys
import weakref
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import psutil
import tvm_ffi

# Global functions that a first, failed import of tvm.runtime.disco leaves behind; registering them
# again would fail.
_LEFT_BEHIND = (
    "runtime.disco.create_process_pool",
    "runtime.disco.create_socket_session_local_workers",
    "runtime.disco._configure_structlog",
    "runtime.disco._import_python_module",
)

# tvm::runtime::threading::ThreadGroup::AffinityMode: threads share the given cores.
_THREADS_SHARE_CORES = -3

# How long the controller waits without looking for a KeyboardInterrupt, in seconds.
_WAIT_SLICE = 0.2


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


class WorkerError(RuntimeError):
    """A worker failed; the session it belonged to is closed.

    Attributes:
        worker: Rank of the worker in its session.
        device: Device id of the worker.
        function: Name of the function that the session ran.
        operator: Name of the operator inside it that failed, empty if none was running.
        kind: Kind of the worker's error, such as ``"ValueError"``.
        backtrace: Where the worker's error was raised, as text.
    """

    def __init__(self, failure: dict[str, Any]) -> None:
        self.worker: int = int(failure["worker"])
        self.device: int = int(failure["device"])
        self.function: str = str(failure["function"])
        self.operator: str = str(failure["operator"])
        self.kind: str = str(failure["kind"])
        self.backtrace: str = str(failure["backtrace"])
        where = f' in operator "{self.operator}"' if self.operator else ""
        super().__init__(
            f'worker {self.worker} (device {self.device}) failed in "{self.function}"{where}: '
            f"{self.kind}: {failure['message']}"
        )


def _allowed_cores() -> list[int]:
    """Ids of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _kernel_cores() -> list[int]:
    """Ids of the cores that kernels should use.

    As many as there are physical ones, or as the environment variables that TVM reads say.
    """
    cores = _allowed_cores()
    limit = os.environ.get("TVM_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")
    if limit is not None and limit.isdigit():
        return cores[: max(1, int(limit))]
    return cores[: psutil.cpu_count(logical=False) or len(cores)]


class Workers:
    """The workers of one session and the steps that they run, in order.

    Args:
        device_ids: Ascending device ids; the worker of rank ``i`` is device ``device_ids[i]``.
        ccl: Name of the communication backend.
        workers: What a worker is; ``"threads"`` of this process.

    Raises:
        ValueError: an unknown backend or kind of worker.
    """

    def __init__(self, device_ids: Sequence[int], ccl: str, workers: str) -> None:
        load_disco()
        native = tvm_ffi.get_global_func("distir.runtime.session_open")(
            workers, tvm_ffi.Shape(tuple(device_ids)), ccl
        )
        self.device_ids = tuple(device_ids)
        self.num_workers = len(self.device_ids)
        self.device_type = int(
            tvm_ffi.get_global_func("distir.runtime.session_device_type")(native)
        )
        self._native = native
        self._closed_because: str | None = None
        # Joins the threads if nobody closes the session, at the latest when the process ends.
        self._finalizer = weakref.finalize(
            self, tvm_ffi.get_global_func("distir.runtime.session_close"), native
        )
        self._submit = tvm_ffi.get_global_func("distir.runtime.session_submit")
        self._wait = tvm_ffi.get_global_func("distir.runtime.job_wait")
        self._results = tvm_ffi.get_global_func("distir.runtime.job_results")
        self._failure = tvm_ffi.get_global_func("distir.runtime.session_failure")
        self._divide_cores()

    def _divide_cores(self) -> None:
        """Gives each worker's kernels its share of the cores, so that pools do not compete."""
        cores = _kernel_cores()
        share = max(1, len(cores) // self.num_workers)
        configure = tvm_ffi.get_global_func("runtime.config_threadpool")
        set_affinity = tvm_ffi.get_global_func("tvm.runtime.threading.set_current_thread_affinity")
        pools = []
        for rank in range(self.num_workers):
            first = rank * share % len(cores)
            mine = [str(core) for core in cores[first : first + share]]
            pools.append([_THREADS_SHARE_CORES, share, mine])
        self.run("configure threads", [configure] * self.num_workers, pools)
        # Configuring a pool also pins the worker's own thread, which may wait on a busy core then.
        everywhere = [tvm_ffi.Shape(tuple(_allowed_cores()))]
        self.run("free threads", [set_affinity] * self.num_workers, [everywhere] * self.num_workers)

    @property
    def closed_because(self) -> str | None:
        """Why the workers are gone; None while they are there."""
        return self._closed_because

    def check_open(self) -> None:
        """Raises RuntimeError, with the reason, if the workers are gone."""
        if self._closed_because is not None:
            raise RuntimeError(f"the session is closed: {self._closed_because}")

    def run(
        self, name: str, functions: Sequence[Any], arguments: Sequence[Sequence[Any]]
    ) -> list[Any]:
        """Runs one function on each worker and waits for all of them.

        Args:
            name: What messages call this step.
            functions: Per rank a function, or None if the worker has nothing to do.
            arguments: Per rank its arguments; native shards among them are cut by the worker.

        Returns:
            Per rank what its function returned.

        Raises:
            WorkerError: a worker raised; the workers are closed.
            RuntimeError: the workers were closed before.
        """
        self.check_open()
        job = self._submit(self._native, name, list(functions), [list(a) for a in arguments])
        try:
            while not self._wait(job, _WAIT_SLICE):
                pass
        except BaseException as interruption:
            reason = f'"{name}" was interrupted by {type(interruption).__name__}'
            tvm_ffi.get_global_func("distir.runtime.session_abort")(self._native, reason)
            self.close(reason)
            raise
        failure = self._failure(self._native)
        if failure is not None:
            error = WorkerError(dict(failure.items()))
            self.close(str(error))
            raise error
        return list(self._results(job))

    def close(self, reason: str = "it was closed") -> None:
        """Ends the workers and joins their threads; the first reason given is kept."""
        if self._closed_because is None:
            self._closed_because = reason
        self._finalizer()
