"""Checks requests of clients that have connected to a host.

A client with the token may run programs, but its messages are not trusted: a malformed one is an
error for that client alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distir_ext.wire.connections import parse_address
from distir_ext.wire.tls import KEY_BYTES

_LONGEST_NAME = 64
_MOST_WORKERS = 1 << 16


class RefusedError(Exception):
    """A request that is answered with the reason why not."""


@dataclass(frozen=True)
class SessionOpening:
    """A session, for as long as the connection lasts.

    Attributes:
        session: Names it.
        ranks: Its workers on this host.
        num_workers: On all hosts.
        ccl: The communication library.
        imports: Modules that workers import.
        lost_after: See :class:`Hosts`.
        versions: Versions of the controller.
    """

    session: str
    ranks: list[int]
    num_workers: int
    ccl: str
    imports: list[str]
    lost_after: float
    versions: list[str]


@dataclass(frozen=True)
class ChannelOpening:
    """The controller's channel to all workers of this host."""

    session: str


@dataclass(frozen=True)
class PeerOpening:
    """A connection between two workers, of ``source`` to ``target``, which is on this host.

    Attributes:
        key: Key that encrypts it once it is the worker's; empty for none.
    """

    session: str
    source: int
    target: int
    key: bytes = field(default=b"", compare=False, repr=False)


def parse_opening(
    purpose: str, encrypted: bool, message: Any
) -> SessionOpening | ChannelOpening | PeerOpening:
    """The first message of a connection.

    Raises:
        RefusedError: it is malformed; says what is wrong.
    """
    session = _field(message, "session", _name)
    if purpose == "channel":
        return ChannelOpening(session)
    if purpose == "peer":
        key = _field(message, "key", _key) if encrypted else b""
        source, target = (_field(message, name, whole) for name in ("source", "target"))
        return PeerOpening(session, source, target, key)
    num_workers = _field(message, "num_workers", whole)
    if not 1 <= num_workers <= _MOST_WORKERS:
        raise RefusedError(f"a session cannot have {num_workers} workers")
    ranks = _field(message, "ranks", lambda value: ranks_of(value, num_workers))
    return SessionOpening(
        session,
        ranks,
        num_workers,
        _field(message, "ccl", _name),
        _field(message, "imports", _names),
        _field(message, "lost_after", _seconds),
        _field(message, "versions", _names),
    )


def parse_hosts(message: Any, num_workers: int, mine: Sequence[int]) -> list[tuple[str, list[int]]]:
    """All hosts of a session with their workers, of a request to start them.

    Raises:
        RefusedError: it is malformed, or this host is not among them.
    """
    hosts = [
        (_address(address), ranks_of(ranks, num_workers))
        for address, ranks in _field(message, "hosts", _pairs)
    ]
    ranks = sorted(rank for _, of_host in hosts for rank in of_host)
    if ranks != list(range(num_workers)) or list(mine) not in [of_host for _, of_host in hosts]:
        raise RefusedError(f"hosts with the ranks {ranks} are not those of the session")
    return hosts


def parse_below(message: Any, num_workers: int, mine: Sequence[int]) -> list[tuple[str, list[int]]]:
    """To which hosts this one passes on, each with all workers that it reaches.

    Raises:
        RefusedError: it is malformed, or a worker is reached in two ways.
    """
    below = [
        (_address(address), ranks_of(ranks, num_workers))
        for address, ranks in _field(message, "below", _pairs)
    ]
    reached = [*mine, *(rank for _, ranks in below for rank in ranks)]
    if len(set(reached)) < len(reached):
        raise RefusedError("hosts to pass on to reach a worker twice")
    return below


def whole(value: Any) -> int:
    """A number without fraction, which is no truth value.

    Raises:
        RefusedError: it is something else.
    """
    if type(value) is not int or not 0 <= value < _MOST_WORKERS + 1:
        raise RefusedError("it is no whole number in range")
    return value


def ranks_of(value: Any, num_workers: int) -> list[int]:
    """Different ranks of workers, at least one.

    Raises:
        RefusedError: it is something else.
    """
    ranks = [whole(each) for each in _list(value)]
    if not ranks or len(set(ranks)) < len(ranks) or max(ranks) >= num_workers:
        raise RefusedError(f"it is no list of ranks below {num_workers}, each of them once")
    return ranks


def request_of(message: Any) -> str:
    """Returns the kind of request that a message is.

    Raises:
        RefusedError: it is none.
    """
    return str(_field(message, "request", _name))


def rank_of(message: Mapping[str, Any], ranks: Sequence[int]) -> int:
    """The worker that a request is about.

    Raises:
        RefusedError: it is none of this host.
    """
    rank: int = _field(message, "rank", whole)
    if rank not in ranks:
        raise RefusedError(f"rank {rank} is none of this host's, {list(ranks)}")
    return rank


def some_ranks_of(message: Mapping[str, Any], ranks: Sequence[int]) -> list[int]:
    """The workers that a request is about.

    Raises:
        RefusedError: one of them is none of this host.
    """
    found: list[int] = _field(message, "ranks", lambda value: ranks_of(value, _MOST_WORKERS))
    if not set(found) <= set(ranks):
        raise RefusedError(f"ranks {found} are not all this host's, {list(ranks)}")
    return found


def _field(message: Any, name: str, parse: Callable[[Any], Any]) -> Any:
    if not isinstance(message, dict) or name not in message:
        raise RefusedError(f'the message has no "{name}"')
    try:
        return parse(message[name])
    except RefusedError as error:
        raise RefusedError(f'"{name}" of the message is wrong: {error}') from None


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise RefusedError("it is no list")
    return value


def _pairs(value: Any) -> list[list[Any]]:
    pairs = [_list(each) for each in _list(value)]
    if any(len(each) != 2 for each in pairs):
        raise RefusedError("it is no list of pairs")
    return pairs


def _name(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME:
        raise RefusedError("it is no name")
    return value


def _names(value: Any) -> list[str]:
    names = _list(value)
    if not all(isinstance(each, str) for each in names):
        raise RefusedError("it is no list of names")
    return names


def _address(value: Any) -> str:
    try:
        if isinstance(value, str):
            parse_address(value)
            return value
    except ValueError:
        pass
    raise RefusedError("there is no address for a host")


def _key(value: Any) -> bytes:
    if not isinstance(value, bytes) or len(value) != KEY_BYTES:
        raise RefusedError("it is no key")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not (2 <= value < math.inf):
        raise RefusedError("it is no number of seconds, 2 or more")
    return float(value)
