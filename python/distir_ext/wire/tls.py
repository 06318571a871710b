"""Encrypts non-blocking sockets by TLS, through the native library's OpenSSL.

Python's own ``ssl`` cannot be used: it has no keys that both sides know (before 3.13), asks no
client for a certificate that nobody has signed, and what it has begun cannot be given to the C++
streams between workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import select
from collections.abc import Sequence
from typing import Any

import tvm_ffi

# The process has one OpenSSL: Python's, where that is a library of its own.
with contextlib.suppress(ImportError):
    import _ssl  # noqa: F401

# What one call writes; buffers are copied here, so that small ones share a record.
_STAGE_BYTES = 1 << 18

KEY_BYTES = 32

_WAITS_READ, _WAITS_WRITE = -1, -2


class TlsError(ConnectionError):
    """Received bytes fail TLS's check, or the other side's certificate is not accepted."""


class WaitingError(BlockingIOError):
    """The socket has to be waited for.

    Attributes:
        event: ``select.POLLIN`` or ``select.POLLOUT``.
    """

    def __init__(self, event: int) -> None:
        super().__init__("the socket is not ready")
        self.event = event


def make_identity(certificate: str = "", key: str = "", authority: str = "") -> Any:
    """A certificate with its key, and whose certificates are accepted.

    Args:
        certificate: A PEM file; empty for a new certificate.
        key: A PEM file of its private key.
        authority: A PEM file; the other side's certificate has to be signed by it, and to be for
            the address that is dialled. Empty if any certificate will do.

    Raises:
        RuntimeError: OpenSSL cannot be loaded.
        ValueError: a file is of no use; names it.
    """
    return tvm_ffi.get_global_func("distir.runtime.tls_identity")(certificate, key, authority)


class Tls:
    """One end of a TLS connection, which has a descriptor of its own for the socket.

    Args:
        native: See :meth:`of_identity` and :meth:`of_key`.

    Attributes:
        native: As given.
    """

    def __init__(self, native: Any) -> None:
        self.native = native
        self._read = tvm_ffi.get_global_func("distir.runtime.tls_read")
        self._write = tvm_ffi.get_global_func("distir.runtime.tls_write")
        self._stage = bytearray()

    @classmethod
    def of_identity(cls, descriptor: int, connecting: bool, identity: Any, name: str) -> Tls:
        """Proved by a certificate, for the dialled name if there is an authority."""
        make = tvm_ffi.get_global_func("distir.runtime.tls_stream")
        return cls(make(descriptor, connecting, identity, name))

    @classmethod
    def of_key(
        cls, descriptor: int, connecting: bool, key: bytes, bytes_of_a_key: int | None = None
    ) -> Tls:
        """Proved by a key of 32 bytes that only both ends know.

        TLS makes its own keys of it. After ``bytes_of_a_key`` another one takes the place of one;
        None for as many as are safe.
        """
        make = tvm_ffi.get_global_func("distir.runtime.tls_stream_of_key")
        return cls(make(descriptor, connecting, key, bytes_of_a_key))

    def handshake(self) -> None:
        """Goes on with the handshake.

        Raises:
            WaitingError: it is not complete.
            TlsError: the other side is not accepted.
            EOFError: the other side has ended it.
        """
        handshake = tvm_ffi.get_global_func("distir.runtime.tls_handshake")
        if self._checked(handshake(self.native)) == 0:
            raise EOFError("it has hung up")

    def close(self) -> None:
        """Gives the socket back: reading and writing fail from now on, in all threads."""
        tvm_ffi.get_global_func("distir.runtime.tls_close")(self.native)

    def forget(self) -> None:
        """As :meth:`close`, in a fork, where nobody may release a lock that another thread had."""
        tvm_ffi.get_global_func("distir.runtime.tls_forget")(self.native)

    def binding(self) -> bytes:
        """Returns bytes that only the two ends of this connection have in common."""
        return bytes(tvm_ffi.get_global_func("distir.runtime.tls_binding")(self.native))

    def recv_into(self, buffer: memoryview) -> int:
        """Reads as a socket that does not block."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        return self._checked(self._read(self.native, address, buffer.nbytes))

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        """Writes as a socket that does not block; what was not sent has to be sent next."""
        if not self._stage:
            self._stage = bytearray(_STAGE_BYTES)
        size = 0
        for buffer in buffers:
            part = buffer.cast("B")[: _STAGE_BYTES - size] if buffer.nbytes else buffer
            self._stage[size : size + part.nbytes] = part
            size += part.nbytes
            if size == _STAGE_BYTES:
                break
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._stage))
        sent = self._checked(self._write(self.native, address, size)) if size else 0
        if size and not sent:
            raise BrokenPipeError("it has hung up")
        return sent

    def _checked(self, count: int) -> int:
        if count > 0:
            return count
        if count == _WAITS_READ:
            raise WaitingError(select.POLLIN)
        if count == _WAITS_WRITE:
            raise WaitingError(select.POLLOUT)
        why = str(tvm_ffi.get_global_func("distir.runtime.tls_why")(self.native))
        if why:
            raise TlsError(why)
        return 0
