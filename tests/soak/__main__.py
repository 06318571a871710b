"""``python -m tests.soak [seconds]``: uses sessions in all ways until something is lost or left."""

from __future__ import annotations

import sys

from .soak import soak

if __name__ == "__main__":
    soak(float(sys.argv[1]) if sys.argv[1:] else 60.0)
