"""Interface to the worker processes of one host, and its implementation for this host."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import tvm_ffi

from distir_ext.native.library import native_libraries
from distir_ext.wire.byte_stream import Stream
from distir_ext.wire.standard_streams import is_inherited
from distir_ext.wire.tokens import TOKEN_VARIABLE
from distir_ext.workers.backends import find_backend
from distir_ext.workers.base import LEAVE_LIMIT, UNWIND_LIMIT
from distir_ext.workers.branches import Branch, WorkerBranch
from distir_ext.workers.lifecycle import Bell

# A terminal's Ctrl-C is for the controller, so workers are another group of processes. They are in
# its session: Linux shares cores among sessions first (autogroups), so that a worker that yields to
# a peer in another one would go on itself.
#
# A module without contents stands for the package while its modules are imported (``start``).
#
# Python puts the working directory before the standard library, where a json.py of anybody's would
# be imported; nothing is imported before that is undone, as -P does since Python 3.11.
_START = """
import sys
sys.path[:] = [each for each in sys.path if each]
import json, os, types
os.setpgid(0, 0)
arguments = json.loads(sys.argv[1])
sys.path[:] = arguments.pop("path")
package = sys.modules["distir_ext"] = types.ModuleType("distir_ext")
package.__path__ = arguments.pop("package")
from distir_ext.workers.start import main
main(**arguments)
"""


# How long workers may take until they are ready, in seconds, if the session has no limit: they may
# import anything. A session's limit for calls is theirs, too, but a process takes some time to
# start, whatever calls take.
START_LIMIT = 300.0
LEAST_START_LIMIT = 10.0


class HostProcesses(ABC):
    """The worker processes of one host, by rank in their session.

    Attributes:
        name: Of the host, for messages; empty for this one.
        address: Of the host; empty for this one.
        line: A connection to the host, if there is one; it answers on it, and its end shows.
        lost: Whether the host has stopped to answer.
    """

    name = ""
    address = ""
    line: Stream | None = None
    lost = False

    @abstractmethod
    def abort(self) -> None:
        """Makes every worker that waits for others fail, now and later."""

    @abstractmethod
    def status(self, ranks: Sequence[int]) -> list[tuple[str, str]]:
        """The operator that each worker runs, and what it waits for; empty if it does not."""

    @abstractmethod
    def progress(self, rank: int) -> list[int]:
        """Returns a worker's progress for :func:`find_deadlock`; empty if its host is lost.

        Returns:
            1 if it waits; the number of its wait; by rank the number of messages that it has sent;
            and by rank the number of messages from there that it has seen.
        """

    @abstractmethod
    def how_it_ended(self, rank: int) -> str:
        """Why a worker's channel has ended, in words."""

    @abstractmethod
    def kill(self) -> None:
        """Ends the processes, whatever they do."""

    @abstractmethod
    def forget(self) -> None:
        """Lets go, in a fork, of what the process that was forked goes on using."""

    @abstractmethod
    def close(self) -> None:
        """Waits a moment for processes whose channels have ended, and ends the others."""


@dataclass
class Started:
    """Hosts and workers of a session that have been started.

    It is plain data, so that it can be ended without the session.

    Attributes:
        bell: Rung when the session is to end, for whoever waits.
        limit: Time in which all of it has to start, in seconds.
        hosts: Its hosts.
        host_of: By rank the worker's host.
        branches: Streams that lead to the workers.
        at_end: Functions to call when all have ended, which give back their hosts.
    """

    bell: Bell = field(default_factory=Bell, compare=False)
    limit: float = START_LIMIT
    hosts: list[HostProcesses] = field(default_factory=list)
    host_of: list[HostProcesses] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    at_end: list[Callable[[], None]] = field(default_factory=list)


@dataclass(frozen=True)
class KeyedSocket:
    """A connection that is handed to a worker.

    Attributes:
        raw: The socket.
        key: Key that encrypts it; empty for none.
    """

    raw: socket.socket
    key: bytes = field(default=b"", repr=False)


