"""Token and TLS certificates of controllers and hosts; decides which connections are encrypted."""

from __future__ import annotations

import functools
import os
import shlex
import socket
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distir_ext.wire.connections import is_loopback
from distir_ext.wire.tls import make_identity

UNENCRYPTED = (
    "connections between hosts are not encrypted: whoever is between can read and change all that "
    "is sent, and run programs on the hosts"
)


@dataclass(frozen=True)
class Credentials:
    """Token and certificates of a controller or host.

    Attributes:
        token: The token that all hosts of a session share.
        tls: True to encrypt all connections, False for none, None for those that leave the machine.
        certificate: A PEM file of a certificate, instead of one that is made for this process.
        key: A PEM file of its private key.
        authority: A PEM file of the authority that has to have signed the others' certificates.
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
        if self.key is not None:
            _check_private(Path(os.path.expanduser(self.key)))  # noqa: PTH111
        return make_identity(
            *("" if each is None else os.path.expanduser(each) for each in files)  # noqa: PTH111
        )

    def can_encrypt(self) -> bool:
        """Returns whether there is a certificate."""
        try:
            return self.identity is not None
        except (RuntimeError, ValueError):
            return False

    def encrypts(self, raw: socket.socket) -> bool:
        """Returns whether a connection has to be encrypted."""
        return self.tls if self.tls is not None else not is_loopback(raw)


def _check_private(key: Path) -> None:
    """Whoever reads the key can be taken for this host.

    Raises:
        ValueError: others may read or write it. A group may read what belongs to root, as
            distributions keep keys for several services.
    """
    try:
        status = key.stat()
    except OSError:
        return  # what reads it says so
    allowed = 0o640 if status.st_uid == 0 else 0o600
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (os.geteuid(), 0):  # root reads everybody's
        raise ValueError(f"the private key {key} is somebody else's (user {status.st_uid})")
    if mode & 0o077 & ~allowed:
        raise ValueError(
            f"others than its owner may read or write the private key {key} (mode {mode:04o}); "
            f"make it private with: chmod {allowed:o} {shlex.quote(str(key))}"
        )
