"""Finds files (``/proc/<pid>/mem``) through which a process can read another one's memory.

Offsets in such a file are addresses. Workers read arrays of another session there. The system
allows it for processes of the same user; under Yama, which Ubuntu has, perhaps only for processes
that the reader has started.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import tvm_ffi

_OF_PROCESSES = Path("/proc")


def process_memory(process: int) -> Path:
    """The memory of a process."""
    return _OF_PROCESSES / str(process) / "mem"


def process_of(path: Path) -> int | None:
    """The process whose memory a path is; None if it is another file."""
    parts = path.parts
    is_memory = len(parts) == 4 and path.is_relative_to(_OF_PROCESSES) and parts[3] == "mem"
    return int(parts[2]) if is_memory and parts[2].isdecimal() else None


def can_read(places: Iterable[tuple[int, int]]) -> bool:
    """Returns whether this process can read a byte at an address of each of some processes."""
    can = tvm_ffi.get_global_func("distir.runtime.can_read_process")
    return all(can(process, address) for process, address in places)
