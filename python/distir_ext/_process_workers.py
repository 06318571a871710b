"""Workers that are processes of this host, each started fresh; the controller's side.

Each worker has a channel of its own to the controller (``_channel``, a pair of Unix sockets), and
all have one shared memory for their collectives, which the controller maps too: there it sees what
each of them is doing, and can end what waits. A worker that fails, ends or takes too long ends the
step on all workers, within a second; then they are killed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi

from distir_ext._channel import ChannelClosedError, Frame, FrameReader, Held
from distir_ext._disco import divide_cores
from distir_ext._executables import pack
from distir_ext._workers import WorkerError, Workers, stalled_message

# A terminal's Ctrl-C is for the controller, so workers are another group of processes. They are in
# its session: Linux shares cores among sessions first (autogroups), so that a worker that yields to
# a peer in another one would go on itself.
_START = (
    "import json, os, sys; os.setpgid(0, 0); sys.path[:] = json.loads(sys.argv[1]);"
    "from distir_ext._worker_process import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)

# How long a worker may take until it is ready, in seconds: it imports TVM.
_START_LIMIT = 300.0

# How long the first failure is waited for after another one, and a worker's end, in seconds.
_UNWIND_LIMIT = 1.0


@dataclass
class _Process:
    """One worker's process and channel."""

    process: subprocess.Popen[bytes]
    stream: socket.socket
    released: list[int] = field(default_factory=list)


class RemoteObject:
    """An object that a worker holds for as long as this one lives."""

    def __init__(self, number: int, released: list[int]) -> None:
        self.number = number
        weakref.finalize(self, released.append, number).atexit = False


class RemoteTensor(RemoteObject):
    """A tensor that a worker holds.

    Args:
        number: What the worker calls it.
        released: Numbers that the worker may forget.
        workers: Who fetch it.
        rank: The worker.
        description: Its shape and dtype, and its value if that is known already.
    """

    def __init__(
        self,
        number: int,
        released: list[int],
        workers: ProcessWorkers,
        rank: int,
        description: dict[str, Any],
    ) -> None:
        super().__init__(number, released)
        self.shape: Any = description["shape"]
        self.dtype: str = description["dtype"]
        self.value = description.get("value")
        self._workers = workers
        self._device = workers.device_ids[rank]

    def numpy(self) -> Any:
        """Its elements, as a NumPy array."""
        return self._workers.fetch({self._device: self})[self._device].numpy()


@dataclass(frozen=True)
class _Program:
    machine: RemoteObject
    name: str


