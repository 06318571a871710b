"""Controls the worker processes of another host, through the agent that runs there."""

from __future__ import annotations

import contextlib
import functools
import math
import secrets
import selectors
import socket
import time
import warnings
from collections import deque
from collections.abc import Sequence
from typing import Any, NoReturn

from distir_ext.text.printable import printable
from distir_ext.wire.byte_stream import DeadlineError, Stream
from distir_ext.wire.channel import ChannelClosedError, FrameReader, send
from distir_ext.wire.connections import is_loopback, keep_watch
from distir_ext.wire.credentials import UNENCRYPTED, Credentials
from distir_ext.wire.handshake import (
    NotConnectedError,
    RefusedByHostError,
    answer_of,
    connect,
)
from distir_ext.wire.tokens import read_token
from distir_ext.workers.backends import sends_in_the_clear
from distir_ext.workers.branches import HostBranch
from distir_ext.workers.host_processes import HostProcesses, Started
from distir_ext.workers.hosts.at_once import at_once
from distir_ext.workers.hosts.hosts import Hosts
from distir_ext.workers.hosts.tree import Subtree, subtrees, usual_fanout
from distir_ext.workers.hosts.versions import versions

# How long an agent is waited for, in seconds, when all that it has to do is to look. One that is
# slow is not lost: what it answers later is read then.
_LOOK_LIMIT = 2.0


class _LateError(RuntimeError):
    """A host has not answered yet."""


