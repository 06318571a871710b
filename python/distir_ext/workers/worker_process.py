"""Main loop of a worker process: reads steps from its channel and runs them.

What the controller can ask for, each answered with a frame. All workers that do the same are sent
the same, and answer the same where they can:

- first ``{"device_ids", "host_of", "machine_of", "ccl", "session", "bitwise",
  "device"}``, with the host of each rank, as a number, and by that number the machine that it is;
  the answer is ``{"ready": true, "clock", "device_type"}``, with the name of the clock of its
  times, or ``{"refused"}`` with the reason why it cannot be a worker;
- ``{"step", "name", "command", ...}``, the worker's part of a step, with the commands ``idle``,
  ``call`` (a global function), ``load`` (an executable), ``bind`` (a function of a machine with the
  arguments that it takes each time; a number stands for an argument of a run) and ``program`` (run
  what was bound). The answer is ``{"step", "result"}``, and ``"times"`` if they are asked for; with
  ``"keep"`` the results stay here: one object, or the fields or leaves of an array. Each is named
  by the step and its index, until it is among those that the controller has released. With
  ``"rest"`` all stays for the step that ``"continues"`` this one, by its number;
- ``{"fetch"}``, a name; the answer is ``{"tensor"}``;
- ``{"share", "tensors", "begins"}``, the path of a file in memory, names of tensors, and from which
  of its bytes on each of them is written; the answer is ``{"shared": true}``;
- ``{"addresses"}``, names of tensors; the answer is ``{"addresses"}``, where they begin in memory;
- ``{"can_read"}``, pairs of a process and an address; the answer is ``{"can_read"}``, whether this
  process can read all of these bytes;
- ``{"params"}``, a path on this host; the answer is ``{"params"}``, where on disk each array of it
  is, or ``{"refused"}`` with the reason and whether the system gave it.

Instead of any of them there may be ``{"failure"}``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import tvm_ffi

from distir_ext.native.executables import unpack
from distir_ext.native.machine.cores import CONFIGURE_CORES, cores_of_worker
from distir_ext.params.checkpoint import open_params
from distir_ext.params.memory_file import MappedMemory
from distir_ext.params.parts import StoredPart
from distir_ext.params.process_memory import can_read
from distir_ext.params.stored_array import MappedFiles
from distir_ext.signature.flattening import flatten
from distir_ext.text.printable import printable, shortened
from distir_ext.wire.byte_stream import Stream
from distir_ext.wire.channel import (
    LONGEST_FAILURE,
    ChannelClosedError,
    Frame,
    FrameWriter,
    Held,
    receive,
    send,
)
from distir_ext.workers.backends import find_backend, prepare_gpus
from distir_ext.workers.start import import_all

# Elements of a result that is sent with the answer: one more message costs more. Of all workers
# together it is no more than those of sixteen.
_SMALL = 4096
_SMALL_OF_ALL = 16 * _SMALL


@dataclass(frozen=True)
class _Place:
    """Rank, device and neighbours of a worker.

    Attributes:
        rank: Rank of the worker.
        device: Device of the worker.
        neighbours: Ranks of the workers of its host.
        machine: Ranks of the workers of all hosts on its machine.
        hosts: Number of hosts on its machine.
        most_sent: Most elements of a result that it sends with an answer.
    """

    rank: int
    device: int
    neighbours: list[int]
    machine: list[int]
    hosts: int
    most_sent: int


def _place_of(rank: int, hello: dict[str, Any]) -> _Place:
    host_of, machine_of = list(hello["host_of"]), list(hello["machine_of"])
    machine = machine_of[host_of[rank]]
    return _Place(
        rank,
        hello["device_ids"][rank],
        [other for other, host in enumerate(host_of) if host == host_of[rank]],
        [other for other, host in enumerate(host_of) if machine_of[host] == machine],
        machine_of.count(machine),
        max(1, min(_SMALL, _SMALL_OF_ALL // len(host_of))),
    )


@dataclass(frozen=True)
class _Bound:
    """A function with the arguments that it takes each time; numbers stand for those of a run."""

    function: Any
    takes: list[Any]

    def arguments(self, given: Sequence[Any]) -> list[Any]:
        """Those of a run."""
        return [given[each] if isinstance(each, int) else each for each in self.takes]


class _Worker:
    def __init__(self, stream: Stream, native: Any, place: _Place) -> None:
        self._stream = stream
        self._native = native
        self._place = place
        self._device = tvm_ffi.get_global_func("distir.runtime.process_worker_device")(native)
        self._on_host = self._device.dlpack_device_type() == tvm_ffi.DLDeviceType.kDLCPU
        self._held: dict[int, dict[int, Any]] = {}  # by step and index
        self._kept: dict[int, Any] = {}  # by step, for the one that continues it
        self._memory = MappedMemory()
        self._complete = tvm_ffi.get_global_func("distir.runtime.synchronized")
        self._run = tvm_ffi.get_global_func("distir.runtime.process_worker_run")
        self._failure = tvm_ffi.get_global_func("distir.runtime.process_worker_failure")

    @property
    def device_type(self) -> int:
        """DLPack type of the device that its tensors lie on."""
        return int(self._device.dlpack_device_type())

    def serve(self) -> None:
        """Answers until the controller is gone."""
        while True:
            try:
                request = receive(self._stream, self._new_argument)
            except (ValueError, MemoryError) as error:
                self._fail("receive", error)
                FrameWriter(self._failure_frame().pieces).write(self._stream)
                self._wait_for_the_end()
                return
            self._release(list(request.get("release", ())))
            try:
                frame = Frame(self._answer(request))
            except Exception as error:  # what the step itself raises does not come here
                self._fail(request["name"], error)
            self._memory.end_step()
            if self._failure(self._native) is not None:
                frame = self._failure_frame()
            FrameWriter(frame.pieces).write(self._stream)
            del request, frame

    def _failure_frame(self) -> Frame:
        failure = {
            name: shortened(str(each), LONGEST_FAILURE) if isinstance(each, str) else each
            for name, each in self._failure(self._native).items()
        }
        return Frame({"failure": failure})

    def _wait_for_the_end(self) -> None:
        """Waits until the controller, which hears of a failure, has ended the channel."""
        rest = memoryview(bytearray(1 << 16))
        with contextlib.suppress(OSError):
            while self._stream.recv_into(rest):
                pass

    def _release(self, names: list[int]) -> None:
        """Forgets things, named by step and index in turns; others may have them."""
        for step, index in zip(names[::2], names[1::2], strict=True):
            held = self._held.get(step)
            if held is not None:
                held.pop(index, None)
                if not held:
                    del self._held[step]

    def leave(self) -> None:
        """Gives back what it has: tensors, and connections to other workers."""
        self._held.clear()
        self._kept.clear()
        tvm_ffi.get_global_func("distir.runtime.process_worker_leave")(self._native)

    def _new_argument(self, shape: tuple[int, ...], dtype: str) -> Any:
        new = tvm_ffi.get_global_func("distir.runtime.process_worker_new_argument")
        return new(self._native, tvm_ffi.Shape(shape), dtype)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "fetch" in request:
            return {"tensor": self._find(request["fetch"])}
        if "share" in request:
            tensors = [self._find(each) for each in request["tensors"]]
            self._memory.put(Path(request["share"]), zip(tensors, request["begins"], strict=True))
            return {"shared": True}
        if "addresses" in request:
            address = tvm_ffi.get_global_func("distir.runtime.address")
            found = tuple(address(self._find(each)) for each in request["addresses"])
            return {"addresses": tvm_ffi.Shape(found)}
        if "can_read" in request:
            return {"can_read": can_read((each[0], each[1]) for each in request["can_read"])}
        if "params" in request:
            return _open_params(request["params"])
        # For as long as the step runs, which cuts what is opened.
        files = MappedFiles(self._memory)
        arguments = [files.native(self._find(each)) for each in request["arguments"]]
        step = request["step"]
        function = self._function(request)
        if isinstance(function, _Bound):
            arguments = function.arguments(arguments)
            function = function.function
        if request.get("continues") is not None:
            arguments += self._kept.pop(request["continues"]) or ()
        result, *times = self._run(
            self._native, step, request["call"], request["name"], function, arguments
        )
        keep = request["keep"]
        if request["command"] == "bind":
            result = self._bind(request)
        if keep == "rest":
            self._kept[step], result = result, None
        elif keep == "object":
            result = self._keep(step, 0, result)
        elif keep == "fields":  # None if the step has failed
            wanted = request["indices"] or range(len(result or ()))
            fields = zip(wanted, result or (), strict=True)
            result = [self._keep(step, index, each) for index, each in fields]
        elif keep == "leaves":
            leaves = enumerate(flatten(result))
            result = [self._keep_leaf(step, index, leaf) for index, leaf in leaves]
        answer = {"step": step, "result": result}
        return {**answer, "times": times} if request.get("timed") else answer

    def _keep(self, step: int, index: int, value: Any) -> dict[str, Any]:
        self._held.setdefault(step, {})[index] = value
        if not isinstance(value, tvm_ffi.Tensor):
            return {}
        return {"shape": tvm_ffi.Shape(tuple(value.shape)), "dtype": str(value.dtype)}

    def _keep_leaf(self, step: int, index: int, value: Any) -> Any:
        """An object stays, a small tensor is sent along; what else it may be is sent."""
        if not isinstance(value, tvm_ffi.Object | tvm_ffi.Tensor):
            return value
        description = self._keep(step, index, value)
        if isinstance(value, tvm_ffi.Tensor) and prod(value.shape) <= self._place.most_sent:
            description["value"] = value
        return description

    def _function(self, request: dict[str, Any]) -> Any:
        commands: dict[str, Callable[[], Any]] = {
            "idle": lambda: None,
            "call": lambda: tvm_ffi.get_global_func(request["function"]),
            "program": lambda: self._find(request["program"]),
            "bind": lambda: None,  # after it, by the worker itself
            "load": lambda: tvm_ffi.convert(lambda: _load(request["executable"])),
        }
        return commands[request["command"]]()

    def _bind(self, request: dict[str, Any]) -> _Bound:
        function = self._complete(self._find(request["machine"])[request["function"]])
        return _Bound(function, [self._find(each) for each in request["takes"]])

    def _find(self, value: Any) -> Any:
        if isinstance(value, Held):
            return self._held[value.step][value.index]
        if isinstance(value, StoredPart):
            return value.box(self._place.device)
        if isinstance(value, list):
            return [self._find(each) for each in value]
        if not self._on_host and isinstance(value, tvm_ffi.Tensor):
            return tvm_ffi.get_global_func("distir.runtime.process_worker_to_device")(
                self._native, value
            )
        return value

    def _fail(self, name: str, error: Exception) -> None:
        fail = tvm_ffi.get_global_func("distir.runtime.process_worker_fail")
        backtrace = "".join(traceback.format_exception(error))
        texts = (type(error).__name__, str(error), backtrace)
        fail(self._native, name, *map(printable, texts))


def _open_params(path: str) -> dict[str, Any]:
    try:
        return {"params": dict(open_params(path))}
    except (OSError, ValueError) as error:
        return {"refused": str(error), "of_system": isinstance(error, OSError)}


def _load(executable: dict[str, Any]) -> Any:
    load = tvm_ffi.get_global_func("distir.runtime.load_virtual_machine")
    record = tvm_ffi.get_global_func("distir.runtime.record_operator")
    try:
        return load(unpack(executable), record)
    except Exception:
        # A few of TVM's functions are written in Python, such as that of relax.op.print.
        if not import_all():
            raise
        return load(unpack(executable), record)


def main(
    rank: int,
    channel: int,
    board: int,
    parent: int,
    peers: Mapping[str, int],
    keys: int,
    imports: Sequence[str],
) -> None:
    """Runs the worker and ends the process.

    Args:
        rank: Of the worker.
        channel: Descriptor of the stream to the controller, or to the agent of this host.
        board: Descriptor of the shared memory of the session's workers on this host.
        parent: The process that has started this one; they end together.
        peers: Descriptors of connections to workers of other hosts, by rank.
        keys: Descriptor of a file of the keys that encrypt these, by rank, in hexadecimal.
        imports: Names of modules that are imported first.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller sees it and ends the session
    exit_with = tvm_ffi.get_global_func("distir.runtime.exit_with_controller")
    exit_with(channel, parent, tvm_ffi.Shape(tuple(peers.values())))
    os.lseek(keys, 0, os.SEEK_SET)
    with os.fdopen(keys, "rb") as file:
        found = json.load(file)
    serve(rank, Stream(socket.socket(fileno=channel)), board, peers, found, imports)
    for written in (sys.stdout, sys.stderr):
        if written is not None:
            written.flush()
    os._exit(0)  # whatever threads still run


