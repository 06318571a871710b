"""Sessions own workers, and load executables on them that take and return global arrays.

A :class:`Session` owns workers, one per device id. A :class:`Model` is an executable on these
workers, with each worker's shards of the weights. Its functions take and return global arrays::

    with dx.Session(mesh) as session:
        model = session.load(executable, params={"w": w})
        y = model["main"](x).numpy()

Whatever the user gets wrong is one exception that names it, and leaves the session as it was. A
worker that fails ends the step on all workers, and closes the session, which can be restarted. A
session belongs to the process that has opened it: in a fork of that every call is a RuntimeError.
"""

from __future__ import annotations

import numbers
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from distir_ext.launch.finding import find_place
from distir_ext.mesh.frameworks import read_mesh
from distir_ext.mesh.mesh_axes import NamedMesh
from distir_ext.params.matching import Params, Rename
from distir_ext.session.function_calls import FunctionCalls, Origin
from distir_ext.session.model import Model, ModelFunction, load_again, load_model, origin_of
from distir_ext.session.sharded_array import ShardedArray
from distir_ext.session.statistics import (
    Statistics,
    Traffic,
    read_statistics,
    reset_statistics,
)
from distir_ext.session.worker_value import WorkerValue
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.workers import SUPPORTED_WORKERS
from distir_ext.workers.backends import find_backend, other_device
from distir_ext.workers.base import WorkerError, Workers, check_timeout
from distir_ext.workers.hosts.hosts import Hosts
from distir_ext.workers.hosts.ray_hosts import Ray
from distir_ext.workers.processes import ProcessWorkers
from distir_ext.workers.threads import ThreadWorkers

__all__ = [
    "Hosts",
    "Model",
    "ModelFunction",
    "Ray",
    "Session",
    "ShardedArray",
    "Statistics",
    "Traffic",
    "WorkerError",
    "WorkerValue",
]


