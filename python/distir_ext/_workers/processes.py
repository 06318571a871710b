"""Workers that are processes; the controller's side.

Each worker has a channel of its own to the controller (``channel``), and a host's workers have one
shared memory, in which their host sees what each of them is doing and can end what waits. A worker
that fails, ends or takes too long ends the step on all workers, within a second; then they are
killed.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distir_ext._params.agreement import agreed
from distir_ext._params.checkpoint import open_params
from distir_ext._params.stored_array import Stored
from distir_ext._runtime.backends import find_backend
from distir_ext._workers.answers import check_answer, check_fetched, check_greeting
from distir_ext._workers.base import (
    ProgramStep,
    StepOutcome,
    WorkerError,
    Workers,
    stalled_message,
    wait_for_one_running,
)
from distir_ext._workers.channel import Frame
from distir_ext._workers.connection.connections import parse_address
from distir_ext._workers.exchange import Exchange, is_cause, is_first, run_exchange
from distir_ext._workers.executables import pack
from distir_ext._workers.host_processes import HostProcesses, Started, start_here
from distir_ext._workers.hosts.deadlock import find_deadlock
from distir_ext._workers.hosts.hosts import Hosts
from distir_ext._workers.hosts.ray_actors import start_on_ray
from distir_ext._workers.hosts.ray_hosts import Ray
from distir_ext._workers.hosts.remote_processes import start_on_hosts
from distir_ext._workers.remote_values import (
    RemoteObject,
    RemoteProgram,
    RemoteTensor,
    command,
    reference,
)
from distir_ext._workers.start_bar import start_bar

# How long a worker may take until it is ready, in seconds: it may import anything.
_START_LIMIT = 300.0


class ProcessWorkers(Workers):
    """Workers that are processes.

    Args:
        device_ids: Ascending device ids; the worker of rank ``i`` is device ``device_ids[i]``.
        ccl: Name of the communication library.
        timeout: How long a step may take, in seconds; None for no limit.
        imports: Names of modules that each worker imports first.
        hosts: Where they are; None: on this host.
        bitwise: See :class:`Session`.

    Raises:
        ImportError: the hosts are nodes of Ray, which is not installed.
        OSError: a file with a token cannot be read.
        ValueError: bad device ids, or hosts that do not fit.
        RuntimeError: a worker cannot be started, or a host cannot be reached.
    """

    def __init__(
        self,
        device_ids: Sequence[int],
        ccl: str,
        timeout: float | None = None,
        imports: Sequence[str] = (),
        hosts: Hosts | Ray | None = None,
        bitwise: bool = True,
    ) -> None:
        super().__init__(device_ids, timeout)
        _started_here.add(self)
        for device in self.device_ids:
            if device < 0:
                raise ValueError(f"device id {device} is negative")
        self._hosts = hosts
        self._bitwise = bitwise
        self.connects = find_backend(ccl).connects
        self._started = Started()
        # Ends the processes if nobody closes the session, at the latest when this process ends.
        self._finalizer = weakref.finalize(self, _end, self._started, os.getpid())
        self._released: list[list[int]] = [[] for _ in self.device_ids]
        self._mutex = threading.RLock()
        self._next_step = 1
        try:
            if hosts is None:
                start_here(self._started, self.num_workers, ccl, imports)
            elif isinstance(hosts, Ray):
                start_on_ray(self._started, hosts, self.num_workers, ccl, imports)
            else:
                start_on_hosts(self._started, hosts, self.num_workers, ccl, imports)
            self._greet(ccl)
            self.connect()
        except BaseException:
            self.close("it could not be started")
            raise

    def _greet(self, ccl: str) -> None:
        machines = [self._machine_of(host) for host in self._started.host_of]
        host_of = [self._started.hosts.index(host) for host in self._started.host_of]
        session = secrets.token_hex(16)

        def make_frame(rank: int, _: int) -> Frame:
            return Frame(
                {
                    "rank": rank,
                    "device_ids": list(self.device_ids),
                    "neighbours": self._ranks_of(self._started.host_of[rank]),
                    "machine": [each for host in machines[rank] for each in self._ranks_of(host)],
                    "hosts": len(machines[rank]),
                    "ccl": ccl,
                    "host_of": host_of,
                    "session": session,
                    "bitwise": self._bitwise,
                }
            )

        with start_bar(self.num_workers) as started:
            ones = [1] * self.num_workers
            came = Exchange(
                ones,
                make_frame,
                lambda rank, index, answer: check_greeting(answer),
                answered_by=lambda _: started(),
            )
            self._run_exchange(came, _START_LIMIT)
        clocks = set()
        for rank, answers in enumerate(came.answers):
            host = self._started.host_of[rank].name
            worker = f"worker {rank} on host {host}" if host else f"worker {rank}"
            if rank in came.broken:
                raise RuntimeError(f"{worker} did not start: {came.broken[rank]}")
            if rank in came.lost:
                raise RuntimeError(f"{worker} did not start: {self._how_it_ended(rank)}")
            if not answers:
                raise RuntimeError(f"{worker} did not start within {_START_LIMIT:g} seconds")
            if "failure" in answers[0]:
                raise RuntimeError(f"{worker} did not start:\n{answers[0]['failure']}")
            if "refused" in answers[0]:
                raise RuntimeError(f"{worker} did not start: {answers[0]['refused']}")
            clocks.add(answers[0]["clock"])
            self.device_type = answers[0]["device_type"]
        self.share_a_clock = len(clocks) == 1

    def _machine_of(self, host: HostProcesses) -> list[HostProcesses]:
        """The hosts that are one machine with this one, which have its address."""
        if not host.address:
            return [host]
        address = parse_address(host.address)[0]
        return [each for each in self._started.hosts if parse_address(each.address)[0] == address]

    def _ranks_of(self, host: HostProcesses) -> list[int]:
        return [rank for rank, each in enumerate(self._started.host_of) if each is host]

    def run(
        self, name: str, functions: Sequence[Any], arguments: Sequence[Sequence[Any]]
    ) -> list[Any]:
        return self._run(name, [command(each) for each in functions], arguments)

    def run_programs(
        self, name: str, steps: Sequence[ProgramStep], finishers: Sequence[int] = ()
    ) -> list[StepOutcome]:
        self.check_open()
        with self._mutex:
            first = self._next_step
            self._next_step += len(steps)
            messages = [
                [_message(step, rank, first, index) for index, step in enumerate(steps)]
                for rank in range(self.num_workers)
            ]

            def may_send(came: Exchange, rank: int) -> bool:
                after = steps[came.sent[rank]].after[rank]
                return after is None or all(len(came.answers[each]) > after for each in finishers)

            answers = self._ask(name, messages, may_send)
        outcomes = []
        for index in range(len(steps)):
            mine = [of_rank[index] for of_rank in answers]
            times = [(each["times"][0], each["times"][1], each["times"][2]) for each in mine]
            results = self._kept([each["result"] or () for each in mine])
            outcomes.append(StepOutcome(results, times if self.share_a_clock else None))
        return outcomes

    def fetch(self, tensors: Mapping[int, Any]) -> Mapping[int, Any]:
        missing = [device for device, each in tensors.items() if each.value is None]
        found = {device: each.value for device, each in tensors.items()}
        if missing:
            ranks = {device: self.device_ids.index(device) for device in missing}
            messages: list[list[dict[str, Any]]] = [[] for _ in self.device_ids]
            for device, rank in ranks.items():
                messages[rank] = [{"fetch": tensors[device].number}]

            def check(rank: int, index: int, answer: Any) -> dict[str, Any]:
                found = check_answer(messages[rank][index], rank, answer)
                if "failure" not in found:
                    expected = tensors[self.device_ids[rank]]
                    check_fetched(found, expected.shape, expected.dtype)
                return found

            answers = self._ask("fetch", messages, check=check)
            found.update({device: answers[rank][0]["tensor"] for device, rank in ranks.items()})
        return found

    def load(self, exe: Any, module: Any) -> list[Any]:
        load = {"command": "load", "executable": pack(exe, module)}
        nothing: list[list[Any]] = [[] for _ in self.device_ids]
        loaded = self._run("load", [load] * self.num_workers, nothing, "object")
        return [machine for (machine,) in self._kept([[each] for each in loaded])]

    def _kept(self, results: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Per rank what its worker keeps, in place of the descriptions; the rest as it is."""
        kept: list[list[Any]] = []
        for rank, result in enumerate(results):
            released = self._released[rank]
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
        return RemoteProgram(machine, name)

    def hold(self, name: str, values: Sequence[Sequence[Any]]) -> list[list[Any]]:
        commands = [command("distir.runtime.keep") for _ in values]
        return self._kept(self._run(name, commands, values, "fields"))

    def open_params(self, path: str | os.PathLike[str]) -> Mapping[str, Stored]:
        if self._hosts is None:
            return open_params(Path(path).absolute())  # workers have the directory they started in
        first = {host.name: self._started.host_of.index(host) for host in self._started.hosts}
        messages: list[list[dict[str, Any]]] = [[] for _ in self.device_ids]
        for rank in first.values():
            messages[rank] = [{"params": os.fspath(path)}]
        answers = self._ask("open params", messages)
        return agreed({name: answers[rank][0] for name, rank in first.items()})

    def _run(
        self,
        name: str,
        commands: Sequence[dict[str, Any]],
        arguments: Sequence[Sequence[Any]],
        keep: str | None = None,
    ) -> list[Any]:
        """A step of all workers; ``keep`` says what of the results stays with them."""
        self.check_open()
        with self._mutex:
            messages = [
                [
                    {
                        "step": self._next_step,
                        "call": self._next_step,
                        "arguments": [reference(each) for each in mine],
                        "continues": None,
                        "keep": keep,
                        **each,
                    }
                ]
                for each, mine in zip(commands, arguments, strict=True)
            ]
            self._next_step += 1
            return [answer["result"] for (answer,) in self._ask(name, messages)]

    def _ask(
        self,
        name: str,
        messages: Sequence[Sequence[dict[str, Any]]],
        may_send: Callable[[Exchange, int], bool] | None = None,
        check: Callable[[int, int, Any], dict[str, Any]] | None = None,
    ) -> list[list[dict[str, Any]]]:
        """Sends each worker its messages, one after the other, and returns the answers."""
        self.check_open()
        check = check or (lambda rank, index, it: check_answer(messages[rank][index], rank, it))
        with self._mutex:
            self.check_open()
            # Workers share what is cut for a step, until all of them have been sent it.
            cuts: list[dict[int, Any]] = [{} for _ in range(max(map(len, messages)))]
            unmade = [sum(len(each) > index for each in messages) for index in range(len(cuts))]

            def make_frame(rank: int, index: int) -> Frame:
                numbers = self._released[rank]
                released = [numbers.pop() for _ in range(len(numbers))]
                message = {"name": name, "release": released, **messages[rank][index]}
                frame = Frame(message, cuts[index])
                unmade[index] -= 1
                if unmade[index] == 0:
                    cuts[index].clear()
                return frame

            came = Exchange([len(each) for each in messages], make_frame, check, may_send)
            try:
                self._run_exchange(came, self.timeout or math.inf)
            except BaseException as interruption:
                self._kill(f'"{name}" was interrupted by {type(interruption).__name__}')
                raise
            failure = self._failure(name, came)
            if failure is not None:
                failure["host"] = self._started.host_of[failure["worker"]].name
                error = WorkerError(failure)
                self._kill(str(error))
                raise error
            return came.answers

    def _run_exchange(self, came: Exchange, limit: float) -> None:
        lines = {
            host.line: self._ranks_of(host) for host in self._started.hosts if host.line is not None
        }
        # Workers of one host find out by themselves whether they wait for ever.
        look = None if self._hosts is None else self._find_deadlock
        run_exchange(came, self._started.streams, limit, self._abort, lines, look)

    def _failure(self, name: str, came: Exchange) -> dict[str, Any] | None:
        """The failure that came first, or None."""
        for rank, why in came.broken.items():
            return self._describe(rank, name, "ProtocolError", why)
        failures = came.failures
        for failure in failures:
            if is_cause(failure):
                return dict(failure)
        if came.lost:
            return self._lost(came.lost[0], name)
        if failures:
            return dict(max(failures, key=is_first))
        if came.deadlock is not None:
            rank, why = came.deadlock
            return self._describe(rank, name, "ValueError", why)
        if not came.timed_out:
            return None
        late = came.late
        waits = self._waits(late)
        for rank in late:
            if self._started.host_of[rank].lost:
                return self._lost(rank, name)
        stalled = next((rank for rank in late if not waits[rank]), late[0])
        assert self.timeout is not None
        why = stalled_message(self.timeout)
        if waits[stalled]:
            why += f"; it waits in {waits[stalled]}"
        return self._describe(stalled, name, "TimeoutError", why)

    def _waits(self, late: Sequence[int]) -> dict[int, str]:
        """By rank what workers wait for that are late, empty if they do not."""

        def look() -> dict[int, str]:
            return {rank: self._status(rank)[1] for rank in late}

        wait_for_one_running(lambda: list(look().values()).count(""))
        return look()

    def _lost(self, rank: int, name: str) -> dict[str, Any]:
        why = self._how_it_ended(rank)
        kind = "HostLostError" if self._started.host_of[rank].lost else "ProcessLostError"
        return self._describe(rank, name, kind, why)

    def _find_deadlock(self, finished: Sequence[bool]) -> tuple[int, str] | None:
        found = [[self._progress(rank) for rank in range(self.num_workers)] for _ in range(2)]
        stuck = find_deadlock(finished, *found)
        if not stuck:
            return None
        waits = {rank: self._status(rank)[1] for rank in stuck}
        others = [
            f"device {device} "
            + (f"waits in {waits[rank]}" if rank in waits else "has finished its program")
            for rank, device in enumerate(self.device_ids)
            if rank != stuck[0]
        ]
        return stuck[0], "; ".join(
            [
                f"{waits[stuck[0]]} can never complete, the programs of the workers disagree",
                *others,
            ]
        )

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
        return self._started.host_of[rank].status(rank)

    def _progress(self, rank: int) -> list[int]:
        return self._started.host_of[rank].progress(rank)

    def _how_it_ended(self, rank: int) -> str:
        return self._started.host_of[rank].how_it_ended(rank)

    def _abort(self) -> None:
        for host in self._started.hosts:
            host.abort()

    def _kill(self, reason: str) -> None:
        for host in self._started.hosts:
            host.abort()
            host.kill()
        self.close(reason)

    def forget(self) -> None:
        """In a fork, lets go of what belongs to the process that has started the workers."""
        for stream in self._started.streams:
            stream.close()
        for host in self._started.hosts:
            host.forget()

    def close(self, reason: str = "") -> None:
        first = self._closed_because is None
        if first:
            self._closed_because = reason
        self._finalizer()
        if first and self.belongs_here:
            self._give_memory_back()


def _message(step: ProgramStep, rank: int, first: int, index: int) -> dict[str, Any]:
    """A worker's part of a step, the one of this index behind the session's first one."""
    continued = step.continues[rank]
    return {
        "step": first + index,
        "call": first + step.call,
        "arguments": [reference(each) for each in step.arguments[rank]],
        "continues": None if continued is None else first + continued,
        "keep": "rest" if step.keeps[rank] else "leaves",
        **command(step.programs[rank]),
    }


_started_here: weakref.WeakSet[ProcessWorkers] = weakref.WeakSet()


def _forget_all() -> None:
    for workers in list(_started_here):
        workers.forget()


# A fork that outlives its parent would keep connections to other hosts open, and memory.
os.register_at_fork(after_in_child=_forget_all)


def _end(started: Started, owner: int) -> None:
    """Ends and reaps the processes, unless this is a fork of the one that started them."""
    if os.getpid() != owner:
        return
    for stream in started.streams:
        with contextlib.suppress(OSError):
            stream.close()  # a worker that is not busy ends now
    for host in started.hosts:
        host.close()
    for give_back in started.at_end:
        give_back()