class RemoteProcesses(HostProcesses):
    """The worker processes of one host.

    Args:
        address: Of its agent.
        credentials: Credentials that agents check.
        session: Names the session among those of the agent.
        ranks: Its workers.
        num_workers: Of the session, on all hosts.
        ccl: Name of the communication library.
        imports: Names of modules that each worker imports first.
        lost_after: See :class:`Hosts`.
        name: Name of the host in messages; empty for its address.

    Raises:
        RuntimeError: the agent is not there, or refuses.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        session: str,
        ranks: Sequence[int],
        num_workers: int,
        ccl: str,
        imports: Sequence[str],
        lost_after: float,
        name: str = "",
    ) -> None:
        self.address = address
        self.name = name or address
        self._credentials = credentials
        self._session = session
        self._num_workers = num_workers
        self._lost_after = lost_after
        self._begin_to_ask()
        self.line: Stream = self._connect(
            "session",
            {
                "versions": versions(),
                "ranks": list(ranks),
                "num_workers": num_workers,
                "ccl": ccl,
                "imports": list(imports),
                "lost_after": lost_after,
            },
        )

    def _begin_to_ask(self) -> None:
        self._reader = FrameReader()
        self._asked: deque[float] = deque()  # when it was asked what it has not answered

    def _connect(self, purpose: str, opening: dict[str, Any]) -> Stream:
        opening["session"] = self._session
        try:
            stream = connect(self.address, self._credentials, purpose, opening)
        except NotConnectedError as error:
            raise RuntimeError(f"no session on host {self.name}: {error}") from error
        except RefusedByHostError as error:
            raise RuntimeError(f"host {self.name}: {error}") from error
        keep_watch(stream.raw, self._lost_after)
        return stream

    def channel(self) -> Stream:
        """The channel to all workers, which will be started."""
        stream = self._connect("channel", {})
        stream.setblocking(False)
        return stream

    def begin_start(
        self,
        hosts: Sequence[tuple[str, Sequence[int]]],
        below: Sequence[tuple[str, Sequence[int]]] = (),
    ) -> None:
        """Asks for the workers; hosts connect to those before them, so all have to be asked.

        Args:
            hosts: All hosts' addresses and ranks.
            below: Addresses of hosts to which it passes on, and ranks that each of them reaches.
        """
        lists = {"hosts": hosts, "below": below}
        self._ask(
            {"request": "start"} | {name: [list(e) for e in each] for name, each in lists.items()}
        )

    def finish_start(self) -> None:
        """Reads the answer, once it has begun to arrive.

        Raises:
            RuntimeError: the agent could not start them.
        """
        self._receive(self._lost_after)

    def abort(self) -> None:
        self._tell({"request": "abort"})

    def kill(self) -> None:
        self._tell({"request": "kill"})

    def status(self, ranks: Sequence[int]) -> list[tuple[str, str]]:
        found = self._look({"request": "status", "ranks": list(ranks)}, [])
        if (
            not isinstance(found, list)
            or len(found) != len(ranks)
            or not all(isinstance(each, list) and len(each) == 2 for each in found)
        ):
            return [("", "")] * len(ranks)
        return [(printable(str(operator)), printable(str(wait))) for operator, wait in found]

    def progress(self, rank: int) -> list[int]:
        found = self._look({"request": "progress", "rank": rank}, [])
        is_progress = isinstance(found, list) and len(found) == 2 + 2 * self._num_workers
        return found if is_progress and all(isinstance(each, int) for each in found) else []

    def how_it_ended(self, rank: int) -> str:
        request = {"request": "how_it_ended", "rank": rank}
        lost = f"host {self.name} was lost"
        return printable(str(self._look(request, lost, self._lost_after)))

    def forget(self) -> None:
        self.line.forget()

    def close(self) -> None:
        self.line.hang_up()

    def _tell(self, request: dict[str, Any]) -> None:
        """Says what has no answer, to an agent that may be gone."""
        if not self.lost:
            with contextlib.suppress(RuntimeError):
                self._send(request)

    def _look(self, request: dict[str, Any], otherwise: Any, limit: float = _LOOK_LIMIT) -> Any:
        """Asks an agent that may be gone, or slow."""
        if not self.lost:
            with contextlib.suppress(RuntimeError):
                end = time.monotonic() + limit
                while self._asked:  # what was too late for whoever asked
                    self._receive(end - time.monotonic())
                self._ask(request)
                return self._receive(end - time.monotonic())
        return otherwise

    def _ask(self, request: dict[str, Any]) -> None:
        self._send(request)
        self._asked.append(time.monotonic())

    def _send(self, request: dict[str, Any]) -> None:
        self.line.limit(self._lost_after)
        try:
            send(self.line, request)
        except ChannelClosedError:
            self._fail("has ended the connection")

    def _receive(self, limit: float) -> Any:
        """The answer to what was asked first.

        Raises:
            _LateError: it takes longer than the limit, and not so long that the host is lost.
            RuntimeError: the host is lost, or refuses.
        """
        self.line.limit(limit)
        try:
            found = self._reader.read(self.line)
            assert found is not None, "the line waits"
            self._asked.popleft()
            return answer_of(found[0])
        except RefusedByHostError as error:
            raise RuntimeError(f"host {self.name}: {error}") from error
        except (ChannelClosedError, ValueError) as error:
            is_late = isinstance(error.__cause__, DeadlineError)
            if is_late and time.monotonic() - self._asked[0] < self._lost_after:
                raise _LateError(f"host {self.name} does not answer: {error}") from error
            self._fail(f"does not answer: {error}")
        finally:
            self.line.limit(math.inf)

    def _fail(self, why: str) -> NoReturn:
        self.lost = True
        raise RuntimeError(f"host {self.name} {why}")


def warn_of_clear_text(ccl: str, lines: Sequence[socket.socket]) -> None:
    """Warns where a library sends tensors over a network as nothing else here is sent.

    Args:
        ccl: Its name.
        lines: The connections to all hosts.
    """
    if sends_in_the_clear(ccl) and not all(is_loopback(each) for each in lines):
        warnings.warn(
            f'ccl="{ccl}" sends tensors between hosts as its library does: neither encrypted, as a '
            "rule, nor protected by the token, so that the network between the hosts has to be "
            "trusted (docs/security.md)",
            stacklevel=2,
        )


def _hang_up(connected: tuple[RemoteProcesses, Stream | None]) -> None:
    agent, channel = connected
    if channel is not None:
        channel.hang_up()
    agent.close()


def _ranks_in(part: Subtree, by_host: Sequence[tuple[str, Sequence[int]]]) -> list[int]:
    """The workers that a part of the hosts has."""
    return [rank for number in part.hosts for rank in by_host[number][1]]


def start_on_hosts(
    started: Started,
    hosts: Hosts,
    num_workers: int,
    ccl: str,
    imports: Sequence[str],
) -> None:
    """Starts the workers of a session on its hosts.

    Args:
        started: Takes what is started.
        hosts: The hosts.
        num_workers: On all of them.
        ccl: Name of the communication library.
        imports: Names of modules that each worker imports first.

    Raises:
        OSError, ValueError: there is no token, or the devices do not fit the hosts.
        RuntimeError: a host is not there, refuses, or cannot reach another one; names it.
    """
    by_host = list(zip(hosts.addresses, hosts.ranks(num_workers), strict=True))
    token = read_token(hosts.token_file) if hosts.token is None else hosts.token.encode()
    credentials = Credentials(token, hosts.tls, hosts.certificate, hosts.key, hosts.authority)
    if hosts.tls is False:
        warnings.warn(f"hosts are given with tls=False: {UNENCRYPTED}", stacklevel=2)
    session = secrets.token_hex(16)

    tree = subtrees(range(len(by_host)), hosts.fanout or usual_fanout(len(by_host)))
    reached_by_us = {each.first for each in tree}

    def agent_of(number: int, name: str) -> tuple[RemoteProcesses, Stream | None]:
        address, ranks = by_host[number]
        agent = RemoteProcesses(
            *(address, credentials, session, ranks, num_workers, ccl, imports),
            *(hosts.lost_after, name),
        )
        try:
            return agent, agent.channel() if number in reached_by_us else None
        except BaseException:
            agent.close()
            raise

    connected = at_once(
        [
            functools.partial(agent_of, number, name)
            for number, name in enumerate(hosts.names or hosts.addresses)
        ],
        undo=_hang_up,
    )
    agents = [agent for agent, _ in connected]
    for agent, (_, ranks) in zip(agents, by_host, strict=True):
        started.hosts.append(agent)
        started.host_of += [agent] * len(ranks)
    for each in tree:
        channel = connected[each.first][1]
        assert channel is not None
        started.branches.append(HostBranch(channel, _ranks_in(each, by_host)))
    warn_of_clear_text(ccl, [agent.line.raw for agent in agents])
    for each in (each for root in tree for each in root.flat()):
        below = [(by_host[part.first][0], _ranks_in(part, by_host)) for part in each.below]
        agents[each.first].begin_start(by_host, below)
    # An agent that runs limits by itself how long hosts may take to connect to each other; this is
    # for one that is stopped, whose machine still answers.
    waiting = set(agents)
    with selectors.DefaultSelector() as selector:
        selector.register(started.bell, selectors.EVENT_READ)
        for agent in agents:
            selector.register(agent.line, selectors.EVENT_READ, agent)
        deadline = time.monotonic() + started.limit
        while waiting:
            # Whoever answers first: a refusal has others wait.
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                late = ", ".join(agent.name for agent in agents if agent in waiting)
                raise RuntimeError(
                    f"host {late} did not start workers within {started.limit:g} seconds"
                )
            for key, _ in ready:
                if key.data is None:
                    raise RuntimeError("the session is closed")
                selector.unregister(key.fileobj)
                key.data.finish_start()
                waiting.discard(key.data)
