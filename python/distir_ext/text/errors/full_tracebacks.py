"""Reads from the environment whether errors show all frames, internal ones included."""

from __future__ import annotations

import os

VARIABLE = "DISTIR_EXT_FULL_TRACEBACKS"


def are_tracebacks_full() -> bool:
    """Returns whether the environment asks for full tracebacks."""
    return bool(os.environ.get(VARIABLE))
