"""Handshake of connections between hosts: both ends prove that they have the token.

    connecting -> listening   hello: magic, version, purpose, TLS or not, a random number, the
                              address dialled
    listening -> connecting   answer: magic, version, whether it goes on so, a random number
                              with TLS, all that follows is encrypted
    listening -> connecting   HMAC-SHA256 of the token and all of the above
    connecting -> listening   the same, for its role
    connecting -> listening   a frame: what it asks for
    listening -> connecting   a frame: {"answer"} or {"refused"}, with the reason

The listening side proves first: whoever can be dialled, by a wrong name or at a port that somebody
else has taken, learns nothing that depends on the token. The proofs cover the connection itself,
too: with TLS the fingerprints of both certificates and a secret that TLS has agreed on; without
it, on a connection that stays on this machine, the addresses of both its ends. So whoever sits
between two connections cannot pass the proofs of one to the other. One deadline holds for all of
it, on both sides.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import secrets
import socket
import struct
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from distir_ext.text.printable import printable
from distir_ext.wire.byte_stream import Stream
from distir_ext.wire.channel import ChannelClosedError, receive, send
from distir_ext.wire.connections import endpoint, is_loopback, parse_address, send_at_once
from distir_ext.wire.credentials import Credentials
from distir_ext.wire.tls import KEY_BYTES, Tls, TlsError

# How long a connection may take until it serves its purpose, in seconds.
HANDSHAKE_LIMIT = 10.0

PURPOSES = ("session", "channel", "peer", "copy")

_MAGIC = b"distir\x00"
_VERSION = 2
_GREETING = struct.Struct("<7sB")  # magic, version
_HELLO = struct.Struct("<B?32sB")  # purpose, TLS, random number, bytes of the address
_ANSWER = struct.Struct("<B32s")  # one of the three below, random number
_GOES_ON, _WANTS_TLS, _LACKS_TLS = range(3)
_PROOF_BYTES = 32
_LONGEST_ADDRESS = 255

# A listening side that has too many strangers ends the oldest. A dialler that is one of them comes
# again, after so many seconds.
_WAITS = (0.05, 0.1, 0.2, 0.4)


_DISAGREEMENTS = {
    _WANTS_TLS: "{} takes connections with TLS only, and this side was told to do without",
    _LACKS_TLS: "{} cannot load OpenSSL, so that it has no TLS",
}


class NotConnectedError(RuntimeError):
    """The other side is not there, is something else, or has another token."""


class RefusedByHostError(RuntimeError):
    """The other side has the token, and does not do what is asked of it."""


class _EndedError(Exception):
    """The other side has ended the connection before it has proved anything."""


def connect(
    address: str,
    credentials: Credentials,
    purpose: str,
    opening: Any,
    *,
    limit: float = math.inf,
    turn: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> Stream:
    """A connection to what listens at an address, which has the token and has agreed to serve it.

    Args:
        address: As :func:`parse_address` reads it.
        credentials: Credentials of both sides.
        purpose: One of :data:`PURPOSES`.
        opening: The request. On an encrypted connection a new key is added to what is for
            a worker.
        limit: Time limit, in seconds; at most ``HANDSHAKE_LIMIT`` in any case.
        turn: Function that returns the context in which the request is made and answered, when both
            sides have proved that they have the token; it may raise ``OSError``.

    Raises:
        NotConnectedError: there is no such connection; says why.
        RefusedByHostError: the other side refuses what is asked for; says why.
    """
    deadline = time.monotonic() + min(limit, HANDSHAKE_LIMIT)
    name, port = parse_address(address)
    try:
        for wait in (*_WAITS, None):
            left = deadline - time.monotonic()
            raw = socket.create_connection((name, port), max(0.01, left))
            send_at_once(raw)
            stream = Stream(raw)
            stream.limit(left)
            try:
                _prove_connecting(stream, address, credentials, purpose)
                if stream.tls is not None and purpose == "peer":
                    stream.key = secrets.token_bytes(KEY_BYTES)
                    opening = {**opening, "key": stream.key}
                with turn():
                    send(stream, opening)
                    receive_answer(stream)
            except (_EndedError, ChannelClosedError) as error:
                # The other side may not have read the proof when it has ended this.
                stream.close()
                if wait is None or time.monotonic() + wait > deadline:
                    raise EOFError(str(error)) from error
                time.sleep(wait)
                continue
            except BaseException:
                stream.close()
                raise
            stream.limit(math.inf)
            return stream
    except (OSError, EOFError, ValueError, ChannelClosedError) as error:
        raise NotConnectedError(
            f"{name}, port {port}, cannot be reached: {error}; on that host, start: distir host "
            f"--bind {address}"
        ) from error
    raise AssertionError("the last attempt returns or raises")


def receive_answer(stream: Stream) -> Any:
    """Receives the answer of a host.

    Raises:
        RefusedByHostError: the host refuses; the message has its reason.
        ChannelClosedError: the connection has ended, or its time is over.
        ValueError: the received bytes are no frame.
    """
    return answer_of(receive(stream))


def answer_of(message: Any) -> Any:
    """Returns the answer in a message of a host.

    Raises:
        RefusedByHostError: the host refuses; the message has its reason.
    """
    if not isinstance(message, dict) or not message.keys() & {"answer", "refused"}:
        raise RefusedByHostError("what it answers makes no sense")
    if "refused" in message:
        raise RefusedByHostError(printable(str(message["refused"])))
    return message["answer"]


def accept(stream: Stream, credentials: Credentials) -> str:
    """The other side of :func:`connect`, up to the proofs.

    Returns:
        The purpose. What is asked for is the next frame, which is to be answered.

    Raises:
        NotConnectedError: whoever has connected does not have the token.
        OSError, EOFError: the connection has ended, its time is over, or TLS finds it not safe.
    """
    send_at_once(stream.raw)
    greeting = stream.receive(_GREETING.size)
    if _GREETING.unpack(greeting)[0] != _MAGIC:
        raise NotConnectedError("it is not of distir")
    if _GREETING.unpack(greeting)[1] != _VERSION:
        stream.send_all(_GREETING.pack(_MAGIC, _VERSION))  # says why
        raise NotConnectedError("it is of another version")
    hello = stream.receive(_HELLO.size)
    purpose, tls, _, size = _HELLO.unpack(hello)
    if purpose >= len(PURPOSES):
        raise NotConnectedError("it has no purpose")
    address = stream.receive(size)
    status = _status(stream, credentials, tls)
    answer = greeting + _ANSWER.pack(status, secrets.token_bytes(32))
    stream.send_all(answer)
    if status != _GOES_ON:
        raise NotConnectedError("both sides do not agree on TLS")
    if tls:
        stream.secure(Tls.of_identity(stream.fileno(), False, credentials.identity, ""))
    said = greeting + hello + address + answer + _binding(stream, connecting=False)
    stream.send_all(_proof(credentials, b"listening", said))
    proof = stream.receive(_PROOF_BYTES)
    if not hmac.compare_digest(proof, _proof(credentials, b"connecting", said)):
        raise NotConnectedError("it does not have the token")
    return PURPOSES[purpose]


def _prove_connecting(stream: Stream, address: str, credentials: Credentials, purpose: str) -> None:
    dialled = address.encode()[:_LONGEST_ADDRESS]
    greeting = _GREETING.pack(_MAGIC, _VERSION)
    tls = credentials.encrypts(stream.raw)
    hello = _HELLO.pack(PURPOSES.index(purpose), tls, secrets.token_bytes(32), len(dialled))
    try:
        stream.send_all(greeting + hello + dialled)
        answer = stream.receive(_GREETING.size)
        magic, version = _GREETING.unpack(answer)
        if magic != _MAGIC or version != _VERSION:
            raise NotConnectedError(f"what listens at {address} is not this version's distir host")
        answer += stream.receive(_ANSWER.size)
        status, _ = _ANSWER.unpack_from(answer, _GREETING.size)
        if status != _GOES_ON:
            raise NotConnectedError(_DISAGREEMENTS.get(status, "{} makes no sense").format(address))
        if tls:
            name = parse_address(address)[0].partition("%")[0]
            stream.secure(Tls.of_identity(stream.fileno(), True, credentials.identity, name))
        said = greeting + hello + dialled + answer + _binding(stream, connecting=True)
        proof = stream.receive(_PROOF_BYTES)
    except TlsError as error:
        raise NotConnectedError(f"the connection to {address} is not safe: {error}") from error
    except (EOFError, ConnectionError) as error:
        raise _EndedError(str(error)) from error
    if not hmac.compare_digest(proof, _proof(credentials, b"listening", said)):
        raise NotConnectedError(
            f"{address} has another token, or it is not what was dialled: something between passes "
            "on what both sides say"
        )
    stream.send_all(_proof(credentials, b"connecting", said))


def _status(stream: Stream, credentials: Credentials, tls: bool) -> int:
    """Returns the status of a connection: it goes on, or TLS is required or missing."""
    if not tls:
        return _WANTS_TLS if credentials.encrypts(stream.raw) else _GOES_ON
    return _GOES_ON if credentials.can_encrypt() else _LACKS_TLS


def _binding(stream: Stream, *, connecting: bool) -> bytes:
    """Returns bytes that both ends of this connection know, and no end of another one."""
    if stream.tls is not None:
        return stream.tls.binding()
    if not is_loopback(stream.raw):
        return b""
    mine, theirs = endpoint(stream.raw.getsockname()), endpoint(stream.raw.getpeername())
    return " ".join((mine, theirs) if connecting else (theirs, mine)).encode()


def _proof(credentials: Credentials, role: bytes, said: bytes) -> bytes:
    """The role keeps a proof from being returned to whoever gave it."""
    return hmac.digest(credentials.token, role + said, "sha256")
