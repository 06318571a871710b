"""Starts worker processes for a session, sends them steps, reads answers, and ends them.

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
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm_ffi

from distir_ext.native.executables import pack
from distir_ext.params.agreement import agreed
from distir_ext.params.checkpoint import open_params
from distir_ext.params.memory_file import MemoryFile
from distir_ext.params.stored_array import Stored
from distir_ext.text.printable import TextLines
from distir_ext.wire.channel import Held
from distir_ext.wire.connections import parse_address
from distir_ext.workers.answers import check_answer, check_fetched, check_greeting
from distir_ext.workers.backends import find_backend
from distir_ext.workers.base import (
    Addresses,
    BoundProgram,
    ProgramStep,
    StepOutcome,
    Takers,
    WorkerError,
    Workers,
    check_equal_counts,
)
from distir_ext.workers.diagnosis import Diagnosis
from distir_ext.workers.exchange import Exchange, Request, run_exchange
from distir_ext.workers.host_processes import (
    LEAST_START_LIMIT,
    LocalProcesses,
    Started,
    start_here,
)
from distir_ext.workers.hosts.hosts import Hosts
from distir_ext.workers.hosts.ray_actors import start_on_ray
from distir_ext.workers.hosts.ray_hosts import Ray
from distir_ext.workers.hosts.remote_processes import start_on_hosts
from distir_ext.workers.lines import Lines
from distir_ext.workers.remote_values import (
    RemoteObject,
    RemoteShards,
    by_answer,
    command,
    identity,
    is_common,
    reference,
)
from distir_ext.workers.start_bar import start_bar

# Returns its arguments, for workers to keep.
_KEEP = "distir.runtime.keep"


class ProcessWorkers(Workers):
    """Workers that are processes.

    Args:
        device_ids: Ascending device ids; the worker of rank ``i`` is device ``device_ids[i]``.
        ccl: Name of the communication library.
        timeout: Time limit of a step, in seconds; None for no limit.
        imports: Names of modules that each worker imports first.
        hosts: Hosts of the workers; None: this host.
        bitwise: See :class:`Session`.
        device: Type of device to compute on, if not that of the communication library.
        announce: Called with this object before anything is started, so that it can be closed
            meanwhile.

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
        device: str = "",
        announce: Callable[[Workers], None] | None = None,
    ) -> None:
        super().__init__(device_ids, timeout)
        for number in self.device_ids:
            if number < 0:
                raise ValueError(f"device id {number} is negative")
        self._hosts = hosts
        self._bitwise = bitwise
        self._device = device
        self.connects = find_backend(ccl).connects
        self._started = Started()
        if timeout is not None:
            self._started.limit = max(timeout, LEAST_START_LIMIT)
        self._diagnosis = Diagnosis(self._started, self.device_ids)
        # Ends the processes if nobody closes the session, at the latest when this process ends.
        self._finalizer = weakref.finalize(self, _end, self._started, os.getpid())
        self._lines: Lines | None = None
        self._released: list[Held] = []
        self._next_step = 1
        _started_here.add(self)
        if announce is not None:
            announce(self)
        try:
            self._in_turn(lambda: self._start(ccl, imports))
            self._greet(ccl)
            self.connect()
        except BaseException:
            self.close("it could not be started")
            raise

    def _start(self, ccl: str, imports: Sequence[str]) -> None:
        hosts = self._hosts
        if hosts is None:
            start_here(self._started, self.num_workers, ccl, imports)
        elif isinstance(hosts, Ray):
            start_on_ray(self._started, hosts, self.num_workers, ccl, imports)
        else:
            start_on_hosts(self._started, hosts, self.num_workers, ccl, imports)

    def _greet(self, ccl: str) -> None:
        hosts = self._started.hosts
        numbers = {id(host): number for number, host in enumerate(hosts)}
        machines: dict[str, int] = {}
        addresses = [host.address and parse_address(host.address)[0] for host in hosts]
        hello = {
            "device_ids": tvm_ffi.Shape(self.device_ids),
            "host_of": tvm_ffi.Shape(tuple(numbers[id(host)] for host in self._started.host_of)),
            "machine_of": tvm_ffi.Shape(
                tuple(machines.setdefault(each, len(machines)) for each in addresses)
            ),
            "ccl": ccl,
            "session": secrets.token_hex(16),
            "bitwise": self._bitwise,
            "device": self._device,
        }
        with start_bar(self.num_workers) as started:
            came = Exchange(
                self.num_workers,
                [[Request(range(self.num_workers), hello)]],
                lambda request, rank, answer: check_greeting(answer),
                answered_by=lambda _: started(),
            )
            self._in_turn(lambda: self._run_exchange(came, self._started.limit))
        if came.interrupted:
            self.check_open()
        clocks = set()
        # Others may not have answered because of these, which may have ended since they said why.
        said_why = {
            rank
            for rank, each in enumerate(came.answers)
            if each and ("failure" in each[0] or "refused" in each[0])
        }
        known_why = {*came.broken, *came.lost}
        ranks = range(self.num_workers)
        for rank in sorted(ranks, key=lambda rank: (rank not in said_why, rank not in known_why)):
            host = self._started.host_of[rank].name
            worker = f"worker {rank} on host {host}" if host else f"worker {rank}"
            if rank not in said_why:
                if rank in came.broken:
                    raise RuntimeError(f"{worker} did not start: {came.broken[rank]}")
                if rank in came.lost:
                    raise RuntimeError(
                        f"{worker} did not start: {self._started.host_of[rank].how_it_ended(rank)}"
                    )
                if not came.answers[rank]:
                    limit = self._started.limit
                    raise RuntimeError(f"{worker} did not start within {limit:g} seconds")
            (answer,) = came.answers[rank]
            if "failure" in answer:
                raise RuntimeError(
                    TextLines([f"{worker} did not start:", *answer["failure"].splitlines()])
                )
            if "refused" in answer:
                raise RuntimeError(f"{worker} did not start: {answer['refused']}")
            clocks.add(answer["clock"])
            self.device_type = answer["device_type"]
        self.share_a_clock = len(clocks) == 1

    def run(
        self, name: str, functions: Sequence[Any], arguments: Sequence[Sequence[Any]]
    ) -> list[Any]:
        commands = [command(each) for each in functions]
        return [answer["result"] for answer in self._run(name, commands, arguments)]

    def run_programs(
        self,
        name: str,
        steps: Sequence[ProgramStep],
        finishers: Sequence[int] = (),
        timed: bool = False,
    ) -> list[StepOutcome]:
        with self.turn():
            first = self._next_step
            self._next_step += len(steps)
            rounds = []
            for index, step in enumerate(steps):
                base = {"step": first + index, "call": first + step.call, "timed": timed}
                rounds.append(self._requests_of(step, base, first))

            def may_send(came: Exchange, rank: int, index: int) -> bool:
                after = steps[index].after.get(rank)
                return after is None or all(len(came.answers[each]) > after for each in finishers)

            waits = any(step.after for step in steps)
            answers = self._ask(name, rounds, may_send if waits else None)
        outcomes = []
        for index, step in enumerate(steps):
            mine = [of_rank[index] for of_rank in answers]
            times = None
            if timed and self.share_a_clock:
                times = [(each[0], each[1], each[2]) for each in (one["times"] for one in mine)]
            leaves: list[list[Mapping[int, Any]]] = []
            for part in step.parts:
                leaves.append([])
                if not part.keeps:
                    leaves[-1] += self._leaves(first + index, part.program, mine)
            outcomes.append(StepOutcome(leaves, times))
        return outcomes

    def _leaves(
        self, step: int, program: BoundProgram, answers: Sequence[dict[str, Any]]
    ) -> Iterator[Mapping[int, Any]]:
        """Yields the results of a program that workers keep, one leaf at a time."""
        said = by_answer(program.ranks, answers)
        devices = [self.device_ids[ranks[0]] for ranks, _ in said]
        check_equal_counts(program.name, devices, [len(results) for _, results in said])
        for index in range(len(said[0][1])):
            name_of = RemoteObject(Held(step, index), self._released)
            kinds = [(ranks, results[index]) for ranks, results in said]
            yield RemoteShards(name_of, self, program.devices, kinds)

    def _requests_of(self, step: ProgramStep, base: dict[str, Any], first: int) -> list[Request]:
        """Returns the requests of a step; workers with equal work share one."""
        requests = []
        cut: dict[int, Any] = {}
        busy: set[int] = set()
        for part in step.parts:
            program = part.program
            busy.update(program.ranks)
            message = {
                **base,
                "command": "program",
                "program": program.native.held,
                "continues": None if part.continues is None else first + part.continues,
                "keep": "rest" if part.keeps else "leaves",
            }
            for ranks, arguments in self._alike(program.ranks, part.inputs):
                requests.append(Request(ranks, {**message, "arguments": arguments}, cut))
        if len(busy) < self.num_workers:
            idle = [rank for rank in range(self.num_workers) if rank not in busy]
            nothing: dict[str, Any] = {"command": "idle", "arguments": [], "keep": "leaves"}
            requests.append(Request(idle, {**base, **nothing}))
        return requests

    def _alike(
        self, ranks: Sequence[int], values: Sequence[Any]
    ) -> Iterator[tuple[Sequence[int], list[Any]]]:
        """Yields groups of workers whose parts of some values are sent alike, and these parts."""
        various = [index for index, value in enumerate(values) if not is_common(value)]
        first = self.device_ids[ranks[0]]
        common = [
            None if index in various else reference(value, first)
            for index, value in enumerate(values)
        ]
        groups: dict[tuple[Any, ...], list[int]] = {}
        sent: dict[tuple[Any, ...], list[Any]] = {}
        for rank in ranks if various else ():
            mine = [reference(values[index], self.device_ids[rank]) for index in various]
            key = tuple(identity(each) for each in mine)
            groups.setdefault(key, []).append(rank)
            sent.setdefault(key, mine)
        if not various:
            yield ranks, common
        for key, alike in groups.items():
            found = list(common)
            for index, value in zip(various, sent[key], strict=True):
                found[index] = value
            yield alike, found

    def fetch(self, tensors: Mapping[int, Any]) -> Mapping[int, Any]:
        found = {device: each.value for device, each in tensors.items()}
        missing = [device for device, value in found.items() if value is None]
        if missing:
            requests = [
                Request([self.rank_of[device]], {"fetch": tensors[device].held})
                for device in missing
            ]

            def check(request: Request, rank: int, answer: Any) -> dict[str, Any]:
                found = check_answer(request.message, rank, answer)
                if "failure" not in found:
                    expected = tensors[self.device_ids[rank]]
                    check_fetched(found, expected.shape, expected.dtype)
                return found

            answers = self._ask("fetch", [requests], check=check)
            for device in missing:
                found[device] = answers[self.rank_of[device]][0]["tensor"]
        return found

    @property
    def is_this_process(self) -> bool:
        return False

    @property
    def shares_memory(self) -> bool:
        return self._hosts is None

    def share(self, file: MemoryFile, tensors: Mapping[int, Sequence[tuple[Any, int]]]) -> None:
        requests = [
            Request(
                [self.rank_of[device]],
                {
                    "share": str(file.path),
                    "tensors": [each.held for each, _ in mine],
                    "begins": tvm_ffi.Shape(tuple(begin for _, begin in mine)),
                },
            )
            for device, mine in tensors.items()
        ]
        self._ask("share", [requests])

    def addresses(self, tensors: Mapping[int, Sequence[Any]]) -> Mapping[int, Addresses]:
        requests = [
            Request([self.rank_of[device]], {"addresses": [each.held for each in mine]})
            for device, mine in tensors.items()
        ]
        answers = self._ask("addresses", [requests])
        found = {}
        for device in tensors:
            rank = self.rank_of[device]
            (answer,) = answers[rank]
            host = self._started.host_of[rank]
            assert isinstance(host, LocalProcesses)
            found[device] = Addresses(host.processes[rank].pid, list(answer["addresses"]))
        return found

    def can_read(self, places: Sequence[tuple[int, int]]) -> bool:
        message = {"can_read": [tvm_ffi.Shape(each) for each in places]}
        answers = self._ask("can read", [[Request(range(self.num_workers), message)]])
        return all(answer["can_read"] for (answer,) in answers)

    def let_go_of_files(self) -> None:
        self.run("let go of files", [None] * self.num_workers, [[]] * self.num_workers)

    def load(self, exe: Any, module: Any) -> Any:
        return self._one_object("load", {"command": "load", "executable": pack(exe, module)})

    def bind(
        self, machine: Any, name: str, devices: Sequence[int], takes: Sequence[Any]
    ) -> BoundProgram:
        ranks = tuple(sorted(self.rank_of[device] for device in devices))
        bind = {"command": "bind", "machine": machine.held, "function": name}
        requests = [(alike, {**bind, "takes": found}) for alike, found in self._alike(ranks, takes)]
        return BoundProgram(name, ranks, self.devices_of(ranks), self._object_of("bind", requests))

    def _one_object(self, name: str, message: dict[str, Any]) -> RemoteObject:
        return self._object_of(name, [(range(self.num_workers), message)])

    def _object_of(
        self, name: str, messages: Sequence[tuple[Sequence[int], dict[str, Any]]]
    ) -> RemoteObject:
        """Runs a step that leaves an object with each of its workers; returns a reference."""
        with self.turn():
            step = self._next_step
            requests = [
                (ranks, {"arguments": [], "keep": "object", **message})
                for ranks, message in messages
            ]
            self._step(name, requests)
            return RemoteObject(Held(step, 0), self._released)

    def hold(self, name: str, values: Sequence[Sequence[Any]]) -> list[list[Any]]:
        with self.turn():
            step = self._next_step
            commands = [{**command(_KEEP), "keep": "fields", "indices": None} for _ in values]
            answers = self._run(name, commands, values)
            held = []
            for index in range(max(map(len, values), default=0)):
                ranks = [rank for rank, mine in enumerate(values) if len(mine) > index]
                kinds = [([rank], answers[rank]["result"][index]) for rank in ranks]
                name_of = RemoteObject(Held(step, index), self._released)
                held.append(RemoteShards(name_of, self, self.devices_of(ranks), kinds))
        return [
            [held[index][device] for index in range(len(mine))]
            for device, mine in zip(self.device_ids, values, strict=True)
        ]

    def keep(
        self, name: str, values: Sequence[Any], takers: Sequence[Takers]
    ) -> list[Mapping[int, Any]]:
        with self.turn():
            step = self._next_step
            requests = []
            places: list[dict[int, int]] = []
            for each in takers:
                indices = sorted(each.indices)
                places.append({index: place for place, index in enumerate(indices)})
                message = {
                    **command(_KEEP),
                    "keep": "fields",
                    "indices": tvm_ffi.Shape(tuple(indices)),
                }
                for ranks, mine in self._alike(each.ranks, [values[index] for index in indices]):
                    requests.append((ranks, {**message, "arguments": mine}))
            answers = self._step(name, requests)
        said = [by_answer(each.ranks, answers) for each in takers]
        devices: dict[tuple[int, ...], frozenset[int]] = {}
        found: list[Mapping[int, Any]] = []
        for index in range(len(values)):
            taken_by = tuple(at for at, each in enumerate(takers) if index in each.indices)
            kinds = []
            for at in taken_by:
                place = places[at][index]
                kinds += [(ranks, results[place]) for ranks, results in said[at]]
            if taken_by not in devices:
                devices[taken_by] = self.devices_of(
                    [r for at in taken_by for r in takers[at].ranks]
                )
            name_of = RemoteObject(Held(step, index), self._released)
            found.append(RemoteShards(name_of, self, devices[taken_by], kinds))
        return found

    def open_params(self, path: str | os.PathLike[str]) -> Mapping[str, Stored]:
        if self._hosts is None:
            return open_params(Path(path).absolute())  # workers have the directory they started in
        first = {host.name: self._started.host_of.index(host) for host in self._started.hosts}
        request = Request(sorted(first.values()), {"params": os.fspath(path)})
        answers = self._ask("open params", [[request]])
        return agreed({name: answers[rank][0] for name, rank in first.items()})

    def _run(
        self, name: str, commands: Sequence[dict[str, Any]], arguments: Sequence[Sequence[Any]]
    ) -> list[dict[str, Any]]:
        """A step of all workers, each with a command and arguments; what they answer."""
        messages: dict[tuple[Any, ...], tuple[list[int], dict[str, Any]]] = {}
        pairs = zip(self.device_ids, commands, arguments, strict=True)
        for rank, (device, each, given) in enumerate(pairs):
            mine = [reference(value, device) for value in given]
            key = (*map(str, each.values()), *map(identity, mine))
            found = messages.setdefault(key, ([], {"keep": None, **each, "arguments": mine}))
            found[0].append(rank)
        return self._step(name, list(messages.values()))

    def _step(
        self, name: str, messages: Sequence[tuple[Sequence[int], dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        """A step of all workers, those that are not in a message idle; what they answer."""
        with self.turn():
            base = {"step": self._next_step, "call": self._next_step}
            self._next_step += 1
            cut: dict[int, Any] = {}
            requests = [Request(ranks, {**base, **each}, cut) for ranks, each in messages]
            busy = {rank for ranks, _ in messages for rank in ranks}
            idle = [rank for rank in range(self.num_workers) if rank not in busy]
            if idle:
                nothing: dict[str, Any] = {"command": "idle", "arguments": [], "keep": None}
                requests.append(Request(idle, {**base, **nothing}))
            return [answer for (answer,) in self._ask(name, [requests])]

    def _ask(
        self,
        name: str,
        rounds: Sequence[Sequence[Request]],
        may_send: Callable[[Exchange, int, int], bool] | None = None,
        check: Callable[[Request, int, Any], dict[str, Any]] | None = None,
    ) -> list[list[dict[str, Any]]]:
        """Sends workers requests, one round after the other; by rank the answers."""
        check = check or (lambda request, rank, it: check_answer(request.message, rank, it))
        return self._in_turn(lambda: self._answers(name, rounds, may_send, check))

    def _answers(
        self,
        name: str,
        rounds: Sequence[Sequence[Request]],
        may_send: Callable[[Exchange, int, int], bool] | None,
        check: Callable[[Request, int, Any], dict[str, Any]],
    ) -> list[list[dict[str, Any]]]:
        if sum(len(each.ranks) for each in rounds[0]) == self.num_workers:
            released = [self._released.pop() for _ in range(len(self._released))]
            names = tvm_ffi.Shape(
                tuple(number for each in released for number in (each.step, each.index))
            )
            for request in rounds[0]:
                request.message["release"] = names
        for request in (each for requests in rounds for each in requests):
            request.message["name"] = name
        came = Exchange(self.num_workers, rounds, check, may_send)
        try:
            self._run_exchange(came, self.timeout or math.inf)
            if came.interrupted:
                self.check_open()
        except BaseException as interruption:
            self._kill(f'"{name}" was interrupted by {type(interruption).__name__}')
            raise
        failure = self._diagnosis.failure(name, came, self.timeout)
        if failure is not None:
            failure["host"] = self._started.host_of[failure["worker"]].name
            error = WorkerError(failure)
            self._kill(str(error))
            raise error
        return came.answers

    def _run_exchange(self, came: Exchange, limit: float) -> None:
        started = self._started
        if self._hosts is not None and self._lines is None:
            everyone = self._diagnosis.by_host(range(self.num_workers))
            self._lines = Lines({host.line: mine for host, mine in everyone if host.line})
        # Workers of one host find out by themselves whether they wait for ever.
        look = None if self._hosts is None else self._diagnosis.deadlock
        run_exchange(came, started.branches, limit, self._abort, self._lines, look, started.bell)

    def _abort(self) -> None:
        for host in self._started.hosts:
            host.abort()

    def _kill(self, reason: str) -> None:
        """Has the workers end when the step that this thread runs does, whatever they do."""
        self._begin_to_close(reason)
        self._abort()
        for host in self._started.hosts:
            host.kill()

    def forget(self) -> None:
        """In a fork, lets go of what belongs to the process that has started the workers."""
        for branch in self._started.branches:
            branch.forget()
        for host in self._started.hosts:
            host.forget()
        if self._lines is not None:
            self._lines.close()
        self._started.bell.forget()

    def _interrupt(self) -> None:
        self._started.bell.ring()

    def _end(self) -> None:
        if self._lines is not None:
            self._lines.close()
        _end(self._started, self._owner)
        self._finalizer.detach()
        self._give_memory_back()


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
    for branch in started.branches:
        with contextlib.suppress(OSError):
            branch.stream.close()  # workers that are not busy end now
    for host in started.hosts:
        host.close()
    while started.at_end:
        started.at_end.pop()()
    started.bell.close()
