"""Connects the copies of one script: rank 0 controls its sessions, and the others serve them.

Each copy runs what ``distir host`` runs. The others connect to that of rank 0:

    copy -> rank 0    its rank, how many copies it knows of, its versions
    rank 0 -> copy    that it is welcome; when all are there, the address that others reach it at
    copy -> rank 0    where it listens
    rank 0 -> copy    when its process exits, the status, in a byte
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import tvm_ffi

from distir_ext.launch import mpi
from distir_ext.launch.finding import LauncherError
from distir_ext.launch.introductions import introduce, open_listener
from distir_ext.launch.place import Place
from distir_ext.launch.token_file import removed_when_ended
from distir_ext.text.printable import printable_line
from distir_ext.wire.byte_stream import Stream
from distir_ext.wire.channel import ChannelClosedError, send
from distir_ext.wire.connections import (
    format_address,
    is_loopback_address,
    keep_watch,
    parse_address,
)
from distir_ext.wire.credentials import Credentials
from distir_ext.wire.dialling import Dialling
from distir_ext.wire.handshake import (
    NotConnectedError,
    RefusedByHostError,
    connect,
    receive_answer,
)
from distir_ext.wire.tls import Tls
from distir_ext.workers.hosts.host_agent import HostAgent
from distir_ext.workers.hosts.openings import RefusedError
from distir_ext.workers.hosts.versions import versions

# How long a copy that is there may take to listen, in seconds.
_LISTEN_LIMIT = 30.0

# How often rank 0 looks whether copies have ended while it waits, and how long a copy waits before
# it dials again, in seconds.
_LOOK_INTERVAL = 0.2
_DIAL_INTERVAL = 0.2

# After how long a silent machine counts as lost, in seconds.
_LOST_AFTER = 20.0


@dataclass(frozen=True)
class Joined:
    """State of rank 0 when all copies have joined.

    Attributes:
        asked: The requested place, and the token that the program stated.
        leader: The listener that copies join at.
        addresses: By rank where agents listen.
        names: By rank the name of the copy for messages.
        token: The token that all copies share.
        ccl: The communication library that has been started.
    """

    asked: tuple[Place, str | None]
    leader: Leader
    addresses: list[str]
    names: list[str]
    token: str = field(repr=False)
    ccl: str


def _keep_mpi(place: Place, limit: float) -> None:
    try:
        mpi.keep(place, limit)
    except mpi.MpiError as error:
        raise LauncherError(f"{place}: {error}. Found: {place.listed()}") from None


_mutex = threading.Lock()
_joined: Joined | None = None


def join(place: Place, token: str | None, limit: float, ccl: str = "cpu") -> Joined:
    """Meets the other copies, once in a process; returns on rank 0 only.

    Args:
        place: This copy's.
        token: Token that all copies share, if the program states it.
        limit: Time limit for all copies to start, in seconds.
        ccl: The communication library of sessions; MPI is started for ``"mpi"``.

    Raises:
        LauncherError: copies do not come, have ended, or contradict each other; rank 0 cannot
            listen; MPI cannot be used.
        OSError, ValueError: there is no token, or it is of no use.
        SystemExit: this is not rank 0, which has ended.
    """
    global _joined
    with _mutex:
        if _joined is not None:
            if _joined.asked != (place, token):
                raise LauncherError(
                    f"this process is {_joined.asked[0]} already, and cannot be {place} with "
                    "another address or token"
                )
            _joined.leader.check()
            if ccl == "mpi" and _joined.ccl != "mpi":
                raise LauncherError(
                    "the copies have met without MPI, and other copies cannot start it now: state "
                    'ccl="mpi" for the first session, or in dx.Hosts.from_env(ccl="mpi")'
                )
            return _joined
        if ccl == "mpi":
            _keep_mpi(place, limit)
        begun = time.monotonic()
        if place.rank != 0:
            introduction = introduce(place, None, token, limit)
            serve(place, introduction.token, introduction.addresses, limit, begun)
        listener = open_listener(place)
        with removed_when_ended():
            try:
                introduction = introduce(place, listener, token, limit)
            except BaseException:
                listener.close()
                raise
            try:
                leader = Leader(place, introduction.token, listener)
                addresses = leader.gather(limit, begun)
            finally:
                introduction.remove_file()
        names = leader.names(addresses[0])
        _joined = Joined((place, token), leader, addresses, names, introduction.token, ccl)
        return _joined


@dataclass(frozen=True)
class _Other:
    """Another copy: the connection to it, TLS on that, its host's address, its process there."""

    descriptor: int
    tls: Tls | None
    host: str
    process: str


