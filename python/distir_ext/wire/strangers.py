"""Limits connections to a host that have not yet proved that they have the token."""

from __future__ import annotations

import ipaddress
import resource
import socket
import threading

from distir_ext.wire.byte_stream import interrupt

# How many there may be, in all and of one network. When there are more, the oldest one goes; so
# who has the token needs only be faster than that.
MOST_STRANGERS = 256
MOST_OF_A_NETWORK = 64

# The part of an IPv6 address that its owner may choose freely.
_NETWORK_BITS = 64


def most_strangers() -> int:
    """The most connections without a token: most descriptors are left to sessions."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return MOST_STRANGERS
    return max(1, min(MOST_STRANGERS, descriptors // 4))


class Strangers:
    """Connections that have to prove that they have the token."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._networks: dict[socket.socket, str] = {}  # oldest first

    def enter(self, raw: socket.socket, address: str) -> None:
        """Admits a connection, and ends an older one if there are too many."""
        network = network_of(address)
        with self._mutex:
            of_network = [each for each, other in self._networks.items() if other == network]
            if len(of_network) >= MOST_OF_A_NETWORK:
                self._end(of_network[0])
            elif len(self._networks) >= most_strangers():
                self._end(next(iter(self._networks)))
            self._networks[raw] = network

    def has(self, raw: socket.socket) -> bool:
        """Returns whether a connection has not been ended so far."""
        with self._mutex:
            return raw in self._networks

    def leave(self, raw: socket.socket) -> None:
        """Removes a connection that has proved itself, or has ended."""
        with self._mutex:
            self._networks.pop(raw, None)

    def end_older_half(self) -> None:
        """Ends those that have been here for longest: who has the token is faster."""
        with self._mutex:
            for raw in list(self._networks)[: (len(self._networks) + 1) // 2]:
                self._end(raw)

    def _end(self, raw: socket.socket) -> None:
        del self._networks[raw]
        interrupt(raw)


def network_of(address: str) -> str:
    """The network of an address: addresses that probably have one owner."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, _NETWORK_BITS), strict=False))
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)
