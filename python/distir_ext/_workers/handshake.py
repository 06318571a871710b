"""How the two ends of a connection between hosts prove to each other that they have the token.

    connecting -> listening   hello: magic, version, purpose, a random number, the address dialled
    listening -> connecting   answer: magic, version, a random number
    listening -> connecting   HMAC-SHA256 of the token and all of the above
    connecting -> listening   the same, for its role
    connecting -> listening   a frame: what it asks for
    listening -> connecting   a frame: {"answer"} or {"refused"}, with the reason

The listening side proves first: whoever can be dialled, by a wrong name or at a port that somebody
else has taken, learns nothing that depends on the token. On a connection that stays on this machine
the proofs cover the addresses of both its ends, so whoever sits between two connections can not
pass the proofs of one to the other. One deadline holds for all of it, on both sides.
"""

from __future__ import annotations

import hmac
import math
import secrets
import socket
import struct
import time
from typing import Any

from distir_ext._workers.byte_stream import Stream
from distir_ext._workers.channel import ChannelClosedError, receive, send
from distir_ext._workers.connections import endpoint, is_loopback, parse_address
from distir_ext._workers.credentials import Credentials

# How long a connection may take until it serves its purpose, in seconds.
HANDSHAKE_LIMIT = 10.0

PURPOSES = ("session", "channel", "peer")

_MAGIC = b"distir\x00"
_VERSION = 2
_GREETING = struct.Struct("<7sB")  # magic, version
_HELLO = struct.Struct("<B32sB")  # purpose, random number, bytes of the address that follows
_ANSWER = struct.Struct("<32s")  # random number
_PROOF_BYTES = 32
_LONGEST_ADDRESS = 255

# A listening side that has too many strangers ends the oldest. A dialler that is one of them comes
# again, after so many seconds.
_WAITS = (0.05, 0.1, 0.2, 0.4)


class NotConnectedError(RuntimeError):
    """The other side is not there, is something else, or has another token."""


class RefusedByHostError(RuntimeError):
    """The other side has the token, and does not do what is asked of it."""


class _EndedError(Exception):
    """The other side has ended the connection before it has proved anything."""


def connect(address: str, credentials: Credentials, purpose: str, opening: Any) -> Stream:
    """A connection to what listens at an address, which has the token and has agreed to serve it.

    Args:
        address: As :func:`parse_address` reads it.
        credentials: What both sides have.
        purpose: One of :data:`PURPOSES`.
        opening: What is asked for.

    Raises:
        NotConnectedError: there is no such connection; says why.
        RefusedByHostError: the other side refuses what is asked for; says why.
    """
    deadline = time.monotonic() + HANDSHAKE_LIMIT
    name, port = parse_address(address)
    try:
        for wait in (*_WAITS, None):
            left = deadline - time.monotonic()
            raw = socket.create_connection((name, port), max(0.01, left))
            stream = Stream(raw, deadline)
            try:
                _prove_connecting(stream, address, credentials, purpose)
                send(stream, opening)
                receive_answer(stream)
            except _EndedError as error:
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
            f"{name}, port {port}, can not be reached: {error}; on that host, start: distir host "
            f"--bind {address}"
        ) from error
    raise AssertionError("the last attempt returns or raises")


def receive_answer(stream: Stream) -> Any:
    """What a host answers.

    Raises:
        RefusedByHostError: it refuses; says why.
        ChannelClosedError: the connection has ended, or its time is over.
        ValueError: what was received is no frame.
    """
    answer = receive(stream)
    if not isinstance(answer, dict) or not answer.keys() & {"answer", "refused"}:
        raise RefusedByHostError("what it answers makes no sense")
    if "refused" in answer:
        raise RefusedByHostError(str(answer["refused"]))
    return answer["answer"]


def accept(stream: Stream, credentials: Credentials) -> str:
    """The other side of :func:`connect`, up to the proofs.

    Returns:
        The purpose. What is asked for is the next frame, which is to be answered.

    Raises:
        NotConnectedError: whoever has connected does not have the token.
        OSError, EOFError: the connection has ended, or its time is over.
    """
    greeting = stream.receive(_GREETING.size)
    if _GREETING.unpack(greeting)[0] != _MAGIC:
        raise NotConnectedError("it is not of distir")
    if _GREETING.unpack(greeting)[1] != _VERSION:
        stream.send_all(_GREETING.pack(_MAGIC, _VERSION))  # says why
        raise NotConnectedError("it is of another version")
    hello = stream.receive(_HELLO.size)
    purpose, _, size = _HELLO.unpack(hello)
    if purpose >= len(PURPOSES):
        raise NotConnectedError("it has no purpose")
    address = stream.receive(size)
    answer = greeting + _ANSWER.pack(secrets.token_bytes(32))
    stream.send_all(answer)
    said = greeting + hello + address + answer + _binding(stream, connecting=False)
    stream.send_all(_proof(credentials, b"listening", said))
    proof = stream.receive(_PROOF_BYTES)
    if not hmac.compare_digest(proof, _proof(credentials, b"connecting", said)):
        raise NotConnectedError("it does not have the token")
    return PURPOSES[purpose]


def _prove_connecting(stream: Stream, address: str, credentials: Credentials, purpose: str) -> None:
    dialled = address.encode()[:_LONGEST_ADDRESS]
    greeting = _GREETING.pack(_MAGIC, _VERSION)
    hello = _HELLO.pack(PURPOSES.index(purpose), secrets.token_bytes(32), len(dialled))
    try:
        stream.send_all(greeting + hello + dialled)
        answer = stream.receive(_GREETING.size)
        magic, version = _GREETING.unpack(answer)
        if magic != _MAGIC or version != _VERSION:
            raise NotConnectedError(f"what listens at {address} is not this version's distir host")
        answer += stream.receive(_ANSWER.size)
        said = greeting + hello + dialled + answer + _binding(stream, connecting=True)
        proof = stream.receive(_PROOF_BYTES)
    except (EOFError, ConnectionError) as error:
        raise _EndedError(str(error)) from error
    if not hmac.compare_digest(proof, _proof(credentials, b"listening", said)):
        raise NotConnectedError(
            f"{address} has another token, or it is not what was dialled: something between passes "
            "on what both sides say"
        )
    stream.send_all(_proof(credentials, b"connecting", said))


def _binding(stream: Stream, *, connecting: bool) -> bytes:
    """What both ends of this connection know, and no end of another one."""
    if not is_loopback(stream.raw):
        return b""
    mine, theirs = endpoint(stream.raw.getsockname()), endpoint(stream.raw.getpeername())
    return " ".join((mine, theirs) if connecting else (theirs, mine)).encode()


def _proof(credentials: Credentials, role: bytes, said: bytes) -> bytes:
    """The role keeps a proof from being returned to whoever gave it."""
    return hmac.digest(credentials.token, role + said, "sha256")
