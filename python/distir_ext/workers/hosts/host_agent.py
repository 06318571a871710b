"""``distir host``: starts the worker processes of sessions on this host, and ends them.

It listens at one address. Every connection has one of four purposes (``handshake``, ``openings``):

- ``session``, from a controller: a session, for as long as the connection lasts.
  ``start``, ``status``, ``progress`` and ``how_it_ended`` are answered with ``{"answer"}``, or
  ``{"refused"}`` with the reason; ``abort`` and ``kill`` are not answered;
- ``channel``, from a controller, or from a host that passes on what that says (``tree``): to all
  workers of this host, and of those that this one passes on to (``relay``);
- ``peer``, from another host: between two workers;
- ``copy``, from another copy of the script that this process runs (``copies``); others refuse it.

Workers are handed their connections to others when they start. They end with the session, or with
the agent.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from distir_ext.wire.byte_stream import Stream, hang_up, interrupt
from distir_ext.wire.channel import ChannelClosedError, receive, send
from distir_ext.wire.connections import (
    format_address,
    is_loopback_address,
    keep_watch,
    listen,
)
from distir_ext.wire.credentials import Credentials
from distir_ext.wire.handshake import (
    HANDSHAKE_LIMIT,
    NotConnectedError,
    RefusedByHostError,
    accept,
    connect,
)
from distir_ext.wire.standard_streams import open_closed_ones
from distir_ext.wire.strangers import Strangers, most_strangers
from distir_ext.workers.backends import find_backend, is_of_copies
from distir_ext.workers.host_processes import KeyedSocket, LocalProcesses
from distir_ext.workers.hosts.at_once import at_once
from distir_ext.workers.hosts.openings import (
    ChannelOpening,
    PeerOpening,
    RefusedError,
    SessionOpening,
    parse_below,
    parse_hosts,
    parse_opening,
    rank_of,
    request_of,
    some_ranks_of,
)
from distir_ext.workers.hosts.relay import Relay
from distir_ext.workers.hosts.versions import versions
from distir_ext.workers.hosts.workers_of_copy import WorkersOfCopy

_Result = TypeVar("_Result")

# How long the connections for a session's workers may take, in seconds.
_ARRIVAL_LIMIT = 30.0

# How long sessions may take to end when the agent does, in seconds.
_END_LIMIT = 5.0

# Why the system may not accept one connection more for now, and how long to wait then, in seconds.
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_EXHAUSTED_WAIT = 0.01

# What accepting says of a listener that is closed; all else is about one connection.
_CLOSED = {errno.EBADF, errno.EINVAL, errno.ENOTSOCK}


class HostAgent:
    """Host agent, which ``distir host`` runs.

    Args:
        address: Address to listen at, or a socket that listens.
        credentials: Credentials that clients are checked against.
        meet: Takes the connection of another copy of this process's script, with what it says
            first; what it raises is the answer.

    Attributes:
        address: Address at which it listens, with the port that was found for port 0.

    Raises:
        OSError: it cannot listen there.
        RuntimeError: OpenSSL cannot be loaded.
        ValueError: a certificate, or the file of a key or an authority, is of no use.
    """

    def __init__(
        self,
        address: str | socket.socket,
        credentials: Credentials,
        meet: Callable[[Stream, Any], None] | None = None,
    ) -> None:
        open_closed_ones()
        self._credentials = credentials
        self._meet = meet
        self._listener = listen(address) if isinstance(address, str) else address
        self.address = format_address(self._listener.getsockname())
        if credentials.certificate or not is_loopback_address(self._listener.getsockname()):
            self._check_tls()
        self._strangers = Strangers()
        self._mutex = threading.Lock()
        self._sessions: dict[str, _HostedSession] = {}
        self._threads: set[threading.Thread] = set()
        self._ends = False

    def _check_tls(self) -> None:
        """Finds out before anybody connects that there is no OpenSSL, or a file of no use."""
        if self._credentials.tls is False:
            return
        try:
            self._credentials.identity  # noqa: B018
        except BaseException:
            self._listener.close()
            raise

    def serve(self) -> None:
        """Serves until the process is interrupted, then ends what has been started."""
        try:
            while (arrived := self._arrived()) is not None:
                for raw in arrived:
                    if not self._strangers.has(raw):
                        raw.close()
                        continue
                    try:
                        threading.Thread(target=self._receive, args=(raw,), daemon=True).start()
                    except RuntimeError:  # the system has no thread more
                        self._strangers.leave(raw)
                        hang_up(raw)
        finally:
            self.close()
            self._listener.close()

    def _arrived(self) -> list[socket.socket] | None:
        """Waits for connections and takes all that there are; None when there will be no more.

        Of many strangers most have to go again, which costs little before they have a thread: who
        has the token waits behind them.
        """
        arrived: list[socket.socket] = []
        try:
            self._listener.setblocking(True)
            while len(arrived) < most_strangers():
                raw, address = self._listener.accept()
                self._strangers.enter(raw, address[0])
                arrived.append(raw)
                self._listener.setblocking(False)
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno in _CLOSED:
                for raw in arrived:
                    self._strangers.leave(raw)
                    hang_up(raw)
                return None
            if error.errno in _EXHAUSTED:
                self._strangers.end_older_half()
                time.sleep(_EXHAUSTED_WAIT)
        return arrived

    def close(self) -> None:
        """Ends all sessions and their processes, and has :meth:`serve` return."""
        interrupt(self._listener)
        with self._mutex:
            self._ends = True
            sessions, threads = list(self._sessions.values()), list(self._threads)
        for session in sessions:
            session.interrupt()
        deadline = time.monotonic() + _END_LIMIT
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def forget(self) -> None:
        """Lets go, in a fork, of what the process that was forked goes on using."""
        self._listener.close()

    def _receive(self, raw: socket.socket) -> None:
        """Serves one connection."""
        stream = Stream(raw)
        stream.limit(HANDSHAKE_LIMIT)
        try:
            purpose = accept(stream, self._credentials)
        except (NotConnectedError, OSError, EOFError):
            stream.hang_up()
            return
        finally:
            self._strangers.leave(raw)
        try:
            message = receive(stream)
            if purpose == "copy":
                self._welcome(stream, message)
                return
            opening = parse_opening(purpose, stream.tls is not None, message)
            if isinstance(opening, SessionOpening):
                self._serve_session(stream, opening)
            else:
                self._session(opening.session).arrived(opening, stream)
        except Exception as error:  # whatever it sends is an error for this client alone
            with contextlib.suppress(ChannelClosedError):
                send(stream, {"refused": str(error) or type(error).__name__})
            stream.hang_up()

    def _welcome(self, stream: Stream, message: Any) -> None:
        if self._meet is None:
            raise RefusedError("it is not rank 0 of a script that a launcher has started")
        self._meet(stream, message)

    def _session(self, name: str) -> _HostedSession:
        with self._mutex:
            session = self._sessions.get(name)
        if session is None:
            raise RefusedError("it has no such session")
        return session

    def _serve_session(self, stream: Stream, opening: SessionOpening) -> None:
        if opening.versions != versions():
            theirs, ours = ", ".join(opening.versions), ", ".join(versions())
            raise RefusedError(f"it has {ours}, the controller has {theirs}")
        session = _HostedSession(stream, opening, self._credentials)  # may load libraries
        with self._mutex:
            if self._ends:
                raise RefusedError("it ends")
            if opening.session in self._sessions:
                raise RefusedError("it has a session of this name")
            self._sessions[opening.session] = session
            self._threads.add(threading.current_thread())
        try:
            keep_watch(stream.raw, opening.lost_after)
            session.serve()
        finally:
            session.end()
            with self._mutex:
                del self._sessions[opening.session]
                self._threads.discard(threading.current_thread())


class _HostedSession:
    """The part of one session that is on this host."""

    def __init__(self, line: Stream, opening: SessionOpening, credentials: Credentials) -> None:
        self._line = line
        self._opening = opening
        self._ranks = opening.ranks
        self._credentials = credentials
        # Then a library connects workers of different hosts, and not this.
        self._of_copies = is_of_copies(opening.ccl)
        if self._of_copies:
            find_backend(opening.ccl).check()
        kind = WorkersOfCopy if self._of_copies else LocalProcesses
        self._processes = kind(opening.num_workers, opening.imports)
        self._changed = threading.Condition()
        self._streams: dict[ChannelOpening | PeerOpening, Stream] = {}  # that no worker has yet
        self._relay: Relay | None = None
        self._below: dict[tuple[int, ...], Stream] = {}  # to hosts, by the workers that they reach
        self._started = False
        self._ended = False

    def arrived(self, opening: ChannelOpening | PeerOpening, stream: Stream) -> None:
        """Keeps a connection for when workers start.

        Raises:
            RefusedError: no worker of this host will have it.
        """
        whose = "the session"
        if isinstance(opening, PeerOpening):
            if opening.target not in self._ranks:
                raise RefusedError(f"rank {opening.target} is none of this host's, {self._ranks}")
            if opening.source in self._ranks or opening.source >= self._opening.num_workers:
                raise RefusedError(f"rank {opening.source} is none of another host")
            whose = f"worker {opening.target}"
        with self._changed:
            if self._ended or self._started or opening in self._streams:
                raise RefusedError(f"{whose} has this connection already")
            send(stream, {"answer": None})
            if isinstance(opening, PeerOpening):
                stream.key = opening.key
            else:
                stream.limit(math.inf)
            self._keep(opening, stream)

    def _keep(self, opening: ChannelOpening | PeerOpening, stream: Stream) -> None:
        with self._changed:
            if self._ended:
                stream.hang_up()
                raise RefusedError("the session has ended")
            keep_watch(stream.raw, self._opening.lost_after)
            self._streams[opening] = stream
            self._changed.notify_all()

    def interrupt(self) -> None:
        """Makes :meth:`serve` return."""
        interrupt(self._line.raw)

    def serve(self) -> None:
        """Does what the controller asks for, until it is gone."""
        answers: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "start": self._start,
            "status": lambda request: [
                list(each) for each in self._processes.status(self._some_ranks(request))
            ],
            "progress": lambda request: self._processes.progress(self._rank(request)),
            "how_it_ended": lambda request: self._processes.how_it_ended(self._rank(request)),
        }
        with contextlib.suppress(ChannelClosedError):
            send(self._line, {"answer": None})
            self._line.limit(math.inf)
            while True:
                message = receive(self._line)
                try:
                    request = request_of(message)
                    if request == "abort":
                        self._processes.abort()
                        continue
                    if request == "kill":
                        self._processes.kill()
                        continue
                    if request not in answers:
                        raise RefusedError(f'there is no request "{request}"')
                    answer = {"answer": answers[request](message)}
                except (RefusedError, RuntimeError, OSError) as error:
                    answer = {"refused": str(error)}
                send(self._line, answer)

    def _rank(self, request: Mapping[str, Any]) -> int:
        """The worker that a request is about, whose process has been started."""
        return self._started_one(rank_of(request, self._ranks))

    def _some_ranks(self, request: Mapping[str, Any]) -> list[int]:
        """The workers that a request is about."""
        return [self._started_one(rank) for rank in some_ranks_of(request, self._ranks)]

    def _started_one(self, rank: int) -> int:
        if not self._processes.has_started(rank):
            raise RefusedError(f"worker {rank} has not been started")
        return rank

    def end(self) -> None:
        """Ends the processes."""
        with self._changed:
            self._ended = True
            for stream in self._streams.values():
                stream.hang_up()
            self._streams.clear()
            relay = self._relay
            for stream in self._below.values() if relay is None else ():
                stream.hang_up()
            self._changed.notify_all()
        self._line.hang_up()
        if relay is not None:
            relay.close()  # workers that are not busy end now
        self._processes.close()

    def _start(self, request: Mapping[str, Any]) -> None:
        if self._started:
            raise RefusedError("its workers have been started")
        hosts = parse_hosts(request, self._opening.num_workers, self._ranks)
        below = parse_below(request, self._opening.num_workers, self._ranks)

        def connected() -> dict[ChannelOpening | PeerOpening, Stream]:
            self._connect_below(below)
            return self._gather(hosts)

        streams = self._while_the_controller_is_there(connected)
        ends: dict[int, socket.socket] = {}
        for rank in self._ranks:
            peers = {
                each.source: KeyedSocket(stream.hand_over(), stream.key)
                for each, stream in streams.items()
                if isinstance(each, PeerOpening) and each.target == rank
            }
            ends[rank], theirs = socket.socketpair()
            ends[rank].setblocking(False)
            self._processes.start(rank, theirs, peers)
        with self._changed:
            channel = streams[ChannelOpening(self._opening.session)]
            self._relay = Relay(channel, ends, self._below)

    def _while_the_controller_is_there(self, work: Callable[[], _Result]) -> _Result:
        """Runs work that waits for others, and returns its result.

        Raises:
            ChannelClosedError: the controller is gone; the work goes on in its thread.
        """
        outcome: Future[_Result] = Future()
        done, write = os.pipe()

        def run() -> None:
            try:
                outcome.set_result(work())
            except BaseException as error:
                outcome.set_exception(error)
            finally:
                os.close(write)

        threading.Thread(target=run, daemon=True).start()
        poll = select.poll()
        poll.register(done, select.POLLIN)
        poll.register(self._line, select.POLLRDHUP)
        poll.poll()
        os.close(done)
        if not outcome.done():
            raise ChannelClosedError("the controller is gone")
        return outcome.result()

    def _gather(
        self, hosts: Sequence[tuple[str, Sequence[int]]]
    ) -> dict[ChannelOpening | PeerOpening, Stream]:
        """The connections of this host's workers: some are made, others arrive."""
        before = True  # whether hosts are asked by this one; the later ones ask it
        expected: list[ChannelOpening | PeerOpening] = [ChannelOpening(self._opening.session)]
        for address, ranks in [] if self._of_copies else hosts:
            if ranks == self._ranks:
                before = False
                continue
            for mine in self._ranks:
                for theirs in ranks:
                    if before:
                        self._connect(address, mine, theirs)
                    expected.append(PeerOpening(self._opening.session, theirs, mine))
        return self._wait_for(expected)

    def _connect(self, address: str, mine: int, theirs: int) -> None:
        session = self._opening.session
        opening = {"session": session, "source": mine, "target": theirs}
        self._keep(PeerOpening(session, theirs, mine), self._stream_to(address, "peer", opening))

    def _stream_to(self, address: str, purpose: str, opening: dict[str, Any]) -> Stream:
        try:
            return connect(address, self._credentials, purpose, opening)
        except (NotConnectedError, RefusedByHostError) as error:
            raise RefusedError(f"it has no connection to host {address}: {error}") from error

    def _connect_below(self, below: Sequence[tuple[str, Sequence[int]]]) -> None:
        """Connects to the hosts that this one passes on to."""
        opening = {"session": self._opening.session}
        streams = at_once(
            [partial(self._stream_to, address, "channel", opening.copy()) for address, _ in below],
            undo=Stream.hang_up,
        )
        with self._changed:
            for (_, ranks), stream in zip(below, streams, strict=True):
                keep_watch(stream.raw, self._opening.lost_after)
                stream.setblocking(False)
                self._below[tuple(ranks)] = stream
            if self._ended:
                for stream in streams:
                    stream.hang_up()
                raise RefusedError("the session has ended")

    def _wait_for(
        self, expected: Sequence[ChannelOpening | PeerOpening]
    ) -> dict[ChannelOpening | PeerOpening, Stream]:
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._ended or self._streams.keys() >= set(expected), _ARRIVAL_LIMIT
            ):
                lacking = set(expected) - self._streams.keys()
                missing = sorted({each.source for each in lacking if isinstance(each, PeerOpening)})
                if not missing:
                    raise RefusedError("nobody who sends it messages has connected to it")
                raise RefusedError(f"the workers of ranks {missing} have not connected to it")
            if self._ended:
                raise RefusedError("the session has ended")
            self._started = True
            return {each: self._streams.pop(each) for each in expected}
