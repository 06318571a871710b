"""Parses addresses, listens on them, and sets TCP options of connections between hosts."""

from __future__ import annotations

import ipaddress
import re
import socket
import sys

from distir_ext.text.printable import shown

# Where `distir host` listens, if it is not told otherwise.
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7272

# Connections that the system keeps until they are accepted.
_BACKLOG = 1024

# The most that Linux takes, in seconds (include/net/tcp.h) and in milliseconds.
_LONGEST_PROBE = 32767
_LONGEST_TIMEOUT = 2**31 - 1

_ADDRESS = re.compile(
    r"(?P<bare>[^\[\]:]*:[^\[\]:]*:[^\[\]]*)"  # of IPv6, without a port
    r"|(?:\[(?P<bracketed>[^\[\]]+)\]|(?P<name>[^\[\]:]+))(?::(?P<port>[0-9]{1,5}))?"
)


def parse_address(text: str, port: int = DEFAULT_PORT) -> tuple[str, int]:
    """Name or address, and port, of ``name``, ``name:port``, ``1.2.3.4:port`` or ``[::1]:port``.

    Args:
        text: The address.
        port: The port if it states none.

    Raises:
        ValueError: it is none of these.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"] or 0) > 65535 or not text.isprintable():
        raise ValueError(
            f'"{shown(text)}" is not an address; write name:port, 1.2.3.4:port or [::1]:port'
        )
    host = found["bracketed"] or found["bare"] or found["name"]
    return host, port if found["port"] is None else int(found["port"])


def format_address(address: tuple[object, ...]) -> str:
    """The inverse of :func:`parse_address`, for what ``getsockname`` returns."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def listen(address: str) -> socket.socket:
    """A socket that listens at an address.

    Raises:
        OSError: it cannot; names the address.
    """
    host, port = parse_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, where = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:  # of a name that no host can have
        raise OSError(f"cannot listen at {address}: {error}") from error
    return listener


def send_at_once(stream: socket.socket) -> None:
    """Makes a TCP connection send what is written to it without waiting for more.

    The other side would be told nothing for 40 ms after each of two short messages in a row, which
    a handshake has several of.
    """
    if stream.family in (socket.AF_INET, socket.AF_INET6):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def keep_watch(stream: socket.socket, lost_after: float) -> None:
    """Makes a connection end when nothing is heard of the other side, whoever uses it.

    Args:
        stream: A TCP connection.
        lost_after: After how long, in seconds; at least about two.
    """
    send_at_once(stream)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        probe = max(1, min(_LONGEST_PROBE, int(lost_after / 4)))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        timeout = min(_LONGEST_TIMEOUT, int(lost_after * 1000))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout)


def is_loopback(raw: socket.socket) -> bool:
    """Returns whether a connection stays on this machine, as far as its addresses show."""
    return all(is_loopback_address(each) for each in (raw.getsockname(), raw.getpeername()))


def is_loopback_address(address: tuple[object, ...]) -> bool:
    """Returns whether an address, as from ``getsockname``, is a loopback address."""
    return _parsed(address).is_loopback


def endpoint(address: tuple[object, ...]) -> str:
    """An end of a connection, spelled as its other end spells it, too."""
    return f"{_parsed(address)} {address[1]}"


def _parsed(address: tuple[object, ...]) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    parsed = ipaddress.ip_address(str(address[0]).partition("%")[0])
    return getattr(parsed, "ipv4_mapped", None) or parsed
