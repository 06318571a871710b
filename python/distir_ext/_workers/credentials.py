"""What a controller or a host proves itself with, and which connections it encrypts."""

from __future__ import annotations

import functools
import os
import socket
from dataclasses import dataclass, field
from typing import Any

from distir_ext._workers.connections import is_loopback
from distir_ext._workers.tls import make_identity

UNENCRYPTED = (
    "connections between hosts are not encrypted: whoever is between can read and change all that "
    "is sent, and run programs on the hosts"
)


@dataclass(frozen=True)
class Credentials:
    """What a controller or a host proves itself with, and asks of others.

    Attributes:
        token: The token that all hosts of a session share.
        tls: Whether connections are encrypted; None: those that leave the machine.
        certificate: A PEM file of a certificate, instead of one that is made for this process.
        key: A PEM file of its private key.
        authority: A PEM file of who has to have signed the others' certificates.
    """

    token: bytes = field(repr=False)
    tls: bool | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    authority: str | os.PathLike[str] | None = None

    @functools.cached_property
    def identity(self) -> Any:
        """The certificate.

        Raises:
            RuntimeError: OpenSSL cannot be loaded.
            ValueError: a file is of no use; names it.
        """
        files = (self.certificate, self.key, self.authority)
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a certificate and the file of its private key go together")
        return make_identity(
            *("" if each is None else os.path.expanduser(each) for each in files)  # noqa: PTH111
        )

    def can_encrypt(self) -> bool:
        """Whether there is a certificate."""
        try:
            return self.identity is not None
        except (RuntimeError, ValueError):
            return False

    def encrypts(self, raw: socket.socket) -> bool:
        """Whether a connection has to be encrypted."""
        return self.tls if self.tls is not None else not is_loopback(raw)
