"""What hosts must have the same of."""

from __future__ import annotations

import sys

import tvm

from distir_ext._version import __version__


def versions() -> list[str]:
    """What this process has."""
    return [f"distir_ext {__version__}", f"tvm {tvm.__version__}", f"{sys.byteorder}-endian"]
