"""Versions that must match on all hosts."""

from __future__ import annotations

import sys

import tvm

from distir_ext._version import __version__


def versions() -> list[str]:
    """Returns the versions and the byte order of this process."""
    return [f"distir_ext {__version__}", f"tvm {tvm.__version__}", f"{sys.byteorder}-endian"]
