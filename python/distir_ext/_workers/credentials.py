"""What a controller or a host proves itself with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Credentials:
    """What a controller or a host proves itself with, and asks of others.

    Attributes:
        token: The token that all hosts of a session share.
    """

    token: bytes