class Leader:
    """Rank 0: meets the other copies.

    Args:
        place: Its place.
        token: The token that all copies share.
        listener: Socket that the others connect to; owned by this object from now on.

    Raises:
        RuntimeError: OpenSSL cannot be loaded.
    """

    def __init__(self, place: Place, token: str, listener: socket.socket) -> None:
        self._place = place
        self._agent = HostAgent(listener, Credentials(token.encode()), self._meet)
        self._changed = threading.Condition()
        self._lines: dict[int, Stream] = {}  # until all are there
        self._others: dict[int, _Other] = {}
        self._forked = False
        self._contradiction = ""
        threading.Thread(target=self._agent.serve, daemon=True).start()
        atexit.register(self._agent.close)
        os.register_at_fork(after_in_child=self._forget)

    def gather(self, limit: float, begun: float | None = None) -> list[str]:
        """Waits for all copies.

        Args:
            limit: For how long, in seconds.
            begun: Since when, on the clock ``time.monotonic``; None: from now on.

        Returns:
            By rank where their agents listen.

        Raises:
            LauncherError: some do not come, end, or contradict the others.
        """
        try:
            self._wait(_since(begun) + limit, limit)
            addresses = self._ask()
        except LauncherError as error:
            self._dismiss(str(error))
            raise
        tell = tvm_ffi.get_global_func("distir.runtime.tell_exit_status")
        for line in self._lines.values():
            # Python would close its sockets before the status is told.
            tell(line.raw.detach(), None if line.tls is None else line.tls.native)
        self._lines.clear()
        return addresses

    def names(self, address: str) -> list[str]:
        """Returns the names of copies for messages, by rank; this one's agent is at the address."""
        others = [
            f"{other.host} (rank {rank}, {other.process})"
            for rank, other in sorted(self._others.items())
        ]
        return [f"{parse_address(address)[0]} (rank 0, pid {os.getpid()})", *others]

    def check(self) -> None:
        """Looks whether all copies are still there.

        Raises:
            LauncherError: one has ended; names it. Or this process is a fork of rank 0.
        """
        if self._forked:
            raise LauncherError(
                "this process is a fork of rank 0, which alone has the other copies"
            )
        poll = select.poll()
        for other in self._others.values():
            poll.register(other.descriptor, select.POLLRDHUP)
        ended = {descriptor for descriptor, _ in poll.poll(0)}
        for rank, other in sorted(self._others.items()):
            if other.descriptor in ended:
                raise LauncherError(
                    f"rank {rank} of {self._place.size}, at {other.host}, has ended "
                    f"({other.process}); the other copies are of no use without it. This is "
                    f"{self._place}"
                )

    def _meet(self, stream: Stream, message: Any) -> None:
        """Takes the connection of a copy; runs in a thread of the agent."""
        rank, size, theirs = (_field(message, name) for name in ("rank", "size", "versions"))
        process = message.get("process")
        if theirs != versions():
            raise RefusedError(f"rank 0 has {', '.join(versions())}, rank {rank} has {theirs}")
        with self._changed:
            problem = ""
            if size != self._place.size:
                problem = f"rank {rank} knows of {size} copies, rank 0 of {self._place.size}"
            elif type(rank) is not int or not 0 < rank < self._place.size:
                problem = f"a copy says that it is rank {rank} of {self._place.size}"
            elif rank in self._others:
                problem = (
                    f"two copies say that they are rank {rank}, "
                    f"at {self._others[rank].host} and at {stream.raw.getpeername()[0]}"
                )
            if problem:
                self._contradiction = problem
                self._changed.notify_all()
                raise RefusedError(f"{problem}. Rank 0 is {self._place}")
            send(stream, {"answer": None})
            stream.limit(math.inf)
            keep_watch(stream.raw, _LOST_AFTER)
            self._lines[rank] = stream
            self._others[rank] = _Other(
                stream.fileno(),
                stream.tls,
                stream.raw.getpeername()[0],
                f"pid {process}" if type(process) is int else "pid not stated",
            )
            self._changed.notify_all()

    def _wait(self, deadline: float, limit: float) -> None:
        others = range(1, self._place.size)
        with self._changed:
            while missing := [rank for rank in others if rank not in self._others]:
                self._raise_contradiction()
                self.check()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise LauncherError(
                        f"after {limit:g} seconds {len(self._others) + 1} of {self._place.size} "
                        f"copies are there; not there: rank {_counted(missing)}. A copy has to "
                        "open the same session, with the same token. This is "
                        f"{self._place}. Found: {self._place.listed()}"
                    )
                self._changed.wait(min(left, _LOOK_INTERVAL))
            self._raise_contradiction()

    def _raise_contradiction(self) -> None:
        if self._contradiction:
            raise LauncherError(
                f"copies contradict each other: {self._contradiction}. This is {self._place}. "
                f"Found: {self._place.listed()}"
            )

    def _ask(self) -> list[str]:
        """Tells copies by which address others reach them; they listen there."""
        mine, port = self._my_host(), parse_address(self._agent.address)[1]
        addresses = [format_address((mine, port))]
        lines = sorted(self._lines.items())
        for rank, line in lines:
            theirs = self._others[rank].host
            with self._ended_is_an_error(rank):
                send(line, {"answer": mine if is_loopback_address((theirs,)) else theirs})
        for rank, line in lines:
            line.limit(_LISTEN_LIMIT)
            with self._ended_is_an_error(rank):
                address = receive_answer(line)
                parse_address(address)
                addresses.append(address)
            line.limit(math.inf)
        return addresses

    def _my_host(self) -> str:
        """This host's address, by which those of other hosts have come."""
        here = [line.raw.getsockname() for line in self._lines.values()]
        others = [str(each[0]) for each in here if not is_loopback_address(each)]
        if others:
            return others[0]
        return str(here[0][0]) if here else parse_address(self._agent.address)[0]

    @contextlib.contextmanager
    def _ended_is_an_error(self, rank: int) -> Iterator[None]:
        try:
            yield
        except (ChannelClosedError, RefusedByHostError, TypeError, ValueError) as error:
            raise LauncherError(
                f"rank {rank} of {self._place.size}, at {self._others[rank].host}, cannot serve: "
                f"{error}. This is {self._place}"
            ) from error

    def _dismiss(self, why: str) -> None:
        with self._changed:
            lines = list(self._lines.values())
        for line in lines:
            line.limit(_LOOK_INTERVAL)
            with contextlib.suppress(ChannelClosedError):
                send(line, {"refused": why})
            line.hang_up()
        with self._changed:  # their descriptors may be others soon
            self._others.clear()
            self._lines.clear()
        self._agent.close()

    def _forget(self) -> None:
        """In a fork, which would keep the connections open when this process has ended."""
        self._forked = True
        self._agent.forget()
        for other in self._others.values():
            if other.tls is not None:
                other.tls.forget()
            with contextlib.suppress(OSError):
                os.close(other.descriptor)


