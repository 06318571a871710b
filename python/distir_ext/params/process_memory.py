"""Memory of other processes of this machine, as a file whose offsets are addresses.

Workers read there what those of another session hold, as far as the system lets them: as a rule the
same user's processes, where Yama (Ubuntu) is set to it only those that the reader has started.
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
