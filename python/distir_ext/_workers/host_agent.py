"""``distir host``: starts the worker processes of sessions on this host, and ends them.

It listens at one address. Every connection is one of three, told by its first frame:

- ``{"purpose": "session", ...}`` from a controller: a session, for as long as the connection lasts.
  ``start``, ``status``, ``progress`` and ``how_it_ended`` are answered with ``{"answer"}``, or
  ``{"refused"}`` with the reason; ``abort`` and ``kill`` are not answered;
- ``{"purpose": "channel", "session", "rank"}`` from a controller: its channel to a worker;
- ``{"purpose": "peer", "session", "source", "target"}`` from another host: between two workers.

Workers are handed their connections when they start. They end with the session, or with the agent.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distir_ext._workers.channel import ChannelClosedError, Frame, receive, send
from distir_ext._workers.connections import (
    NotConnectedError,
    accept,
    connect,
    format_address,
    hang_up,
    keep_watch,
    listen,
)
from distir_ext._workers.host_processes import LocalProcesses
from distir_ext._workers.remote_processes import versions

# Connections that may be proving at one time that they have the token.
_MOST_STRANGERS = 64

# How long the connections for a session's workers may take, in seconds.
_ARRIVAL_LIMIT = 30.0

# How long sessions may take to end when the agent does, in seconds.
_END_LIMIT = 5.0


class _RefusedError(Exception):
    """A request that is answered with the reason why not."""


class HostAgent:
    """What ``distir host`` runs.

    Args:
        address: Where to listen.
        token: What others have to have.

    Attributes:
        address: Where it listens, with the port that was found if none was asked for (port 0).

    Raises:
        OSError: it can not listen there.
    """

    def __init__(self, address: str, token: bytes) -> None:
        self._token = token
        self._listener = listen(address)
        self.address = format_address(self._listener.getsockname())
        self._strangers = threading.BoundedSemaphore(_MOST_STRANGERS)
        self._mutex = threading.Lock()
        self._sessions: dict[str, _HostedSession] = {}
        self._threads: set[threading.Thread] = set()

    def serve(self) -> None:
        """Serves until the process is interrupted, then ends what has been started."""
        try:
            while True:
                stream, _ = self._listener.accept()
                self._strangers.acquire()
                thread = threading.Thread(target=self._receive, args=(stream,), daemon=True)
                thread.start()
        finally:
            self.close()

    def close(self) -> None:
        """Ends all sessions and their processes."""
        hang_up(self._listener)
        with self._mutex:
            sessions, threads = list(self._sessions.values()), list(self._threads)
        for session in sessions:
            session.interrupt()
        deadline = time.monotonic() + _END_LIMIT
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _receive(self, stream: socket.socket) -> None:
        """Serves one connection."""
        try:
            accept(stream, self._token)
            opening = receive(stream)
            stream.settimeout(None)
        except (NotConnectedError, ChannelClosedError, ValueError, OSError):
            hang_up(stream)
            return
        finally:
            self._strangers.release()
        if opening["purpose"] == "session":
            self._serve_session(stream, opening)
            return
        with self._mutex:
            session = self._sessions.get(opening["session"])
        if session is None:
            hang_up(stream)
        elif opening["purpose"] == "channel":
            session.arrived(("channel", opening["rank"]), stream)
        else:
            session.arrived(("peer", opening["source"], opening["target"]), stream)

    def _serve_session(self, stream: socket.socket, opening: Mapping[str, Any]) -> None:
        name = opening["session"]
        try:
            if opening["versions"] != versions():
                theirs, ours = ", ".join(opening["versions"]), ", ".join(versions())
                raise _RefusedError(f"it has {ours}, the controller has {theirs}")
            keep_watch(stream, opening["lost_after"])
            session = _HostedSession(stream, opening, self._token)
        except (_RefusedError, RuntimeError) as error:
            with contextlib.suppress(ChannelClosedError):
                send(stream, {"refused": str(error)})
            hang_up(stream)
            return
        with self._mutex:
            self._sessions[name] = session
            self._threads.add(threading.current_thread())
        try:
            session.serve()
        finally:
            session.end()
            with self._mutex:
                del self._sessions[name]
                self._threads.discard(threading.current_thread())


class _HostedSession:
    """The part of one session that is on this host."""

    def __init__(self, line: socket.socket, opening: Mapping[str, Any], token: bytes) -> None:
        self._line = line
        self._name: str = opening["session"]
        self._ranks: list[int] = opening["ranks"]
        self._num_workers: int = opening["num_workers"]
        self._lost_after: float = opening["lost_after"]
        self._token = token
        self._processes = LocalProcesses(self._num_workers, opening["imports"])
        self._changed = threading.Condition()
        self._streams: dict[tuple[Any, ...], socket.socket] = {}  # that no worker has yet
        self._ended = False

    def arrived(self, key: tuple[Any, ...], stream: socket.socket) -> None:
        """Keeps a connection for the worker that will have it."""
        with self._changed:
            if not self._ended and key not in self._streams:
                keep_watch(stream, self._lost_after)
                self._streams[key] = stream
                self._changed.notify_all()
                return
        hang_up(stream)

    def interrupt(self) -> None:
        """Has :meth:`serve` return."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)

    def serve(self) -> None:
        """Does what the controller asks for, until it is gone."""
        answers: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "start": lambda request: self._start(request["hosts"]),
            "status": lambda request: list(self._processes.status(request["rank"])),
            "progress": lambda request: self._processes.progress(request["rank"]),
            "how_it_ended": lambda request: self._processes.how_it_ended(request["rank"]),
        }
        with contextlib.suppress(ChannelClosedError):
            send(self._line, {"answer": None})
            while True:
                request = receive(self._line)
                if request["request"] == "abort":
                    self._processes.abort()
                elif request["request"] == "kill":
                    self._processes.kill()
                else:
                    try:
                        answer = {"answer": answers[request["request"]](request)}
                    except (_RefusedError, RuntimeError, OSError) as error:
                        answer = {"refused": str(error)}
                    send(self._line, answer)

    def end(self) -> None:
        """Ends the processes."""
        with self._changed:
            self._ended = True
            for stream in self._streams.values():
                hang_up(stream)
            self._streams.clear()
        hang_up(self._line)
        self._processes.close()

    def _start(self, hosts: Sequence[tuple[str, Sequence[int]]]) -> None:
        before = True  # whether hosts are asked by this one; the later ones ask it
        expected: list[tuple[Any, ...]] = [("channel", rank) for rank in self._ranks]
        for address, ranks in hosts:
            if list(ranks) == self._ranks:
                before = False
                continue
            for mine in self._ranks:
                for theirs in ranks:
                    if before:
                        self._connect(address, mine, theirs)
                    expected.append(("peer", theirs, mine))
        streams = self._wait_for(expected)
        for rank in self._ranks:
            peers = {
                theirs: streams["peer", theirs, rank]
                for _, ranks in hosts
                for theirs in ranks
                if theirs not in self._ranks
            }
            self._processes.start(rank, streams["channel", rank], peers)

    def _connect(self, address: str, mine: int, theirs: int) -> None:
        try:
            stream = connect(address, self._token)
        except NotConnectedError as error:
            raise _RefusedError(f"it has no connection to host {address}: {error}") from error
        opening = {"purpose": "peer", "session": self._name, "source": mine, "target": theirs}
        Frame(opening).write(stream)
        self.arrived(("peer", theirs, mine), stream)

    def _wait_for(self, expected: Sequence[tuple[Any, ...]]) -> dict[Any, socket.socket]:
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._streams.keys() >= set(expected), _ARRIVAL_LIMIT
            ):
                missing = sorted({key[1] for key in set(expected) - self._streams.keys()})
                raise _RefusedError(f"the workers of ranks {missing} have not connected to it")
            return {key: self._streams.pop(key) for key in expected}
