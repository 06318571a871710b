"""Connections between hosts: addresses, the token that both sides have, and how a loss shows.

Whoever connects and whoever is connected to prove to each other that they have the same token,
without sending it (HMAC-SHA256 of both sides' random numbers), before anything else is read. What
follows is neither encrypted nor signed.
"""

from __future__ import annotations

import contextlib
import hmac
import re
import secrets
import socket
import sys

# Where `distir host` listens, if it is not told otherwise.
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7272

# How long a connection, and the proofs on it, may take, in seconds.
CONNECT_LIMIT = 10.0

_ADDRESS = re.compile(
    r"(?P<bare>[^\[\]:]*:[^\[\]:]*:[^\[\]]*)"  # of IPv6, without a port
    r"|(?:\[(?P<bracketed>[^\[\]]+)\]|(?P<name>[^\[\]:]+))(?::(?P<port>\d{1,5}))?"
)

_MAGIC = b"distir\x00\x01"  # the last byte is the version
_NONCE_BYTES = 32
_PROOF_BYTES = 32


class NotConnectedError(RuntimeError):
    """The other side is not there, is something else, or has another token."""


def parse_address(text: str) -> tuple[str, int]:
    """Name or address, and port, of ``name``, ``name:port``, ``1.2.3.4:port`` or ``[::1]:port``.

    Raises:
        ValueError: it is none of these.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"] or 0) > 65535:
        raise ValueError(f'"{text}" is not an address; write name:port, 1.2.3.4:port or [::1]:port')
    host = found["bracketed"] or found["bare"] or found["name"]
    return host, DEFAULT_PORT if found["port"] is None else int(found["port"])


def format_address(address: tuple[object, ...]) -> str:
    """The inverse of :func:`parse_address`, for what ``getsockname`` returns."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def listen(address: str) -> socket.socket:
    """A socket that listens at an address.

    Raises:
        OSError: it can not; names the address.
    """
    host, port = parse_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, where = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(128)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise OSError(f"can not listen at {address}: {error}") from error
    return listener


def connect(address: str, token: bytes) -> socket.socket:
    """A connection to what listens at an address, after both sides have proved their tokens.

    Raises:
        NotConnectedError: there is no such connection; says why.
    """
    stream: socket.socket | None = None
    try:
        stream = socket.create_connection(parse_address(address), CONNECT_LIMIT)
        challenge = _receive(stream, len(_MAGIC) + _NONCE_BYTES)
        if not challenge.startswith(_MAGIC):
            raise NotConnectedError(f"what listens at {address} is not this version's distir host")
        nonces = challenge + secrets.token_bytes(_NONCE_BYTES)
        stream.sendall(nonces[len(challenge) :] + _proof(token, b"connecting", nonces))
        try:
            answer = _receive(stream, _PROOF_BYTES)
        except EOFError as error:
            raise NotConnectedError(f"{address} has another token") from error
        if not hmac.compare_digest(answer, _proof(token, b"listening", nonces)):
            raise NotConnectedError(f"{address} does not have the token")
    except (OSError, EOFError) as error:
        if stream is not None:
            stream.close()
        name, port = parse_address(address)
        raise NotConnectedError(
            f"{name}, port {port}, can not be reached: {error}; on that host, start: distir host "
            f"--bind {address}"
        ) from error
    except BaseException:
        if stream is not None:
            stream.close()
        raise
    stream.settimeout(None)
    return stream


def accept(stream: socket.socket, token: bytes) -> None:
    """The other side of :func:`connect`.

    Raises:
        NotConnectedError: whoever has connected does not have the token.
    """
    try:
        stream.settimeout(CONNECT_LIMIT)
        challenge = _MAGIC + secrets.token_bytes(_NONCE_BYTES)
        stream.sendall(challenge)
        answer = _receive(stream, _NONCE_BYTES + _PROOF_BYTES)
        nonces = challenge + answer[:_NONCE_BYTES]
        if not hmac.compare_digest(answer[_NONCE_BYTES:], _proof(token, b"connecting", nonces)):
            raise NotConnectedError("it does not have the token")
        stream.sendall(_proof(token, b"listening", nonces))
    except (OSError, EOFError) as error:
        raise NotConnectedError(f"it ended the connection: {error}") from error


def keep_watch(stream: socket.socket, lost_after: float) -> None:
    """Has the connection end when nothing is heard of the other side, whoever uses it.

    Args:
        stream: A TCP connection.
        lost_after: After how long, in seconds; at least about two.
    """
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        probe = max(1, int(lost_after / 4))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(lost_after * 1000))


def hang_up(stream: socket.socket) -> None:
    """Ends a connection, also for whoever waits on it."""
    with contextlib.suppress(OSError):
        stream.shutdown(socket.SHUT_RDWR)
    stream.close()


def _proof(token: bytes, role: bytes, nonces: bytes) -> bytes:
    """The role keeps a proof from being returned to whoever gave it."""
    return hmac.digest(token, role + nonces, "sha256")


def _receive(stream: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = stream.recv(size - len(received))
        if not part:
            raise EOFError("it has hung up")
        received += part
    return received