class LocalProcesses(HostProcesses):
    """Worker processes of this host, each started fresh.

    They have one shared memory for their collectives, which this process maps too: there it sees
    what each of them is doing, and can end what waits.

    Args:
        num_workers: Of the session, on all hosts.
        imports: Names of modules that each of them imports first.

    Attributes:
        imports: These names.
        board: The shared memory.
        processes: The processes by rank.
    """

    def __init__(self, num_workers: int, imports: Sequence[str]) -> None:
        self.imports = list(imports)
        self.board: Any = tvm_ffi.get_global_func("distir.runtime.process_board")(num_workers, None)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(
        self, rank: int, channel: socket.socket, peers: Mapping[int, KeyedSocket] | None = None
    ) -> None:
        """Starts a worker.

        Args:
            rank: The worker.
            channel: Its end of the channel to the controller, or to the agent of this host; closed
                here.
            peers: Its connections to workers of other hosts, by rank; closed here.

        Raises:
            RuntimeError: there is no interpreter to start.
        """
        if not sys.executable:
            raise RuntimeError("worker processes need sys.executable, Python's interpreter")
        descriptor = tvm_ffi.get_global_func("distir.runtime.process_board_descriptor")
        streams = {} if peers is None else dict(peers)
        with contextlib.ExitStack() as stack:
            board = stack.enter_context(os.fdopen(descriptor(self.board), "rb", buffering=0))
            descriptors = [stack.enter_context(channel).fileno(), board.fileno()]
            descriptors += [stack.enter_context(each.raw).fileno() for each in streams.values()]
            keys = stack.enter_context(_keys_file(streams))
            descriptors.append(keys.fileno())
            arguments = {
                "path": _worker_path(),
                "package": list(sys.modules["distir_ext"].__path__),
                "libraries": native_libraries(),
                "imports": self.imports,
                "rank": rank,
                "channel": channel.fileno(),
                "keys": keys.fileno(),
                "board": board.fileno(),
                "parent": os.getpid(),
                "peers": {other: each.raw.fileno() for other, each in streams.items()},
            }
            self.processes[rank] = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(arguments)],
                stdin=subprocess.DEVNULL,
                stdout=None if is_inherited(1) else subprocess.DEVNULL,
                stderr=None if is_inherited(2) else subprocess.DEVNULL,
                pass_fds=descriptors,
                env=_worker_environment(),
            )

    def has_started(self, rank: int) -> bool:
        """Returns whether a worker has been started here."""
        return rank in self.processes

    def abort(self) -> None:
        tvm_ffi.get_global_func("distir.runtime.process_board_abort")(self.board)

    def status(self, ranks: Sequence[int]) -> list[tuple[str, str]]:
        status = tvm_ffi.get_global_func("distir.runtime.process_board_status")
        found = [status(self.board, rank) for rank in ranks]
        return [(str(operator), str(wait)) for operator, wait in found]

    def progress(self, rank: int) -> list[int]:
        found = tvm_ffi.get_global_func("distir.runtime.process_board_progress")(self.board, rank)
        return [int(each) for each in found]

    def how_it_ended(self, rank: int) -> str:
        process = self.processes[rank]
        try:
            status = process.wait(UNWIND_LIMIT)
        except subprocess.TimeoutExpired:
            return f"process {process.pid} runs, but the line to it has ended"
        if status < 0:
            try:
                name = signal.Signals(-status).name
            except ValueError:  # of those for real time, which have none
                name = f"signal {-status}"
            return f"process {process.pid} was ended by {name}"
        return f"process {process.pid} has ended with exit status {status}"

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()

    def forget(self) -> None:
        self.board = None  # unmaps the shared memory

    def close(self) -> None:
        deadline = time.monotonic() + LEAVE_LIMIT
        for process in self.processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.forget()


def _keys_file(peers: Mapping[int, KeyedSocket]) -> BinaryIO:
    """The keys in memory that a worker inherits: others can read a process's arguments."""
    keys = {rank: each.key.hex() for rank, each in peers.items()}
    file = os.fdopen(os.memfd_create("keys"), "w+b")
    file.write(json.dumps(keys).encode())
    file.flush()
    return file


def _worker_path() -> list[str]:
    """This process's path of modules, with the working directory behind all others.

    It is the first where Python runs ``-c``, ``-m`` or a prompt; workers need it for modules of the
    user only.
    """
    return sorted(sys.path, key=_is_here)


def _worker_environment() -> dict[str, str]:
    """This process's environment without the token, and without the working directory as a path.

    ``PYTHONPATH=:/modules``, of a variable that was not set, has Python look for its own modules
    there before it runs anything.
    """
    environment = {name: each for name, each in os.environ.items() if name != TOKEN_VARIABLE}
    paths = environment.pop("PYTHONPATH", "").split(os.pathsep)
    if kept := [each for each in paths if not _is_here(each)]:
        environment["PYTHONPATH"] = os.pathsep.join(kept)
    return environment


def _is_here(path: str) -> bool:
    """Returns whether an entry of ``sys.path`` is the working directory, however it is spelled."""
    try:
        return Path(path).samefile(".")
    except (OSError, ValueError):  # there is no such directory
        return path == ""


def start_here(started: Started, num_workers: int, ccl: str, imports: Sequence[str]) -> None:
    """Starts the workers of a session on this host.

    Raises:
        RuntimeError: The communication library cannot be loaded, or there is no interpreter.
    """
    find_backend(ccl).check()
    host = LocalProcesses(num_workers, imports)
    started.hosts.append(host)
    for rank in range(num_workers):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        started.host_of.append(host)
        started.branches.append(WorkerBranch(ours, [rank]))
        host.start(rank, theirs)
