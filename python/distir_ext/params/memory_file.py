"""Files in memory, through which processes of one machine exchange arrays.

Such a file has no name in any directory: processes of the same user open it by the descriptor of
the process that has made it, and it is gone with the last of them that has it open or mapped.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from distir_ext.params.host_array import memory_of, on_host
from distir_ext.text.files.json_file import require

_OF_PROCESSES = Path("/proc")


class MemoryFile:
    """A file in memory, which grows and never shrinks.

    Attributes:
        path: By which this process and others open it.
        num_bytes: Its size.

    Raises:
        OSError: the system has no such files.
    """

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("arrays", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        # A process that could shorten it would end all others at their next access.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, seals)
        self.path = _OF_PROCESSES / str(os.getpid()) / "fd" / str(self._descriptor)
        self.num_bytes = 0

    def grow(self, num_bytes: int) -> None:
        """Makes it at least so large."""
        if num_bytes > self.num_bytes:
            os.ftruncate(self._descriptor, num_bytes)
            self.num_bytes = num_bytes

    def close(self) -> None:
        """Nobody can open it any more."""
        os.close(self._descriptor)


def is_memory_file(path: Path) -> bool:
    """Returns whether a path is that of a :class:`MemoryFile`."""
    return path.is_relative_to(_OF_PROCESSES)


class MappedMemory:
    """Files in memory that a process has mapped, for as long as each of its steps uses them.

    Pages count for each mapping that they are touched in, which takes longer than to copy them.
    """

    def __init__(self) -> None:
        self._mapped: dict[Path, tuple[tuple[int, ...], np.ndarray[Any, Any]]] = {}
        self._used: set[Path] = set()

    def bytes(self, path: Path) -> np.ndarray[Any, Any]:
        """All bytes of a file, to be read and written.

        Raises:
            OSError: it cannot be opened.
            ValueError: it is empty.
        """
        self._used.add(path)
        found = path.stat()
        identity = (found.st_dev, found.st_ino, found.st_size)
        if path not in self._mapped or self._mapped[path][0] != identity:
            require(found.st_size > 0, f"{path} is empty")
            self._mapped[path] = identity, np.memmap(path, np.uint8, "r+", shape=found.st_size)
        return self._mapped[path][1]

    def put(self, path: Path, tensors: Iterable[tuple[Any, int]]) -> None:
        """Writes tensors to a file, each from a byte on.

        Raises:
            OSError: it cannot be opened.
            ValueError: a tensor does not fit in.
        """
        memory = self.bytes(path)
        for tensor, begin in tensors:
            elements = np.frombuffer(memory_of(on_host(tensor)), np.uint8)
            end = begin + elements.size
            require(end <= memory.size, f"a tensor ends at {end} of {memory.size} bytes of {path}")
            memory[begin:end] = elements

    def end_step(self) -> None:
        """Lets go of files that have not been used since the last step."""
        for path in self._mapped.keys() - self._used:
            del self._mapped[path]
        self._used.clear()
