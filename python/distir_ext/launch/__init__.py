"""Finds the place of this process among the copies of a script that a launcher has started.

torchrun --nproc-per-node 4 script.py        # in script.py:
print(dx.launch.find_place())                # rank 2 of 4 by torchrun, ...
"""

from __future__ import annotations

from distir_ext.launch.finding import Findings, LauncherError, find_place, look_around
from distir_ext.launch.place import Place

__all__ = ["Findings", "LauncherError", "Place", "find_place", "look_around"]