class Session:
    """Workers that run programs together.

    Args:
        mesh_or_num_workers: A mesh (anything with ``device_ids``, or a mesh of JAX, PyTorch or
            NumPy), or a number of workers, which are devices 0, 1, ...
        ccl: The communication library, and so where programs run: ``"cpu"``, or ``"nccl"`` with
            a GPU for each worker: on each host, its GPUs in order (see docs/gpu.md). ``"mpi"`` is
            ``"cpu"`` with MPI between the copies of a script that MPI has started
            (docs/clusters.md), or with ``device="cuda"`` the same between their GPUs.
        workers: Kind of worker: ``"threads"`` of this process, ``"processes"`` of this host, each
            started fresh, or processes of several hosts: a :class:`Hosts`, or a :class:`Ray` for
            nodes of a Ray cluster. ``"auto"``: where a launcher has started several copies of the
            script (docs/clusters.md), processes of all of them, equally many each, as
            :meth:`Hosts.from_env` has it: the session is rank 0's, and the other copies do not go
            on behind this line; otherwise ``"threads"``.
        timeout: Limit of one call (or loading), in seconds; then it ends with a
            :class:`WorkerError` that names a worker that has stalled. None for no limit: workers
            that die, and collectives that can never complete, are found without one. Processes may
            take as long to start, but no less than 10 seconds; without a limit 300.
        imports: The module, or modules, that each worker process imports first, for the packed
            functions that they register. Threads see those of this process. Processes import TVM
            only if a module does, which takes each of them two seconds of processor time.
        bitwise: Whether sums of floats over workers of several hosts have the bits that they have
            on one: they are added in the order of the group. With False those of each host are
            added first, where hosts have several workers, and less is sent between hosts. All
            workers have the same result either way.
        device: Where programs run: ``"cuda"`` with ``ccl="mpi"``, a GPU for each worker: the GPUs
            that a copy of the script sees, in order. None: where ``ccl`` says.

    Raises:
        TypeError: the first argument is neither a mesh nor a number.
        ValueError: no devices, repeated devices, an unknown ``ccl`` or ``workers``, a
            ``device`` that ``ccl`` does not have, a bad ``timeout``, ``imports`` that are no names
            of modules, no token, devices that do not fit the hosts, or divide among the copies, or
            resources that no node of Ray has.
        ImportError: ``workers`` is a :class:`Ray`, and the extra ``ray`` is not installed.
        LauncherError: see :meth:`Hosts.from_env`.
        OSError: a file with a token cannot be read.
        SystemExit: this copy was not rank 0, and has served it until its end.
        RuntimeError: a worker process does not start; a host cannot be reached, or refuses; NCCL
            cannot be loaded, or a host has fewer GPUs than workers; there is no cluster of Ray, or
            it does not have what was asked for in time.
        WorkerError: workers cannot connect.
    """

    @short_tracebacks
    def __init__(
        self,
        mesh_or_num_workers: Any,
        ccl: str = "cpu",
        workers: str | Hosts | Ray = "threads",
        timeout: float | None = None,
        imports: str | Sequence[str] = (),
        bitwise: bool = True,
        device: str | None = None,
    ) -> None:
        device_ids = _device_ids(mesh_or_num_workers)
        self._device = other_device(ccl, device)
        _check_kind(workers)
        check_timeout(timeout)
        modules = [imports] if isinstance(imports, str) else list(imports)
        _check_modules(modules)
        self.ccl = ccl
        self.bitwise = bitwise
        self._stated_workers = workers
        self._timeout = timeout
        self._imports = modules
        self._named_meshes: dict[NamedMesh, None] = {}
        # Of what changes while other threads use the session; nothing is waited for with it. What
        # restarts has the other lock, and takes it first.
        self._lock = threading.RLock()
        self._restarts = threading.RLock()
        self._is_restarting = False
        self._num_closes = 0
        self._starting: Workers | None = None
        self._calls: weakref.WeakSet[FunctionCalls] = weakref.WeakSet()
        self._closes_before = 0
        self.workers, self._workers = self._start(workers, device_ids)
        self._starting = None

    def _start(
        self, stated: str | Hosts | Ray, device_ids: Sequence[int]
    ) -> tuple[str | Hosts | Ray, Workers]:
        """New workers, and what kind they are, of what was stated."""
        kind = _workers_of_launcher(len(device_ids), self.ccl) if stated == "auto" else stated
        if kind == "threads":
            find_backend(self.ccl).prepare()
            return kind, ThreadWorkers(device_ids, self.ccl, self._timeout, self._announce)
        hosts = kind if isinstance(kind, Hosts | Ray) else None
        return kind, ProcessWorkers(
            device_ids,
            self.ccl,
            self._timeout,
            self._imports,
            hosts,
            self.bitwise,
            self._device,
            self._announce,
        )

    def _announce(self, workers: Workers) -> None:
        """Registers workers that are starting, so that :meth:`close` ends them."""
        with self._lock:
            self._starting = workers
            is_late = self._num_closes != self._closes_before
        if is_late:
            workers.close()

    @property
    def device_ids(self) -> tuple[int, ...]:
        """The device ids, ascending; the worker of rank ``i`` is device ``device_ids[i]``."""
        return self._workers.device_ids

    @property
    def num_workers(self) -> int:
        """Number of workers, one per device id."""
        return self._workers.num_workers

    @property
    def closed(self) -> bool:
        """True if the session has ended, because it was closed or because a worker failed."""
        return not self._workers.is_open

    @short_tracebacks
    def load(
        self, exe: Any, params: Params = None, *, rename: Rename = None, strict: bool = True
    ) -> Model:
        """Hands an executable to all workers and cuts its weights.

        Weights on disk are never in memory as a whole: each worker reads its own shard. A load that
        takes long shows its progress on a terminal or in a notebook.

        Args:
            exe: Result of ``dx.build``: an executable (or its loaded module) with a
                ``distir_signature``; or the path of a library that it was exported to.
            params: Global arrays for the weights: by name, such as a torch ``state_dict``; pairs
                of name and array, such as ``nn.Module.export_tvm`` returns; in order, if all
                functions that have weights have the same; or in order by function, as
                ``relax.frontend.detach_params`` returns. Or the path of a file or directory that
                has them, on each host its own copy: of safetensors, one file or several with an
                index; of TVM's tensor cache or parameter file; or of what ``Model.save_shards``
                wrote. Or arrays on workers, such as ``Model.weights()`` of another session: each
                worker gets its part of their shards. A name may also be the weight's before an
                exporter rewrote it: ``fc1.weight`` for ``p_fc1_weight`` of torch.export.
            rename: From names in ``params`` to those of the weights: a function, or a dict in which
                names that stay may be left out. Where it gives several names, a list or tuple,
                they are tied: all of them get the same value.
            strict: Whether values that the executable has no weight for are an error.

        Returns:
            The executable's functions, ready to be called.

        Raises:
            TypeError: not an executable; a weight of a wrong dtype.
            OSError: a file cannot be read.
            ValueError: no signature, built for other devices than the workers', devices that the
                session lacks, a weight that is missing, not known, or of a wrong shape, or a file
                that is damaged.
            WorkerError: a worker failed; the session is closed.
            RuntimeError: the session is closed, or a function that the executable calls does not
                exist.
        """
        workers = self._workers
        workers.check_open()
        path = params if isinstance(params, str | os.PathLike) else None
        origin = Origin(exe, path, rename, strict)
        model, calls = load_model(workers, origin, params)
        with self._lock:
            workers.check_open()  # they may have been restarted without it
            self._calls.update(calls)
            # Of meshes with the same devices, the one that was loaded last names groups.
            self._named_meshes = {**dict.fromkeys(model.named_meshes), **self._named_meshes}
        return model

    @short_tracebacks
    def statistics(self) -> Statistics:
        """Returns the traffic of each device since the session began or was reset.

        Workers count it where programs call collectives: calls, bytes and messages by function,
        collective and group. Counting takes some ten nanoseconds for a collective and is always
        on. Bytes inside groups are those of the ring algorithm, as in
        :func:`distir_ext.analysis.estimate`, whatever the backend does: workers of one host that
        see each other's memory read it in place.

        Raises:
            RuntimeError: the session is closed.
            WorkerError: a worker is gone.
        """
        self._workers.check_open()
        return read_statistics(self._workers, self._named_meshes)

    @short_tracebacks
    def bytes_between_hosts(self) -> dict[int, int]:
        """Returns the bytes that each device has sent to other hosts since the session began.

        Workers count it where messages leave their host, over TCP or MPI, without headers. MPI does
        not say what its own collectives send: of them it is the least that they can. It is zero on
        one host, and with NCCL.

        Returns:
            Bytes by device id.

        Raises:
            RuntimeError: the session is closed.
            WorkerError: a worker is gone.
        """
        self._workers.check_open()
        count = ["distir.runtime.bytes_to_hosts"] * self.num_workers
        sent = self._workers.run("bytes between hosts", count, [[]] * self.num_workers)
        return dict(zip(self.device_ids, map(int, sent), strict=True))

    @short_tracebacks
    def reset_statistics(self) -> None:
        """Lets :meth:`statistics` begin from zero.

        Raises:
            RuntimeError: the session is closed.
            WorkerError: a worker is gone.
        """
        self._workers.check_open()
        reset_statistics(self._workers)

    @short_tracebacks
    def restart(
        self,
        params: Mapping[Model, Params] | None = None,
        *,
        workers: str | Hosts | Ray | None = None,
    ) -> float:
        """Starts new workers for the same devices, with all that was loaded, after a WorkerError.

        Models, their functions and pipelines go on as before, on the new workers: executables are
        handed on as they are, and weights are read again from the files that they came from.
        Arrays on the old workers, and counts of :meth:`statistics`, are gone. Models that nobody
        refers to any more are not loaded. A session that is open is closed first.

        Args:
            params: The weights of models that were given arrays, which a session does not keep, as
                for :meth:`load`; and other weights for others.
            workers: Workers from now on, such as the hosts that are left, or another one
                in place of one that is lost; None: as before.

        Returns:
            How long it took, in seconds.

        Raises:
            TypeError: ``params`` is no dict by model.
            ValueError: a model was given arrays, and is not in ``params``; names its functions. Or
                a model is of another session. Nothing was done then.
            RuntimeError: workers do not start, as for a new session. The session is closed then,
                and may be restarted, as after all errors of :meth:`load`.
        """
        if not self._workers.belongs_here:
            self._workers.check_open()
        if workers is not None:
            _check_kind(workers)
        given = _params_by_origin(params or {})
        begin = time.monotonic()
        with self._restarts:
            if self._is_restarting:
                raise RuntimeError(
                    "the session is being restarted by this thread, which a signal handler or a "
                    "finalizer has interrupted"
                )
            self._is_restarting = True
            try:
                self._restart(given, self._stated_workers if workers is None else workers)
            finally:
                self._is_restarting = False
                self._starting = None
        return time.monotonic() - begin

    def _restart(self, given: Mapping[Origin, Params], stated: str | Hosts | Ray) -> None:
        functions: dict[Origin, list[FunctionCalls]] = {}
        with self._lock:
            self._closes_before = self._num_closes
            for calls in self._calls:
                functions.setdefault(calls.origin, []).append(calls)
        if any(origin not in functions for origin in given):
            raise ValueError("params= has a model that this session has not loaded")
        for origin, all_calls in functions.items():
            if (
                origin.path is None
                and origin not in given
                and any(calls.spec.weights for calls in all_calls)
            ):
                names = ", ".join(sorted(f'"{each.spec.name}"' for each in all_calls))
                raise ValueError(
                    f"the weights of the model with {names} were given as arrays, which a session "
                    "does not keep: give them again, restart({model: weights})"
                )
        self._workers.close("it was restarted")
        kind, started = self._start(stated, self._workers.device_ids)
        try:
            loaded = {
                origin: load_again(started, origin, given.get(origin, origin.path))
                for origin in functions
            }
            with self._lock:
                if self._num_closes != self._closes_before:
                    raise RuntimeError("the session is closed")
                for origin, all_calls in functions.items():
                    for calls in all_calls:
                        calls.adopt(loaded[origin][calls.spec.name])
                self._stated_workers, self.workers, self._workers = stated, kind, started
        except BaseException:
            started.close("it could not be restarted")
            raise

    def close(self) -> None:
        """Ends the workers and waits for their end. Closing twice is harmless.

        Calls and loads of other threads, and a restart, fail with a RuntimeError: the session is
        closed. Of a signal handler or a finalizer that has interrupted a call of the same thread,
        nothing is waited for: the workers end with that call.
        """
        with self._lock:
            self._num_closes += 1
            starting, workers = self._starting, self._workers
        if starting is not None and starting is not workers:
            starting.close()
        workers.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return (
            f"<Session devices={list(self.device_ids)} ccl={self.ccl!r} "
            f"workers={self.workers!r} {state}>"
        )