def serve(
    place: Place,
    token: str,
    addresses: Sequence[str],
    limit: float,
    begun: float | None = None,
) -> NoReturn:
    """Serves the sessions of rank 0 until its process ends.

    Args:
        place: This copy's.
        token: The token that all copies share.
        addresses: Addresses of rank 0.
        limit: Time limit for all copies to start, in seconds.
        begun: Since when, on the clock ``time.monotonic``; None: from now on.

    Raises:
        LauncherError: rank 0 cannot be reached, or refuses; says why.
        SystemExit: rank 0 has ended, with its status; 1 if it has not said which.
    """
    credentials = Credentials(token.encode())
    line = _dial(place, credentials, addresses, _since(begun) + limit, limit)
    keep_watch(line.raw, _LOST_AFTER)
    try:
        line.limit(limit + _LISTEN_LIMIT)
        host = receive_answer(line)
        agent = HostAgent(format_address((host, 0)), credentials)
        send(line, {"answer": agent.address})
    except RefusedByHostError as error:
        raise LauncherError(f"rank 0 has ended the meeting of all copies: {error}") from error
    except ChannelClosedError as error:
        raise LauncherError(
            f"rank 0 has ended before all copies were there; its own error says why. This is "
            f"{place}. Found: {place.listed()}"
        ) from error
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        with contextlib.suppress(ChannelClosedError):
            send(line, {"refused": str(error)})
        raise
    threading.Thread(target=agent.serve, daemon=True).start()
    try:
        line.limit(math.inf)
        status = line.receive(1)[0]
    except (EOFError, OSError):
        if sys.stderr is not None:
            print(
                f"distir_ext: rank 0 has ended without saying how; rank {place.rank} ends with 1",
                file=sys.stderr,
            )
        status = 1
    finally:
        agent.close()
        line.close()
    raise SystemExit(status)


def _dial(
    place: Place,
    credentials: Credentials,
    addresses: Sequence[str],
    deadline: float,
    limit: float,
) -> Stream:
    opening = {
        "rank": place.rank,
        "size": place.size,
        "process": os.getpid(),
        "versions": versions(),
    }
    why = dict.fromkeys(addresses, "it does not answer")

    def ask(address: str, left: float, turn: Callable[[], AbstractContextManager[None]]) -> Stream:
        return connect(address, credentials, "copy", opening, limit=left, turn=turn)

    with contextlib.closing(Dialling(ask, addresses, _DIAL_INTERVAL, deadline)) as dialling:
        while came := dialling.next():
            address, found = came
            if isinstance(found, Stream):
                return found
            if isinstance(found, RefusedByHostError):
                raise LauncherError(f"rank 0, at {address}: {found}. This is {place}") from found
            if not isinstance(found, NotConnectedError):
                raise found
            why[address] = str(found.__cause__ or found)
            # Whoever listens there is another one; rank 0 may be at the other addresses.
            if found.__cause__ is None and len(addresses) == 1:
                raise LauncherError(f"{found}. This is {place}") from found
    said = "; ".join(f"{address}: {each}" for address, each in why.items())
    raise LauncherError(
        f"rank 0 cannot be reached within {limit:g} seconds ({printable_line(said)}). It has to "
        f"open a session too. This is {place}. Found: {place.listed()}"
    )


def _since(begun: float | None) -> float:
    return time.monotonic() if begun is None else begun


def _field(message: Any, name: str) -> Any:
    if not isinstance(message, dict) or name not in message:
        raise RefusedError(f'the message has no "{name}"')
    return message[name]


def _counted(ranks: Sequence[int]) -> str:
    """Some of them: there may be thousands."""
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} others"