def serve(
    rank: int,
    stream: Stream,
    board: int,
    peers: Mapping[str, int],
    keys: Mapping[str, str],
    imports: Sequence[str],
) -> None:
    """Makes this thread the worker that a controller says it is, until that is gone.

    Args:
        rank: Of the worker.
        stream: The channel to the controller.
        board: As for :func:`main`; the descriptor is taken over.
        peers: As well.
        keys: Keys that encrypt these, by rank, in hexadecimal.
        imports: As well.
    """
    worker = None
    with contextlib.suppress(ChannelClosedError):
        hello = receive(stream)
        worker, answer = _begin(rank, stream, board, peers, keys, imports, hello)
        send(stream, answer)
        if worker is not None:
            worker.serve()
    if worker is not None:
        worker.leave()


def _clock() -> str:
    """Names the clock of this process's times: that of its host, since it was started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _begin(
    rank: int,
    stream: Stream,
    board: int,
    peers: Mapping[str, int],
    keys: Mapping[str, str],
    imports: Sequence[str],
    hello: dict[str, Any],
) -> tuple[_Worker | None, dict[str, Any]]:
    """The worker, unless it cannot be one, and what the controller is told."""
    place = _place_of(rank, hello)
    try:
        _prepare(imports, hello, place)
    except Exception as error:
        said = "".join(traceback.format_exception(error))
        return None, {"failure": shortened(said, LONGEST_FAILURE)}
    try:
        worker = _Worker(stream, _enter(hello, place, board, peers, keys), place)
    except Exception as error:
        return None, {"refused": shortened(f"{type(error).__name__}: {error}", LONGEST_FAILURE)}
    return worker, {"ready": True, "clock": _clock(), "device_type": worker.device_type}


def _prepare(imports: Sequence[str], hello: dict[str, Any], place: _Place) -> None:
    """Loads what the worker needs, and takes its part of the cores."""
    for module in imports:
        importlib.import_module(module)
    backend = find_backend(hello["ccl"])  # one of those modules may register it
    on_gpu = hello["device"] == "cuda"
    if backend.needs_tvm or on_gpu:
        import_all()
    share = cores_of_worker(place.rank, place.neighbours, place.machine, place.hosts)
    tvm_ffi.get_global_func(CONFIGURE_CORES)(*share)
    backend.prepare()
    if on_gpu:
        prepare_gpus()


def _enter(
    hello: dict[str, Any],
    place: _Place,
    board: int,
    peers: Mapping[str, int],
    keys: Mapping[str, str],
) -> Any:
    """Makes this thread the worker that the controller says it is."""
    device_ids = hello["device_ids"]
    sockets = [peers.get(str(other), -1) for other in range(len(device_ids))] if peers else []
    return tvm_ffi.get_global_func("distir.runtime.process_worker")(
        board,
        place.rank,
        device_ids,
        tvm_ffi.Shape(tuple(sockets)),
        [bytes.fromhex(keys.get(str(other), "")) for other in range(len(sockets))],
        tvm_ffi.Shape(tuple(place.neighbours)),
        hello["ccl"],
        hello["host_of"],
        hello["session"],
        hello["bitwise"],
        hello["device"],
    )