def _workers_of_launcher(num_devices: int, ccl: str) -> str | Hosts:
    """Resolves ``workers="auto"``."""
    place = find_place()
    if place is None or place.size == 1:
        return "threads"
    if num_devices % place.size != 0:
        raise ValueError(
            f"{num_devices} devices do not divide among {place.size} copies of this script: {place}"
        )
    return Hosts.from_env(ccl=ccl)


def _params_by_origin(params: Mapping[Model, Params]) -> dict[Origin, Params]:
    found = {}
    for model, values in params.items():
        if not isinstance(model, Model):
            raise TypeError(
                f"params= of restart is a dict of weights by model, not by {type(model).__name__}"
            )
        origin = origin_of(model)
        if origin is not None:
            found[origin] = values
    return found


def _check_kind(workers: Any) -> None:
    if not isinstance(workers, Hosts | Ray) and workers not in (*SUPPORTED_WORKERS, "auto"):
        raise ValueError(
            f"workers={workers!r} is not supported; known are {list(SUPPORTED_WORKERS)}, "
            "'auto', Hosts([...]) and Ray(...)"
        )


def _check_modules(names: Sequence[Any]) -> None:
    for name in names:
        if not isinstance(name, str) or not name or name.startswith("."):
            raise ValueError(
                f"imports= has {name!r}, which is not the whole name of a module, such as "
                "'package.module'"
            )


def _device_ids(mesh_or_num_workers: Any) -> list[int]:
    if isinstance(mesh_or_num_workers, numbers.Integral) and not isinstance(
        mesh_or_num_workers, bool
    ):
        count = int(mesh_or_num_workers)
        if count < 1:
            raise ValueError(f"a session needs at least one worker, not {count}")
        return list(range(count))
    mesh = read_mesh(mesh_or_num_workers) or mesh_or_num_workers
    if not hasattr(mesh, "device_ids"):
        raise TypeError(
            "a session needs a mesh or a number of workers, not "
            f"{type(mesh_or_num_workers).__name__}"
        )
    ids = sorted(int(device) for device in mesh.device_ids)
    if not ids:
        raise ValueError("the mesh has no devices")
    repeated = sorted({device for device in ids if ids.count(device) > 1})
    if repeated:
        raise ValueError(f"the mesh has devices more than once: {repeated}")
    return ids