class ProcessWorkers(Workers):
    """Workers that are processes.

    Args:
        device_ids: Ascending device ids; the worker of rank ``i`` is device ``device_ids[i]``.
        ccl: Name of the communication library; ``"cpu"``.
        timeout: How long a step may take, in seconds; None for no limit.
        imports: Names of modules that each worker imports first.

    Raises:
        ValueError: bad device ids, or a library that is for threads only.
        RuntimeError: a worker can not be started.
    """

    def __init__(
        self,
        device_ids: Sequence[int],
        ccl: str,
        timeout: float | None = None,
        imports: Sequence[str] = (),
    ) -> None:
        super().__init__(device_ids, timeout)
        if ccl != "cpu":
            raise ValueError(f"ccl={ccl!r} has no workers that are processes; there is ['cpu']")
        for device in self.device_ids:
            if device < 0:
                raise ValueError(f"device id {device} is negative")
        board = tvm_ffi.get_global_func("distir.runtime.process_board")
        self._board: Any = board(self.num_workers)
        self._processes: list[_Process] = []
        # Ends the processes if nobody closes the session, at the latest when this process ends.
        self._finalizer = weakref.finalize(self, _end, self._processes, os.getpid())
        self._mutex = threading.RLock()
        self._next_step = 1
        try:
            for _ in self.device_ids:
                self._processes.append(self._start())
            self._greet(imports)
            divide_cores(self)
        except BaseException:
            self.close("it could not be started")
            raise

    def _start(self) -> _Process:
        if not sys.executable:
            raise RuntimeError("worker processes need sys.executable, Python's interpreter")
        board = tvm_ffi.get_global_func("distir.runtime.process_board_descriptor")(self._board)
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path), str(theirs.fileno()),
                 str(board)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), board),
            )  # fmt: skip
        ours.setblocking(False)
        return _Process(process, ours)

    def _greet(self, imports: Sequence[str]) -> None:
        frames: list[Frame | None] = [
            Frame(
                {
                    "rank": rank,
                    "device_ids": list(self.device_ids),
                    "controller": os.getpid(),
                    "imports": list(imports),
                }
            )
            for rank in range(self.num_workers)
        ]
        exchange = self._exchange(frames, time.monotonic() + _START_LIMIT)
        for rank, answer in enumerate(exchange.answers):
            if rank in exchange.lost:
                raise RuntimeError(f"worker {rank} did not start: {self._how_it_ended(rank)}")
            if answer is None:
                raise RuntimeError(f"worker {rank} did not start within {_START_LIMIT:g} seconds")
            if "failure" in answer:
                raise RuntimeError(f"worker {rank} did not start:\n{answer['failure']}")

    def run(
        self, name: str, functions: Sequence[Any], arguments: Sequence[Sequence[Any]]
    ) -> list[Any]:
        return self._run(name, [_command(each) for each in functions], arguments)

    def run_programs(
        self, name: str, programs: Sequence[Any], arguments: Sequence[Sequence[Any]]
    ) -> list[list[Any]]:
        commands = [_command(each) for each in programs]
        return self._kept(self._run(name, commands, arguments, "leaves"))

    def fetch(self, tensors: Mapping[int, Any]) -> Mapping[int, Any]:
        missing = [device for device, each in tensors.items() if each.value is None]
        found = {device: each.value for device, each in tensors.items()}
        if missing:
            ranks = {device: self.device_ids.index(device) for device in missing}
            messages: list[Any] = [None] * self.num_workers
            for device, rank in ranks.items():
                messages[rank] = {"fetch": tensors[device].number}
            answers = self._ask("fetch", messages)
            found.update({device: answers[rank]["tensor"] for device, rank in ranks.items()})
        return found

    def load(self, exe: Any, module: Any) -> list[Any]:
        command = {"command": "load", "executable": pack(exe, module)}
        nothing: list[list[Any]] = [[] for _ in self.device_ids]
        loaded = self._run("load", [command] * self.num_workers, nothing, "object")
        return [machine for (machine,) in self._kept([[each] for each in loaded])]

    def _kept(self, results: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Per rank what its worker keeps, in place of the descriptions; the rest as it is."""
        kept: list[list[Any]] = []
        for rank, result in enumerate(results):
            released = self._processes[rank].released
            kept.append([])
            for each in result:
                if not isinstance(each, dict):
                    kept[-1].append(each)
                elif "shape" in each:
                    number = each["held"].number
                    kept[-1].append(RemoteTensor(number, released, self, rank, each))
                else:
                    kept[-1].append(RemoteObject(each["held"].number, released))
        return kept

    def program(self, machine: Any, name: str) -> Any:
        return _Program(machine, name)

    def hold(self, name: str, values: Sequence[Sequence[Any]]) -> list[list[Any]]:
        commands = [_command("distir.runtime.keep") for _ in values]
        return self._kept(self._run(name, commands, values, "fields"))

    def _run(
        self,
        name: str,
        commands: Sequence[dict[str, Any]],
        arguments: Sequence[Sequence[Any]],
        keep: str | None = None,
    ) -> list[Any]:
        """A step of all workers; ``keep`` says what of the results stays with them."""
        with self._mutex:
            messages = [
                {
                    "step": self._next_step,
                    "arguments": [_reference(each) for each in mine],
                    "keep": keep,
                    **command,
                }
                for command, mine in zip(commands, arguments, strict=True)
            ]
            self._next_step += 1
            return [answer["result"] for answer in self._ask(name, messages)]

    def _ask(self, name: str, messages: Sequence[dict[str, Any] | None]) -> list[Any]:
        """Sends each worker its message, if it has one, and returns the answers."""
        with self._mutex:
            self.check_open()
            cut: dict[int, Any] = {}
            frames: list[Frame | None] = []
            for process, message in zip(self._processes, messages, strict=True):
                if message is None:
                    frames.append(None)
                    continue
                released = [process.released.pop() for _ in range(len(process.released))]
                frames.append(Frame({"name": name, "release": released, **message}, cut))
            deadline = math.inf if self.timeout is None else time.monotonic() + self.timeout
            try:
                exchange = self._exchange(frames, deadline)
            except BaseException as interruption:
                self._kill(f'"{name}" was interrupted by {type(interruption).__name__}')
                raise
            failure = self._failure(name, exchange)
            if failure is not None:
                error = WorkerError(failure)
                self._kill(str(error))
                raise error
            return exchange.answers

    def _exchange(self, frames: Sequence[Frame | None], deadline: float) -> _Exchange:
        """Sends frames to the workers that there are frames for, and reads their answers.

        Ends early, with answers missing, when the deadline is over or a worker has failed.
        """
        exchange = _Exchange([None if frame else {"asked": False} for frame in frames])
        abort = tvm_ffi.get_global_func("distir.runtime.process_board_abort")
        readers = [FrameReader() for _ in frames]
        unsent: dict[int, Frame] = {rank: frame for rank, frame in enumerate(frames) if frame}
        with selectors.DefaultSelector() as selector:
            for rank in unsent:
                events = selectors.EVENT_READ | selectors.EVENT_WRITE
                selector.register(self._processes[rank].stream, events, rank)
            while not exchange.complete:
                left = deadline - time.monotonic()
                if left <= 0:
                    exchange.timed_out = not exchange.failed
                    break
                for key, _ in selector.select(None if left == math.inf else left):
                    rank = key.data
                    stream = self._processes[rank].stream
                    try:
                        if rank in unsent and unsent[rank].write(stream):
                            del unsent[rank]
                            selector.modify(stream, selectors.EVENT_READ, rank)
                        found = readers[rank].read(stream)
                    except ChannelClosedError:
                        exchange.lost.append(rank)
                        selector.unregister(stream)
                        abort(self._board)
                        deadline = min(deadline, time.monotonic() + _UNWIND_LIMIT)
                        continue
                    if found is None:
                        continue
                    (exchange.answers[rank],) = found
                    selector.unregister(stream)
                    if "failure" in found[0]:
                        deadline = min(deadline, time.monotonic() + _UNWIND_LIMIT)
        return exchange

    def _failure(self, name: str, exchange: _Exchange) -> dict[str, Any] | None:
        """The failure that came first, or None."""
        failures = [
            answer["failure"] for answer in exchange.answers if answer and "failure" in answer
        ]
        for failure in failures:
            if failure["first"]:
                return dict(failure)
        if exchange.lost:
            rank = exchange.lost[0]
            return self._describe(rank, name, "ProcessLostError", self._how_it_ended(rank))
        if failures:
            return dict(failures[0])
        if not exchange.timed_out:
            return None
        late = [rank for rank, answer in enumerate(exchange.answers) if answer is None]
        waits = {rank: self._status(rank)[1] for rank in late}
        stalled = next((rank for rank in late if not waits[rank]), late[0])
        assert self.timeout is not None
        why = stalled_message(self.timeout)
        if waits[stalled]:
            why += f"; it waits in {waits[stalled]}"
        return self._describe(stalled, name, "TimeoutError", why)

    def _describe(self, rank: int, name: str, kind: str, message: str) -> dict[str, Any]:
        return {
            "worker": rank,
            "device": self.device_ids[rank],
            "function": name,
            "operator": self._status(rank)[0],
            "kind": kind,
            "message": message,
            "backtrace": "",
        }

    def _status(self, rank: int) -> tuple[str, str]:
        """The operator that a worker runs, and what it waits for."""
        status = tvm_ffi.get_global_func("distir.runtime.process_board_status")
        operator, wait = status(self._board, rank)
        return str(operator), str(wait)

    def _how_it_ended(self, rank: int) -> str:
        process = self._processes[rank].process
        try:
            status = process.wait(_UNWIND_LIMIT)
        except subprocess.TimeoutExpired:
            return f"process {process.pid} has closed its channel"
        if status < 0:
            return f"process {process.pid} was ended by {signal.Signals(-status).name}"
        return f"process {process.pid} has ended with exit status {status}"

    def _kill(self, reason: str) -> None:
        tvm_ffi.get_global_func("distir.runtime.process_board_abort")(self._board)
        for process in self._processes:
            process.process.kill()
        self.close(reason)

    def close(self, reason: str = "it was closed") -> None:
        if self._closed_because is None:
            self._closed_because = reason
        self._finalizer()
        self._board = None  # unmaps the shared memory


@dataclass
class _Exchange:
    """What came of sending each worker a frame."""

    answers: list[Any]
    lost: list[int] = field(default_factory=list)
    timed_out: bool = False

    @property
    def failed(self) -> bool:
        return bool(self.lost) or any(each and "failure" in each for each in self.answers)

    @property
    def complete(self) -> bool:
        """Whether all have answered, or the first failure is known."""
        if any(each and _is_first(each.get("failure")) for each in self.answers):
            return True
        return all(each or rank in self.lost for rank, each in enumerate(self.answers))


def _is_first(failure: Any) -> bool:
    return isinstance(failure, dict) and bool(failure["first"])


def _command(function: Any) -> dict[str, Any]:
    if function is None:
        return {"command": "idle"}
    if isinstance(function, _Program):
        machine = function.machine.number
        return {"command": "program", "machine": machine, "function": function.name}
    if isinstance(function, str):
        return {"command": "call", "function": function}
    raise TypeError(
        "workers that are processes run global functions by name, and programs of an executable, "
        f"not a {type(function).__name__}"
    )


def _reference(value: Any) -> Any:
    if isinstance(value, RemoteObject):
        return Held(value.number)
    if isinstance(value, list | tuple) and not isinstance(value, tvm_ffi.Shape):
        return [_reference(each) for each in value]
    return value


def _end(processes: Sequence[_Process], owner: int) -> None:
    """Ends and reaps the processes, unless this is a fork of the one that started them."""
    if os.getpid() != owner:
        return
    for each in processes:
        with contextlib.suppress(OSError):
            each.stream.close()  # a worker that is not busy ends now
    deadline = time.monotonic() + _UNWIND_LIMIT
    for each in processes:
        try:
            each.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.process.kill()
            each.process.wait()
