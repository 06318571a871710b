"""A message from rank 0 to all others through MPI, of the library that has started them.

The library is found at run time and called by ctypes. It is loaded into this process for that
message: a program that uses MPI itself has initialized it before, and goes on using it.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distir_ext._launch.place import Place

LIBRARY_VARIABLE = "DISTIR_EXT_MPI_LIBRARY"
_STANDARD = ("libmpi_abi.so.1", "libmpi_abi.so.0")
_NAMES = {
    "Open MPI": ("libmpi.so.40", *_STANDARD, "libmpi.so"),
    "MPICH": ("libmpi.so.12", *_STANDARD, "libmpi.so"),
}
_LIBRARY = re.compile(r"/libmpi(?:_abi)?\.so[.0-9]*$")


class MpiError(RuntimeError):
    """MPI cannot be loaded, or fails."""


@dataclass(frozen=True)
class _Abi:
    """How a library spells what is needed here.

    Attributes:
        world: MPI_COMM_WORLD.
        byte: MPI_BYTE.
        serialized: MPI_THREAD_SERIALIZED.
    """

    world: Any
    byte: Any
    serialized: int


def hand_on(place: Place, message: bytes | None, limit: float) -> bytes:
    """Hands a message from rank 0 to all copies, each of which calls this.

    Args:
        place: This copy's.
        message: What rank 0 says; None on all others.
        limit: How long the others may take to come, in seconds.

    Raises:
        MpiError: there is no library, it fails, or others do not come.
    """
    library = _load(_NAMES[place.launcher])
    outcome: list[bytes | MpiError] = []

    def run() -> None:
        try:
            outcome.append(_broadcast(library, place, message))
        except MpiError as error:
            outcome.append(error)

    # MPI waits without limit, and nothing ends it but the end of the process.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit)
    if not outcome:
        raise MpiError(f"after {limit:g} seconds not all copies have come to MPI_Init")
    if isinstance(outcome[0], MpiError):
        raise outcome[0]
    return outcome[0]


def _broadcast(library: ctypes.CDLL, place: Place, message: bytes | None) -> bytes:
    abi = _abi_of(library)
    call = _checked(library)
    before, after = ctypes.c_int(), ctypes.c_int()
    call("MPI_Initialized", ctypes.byref(before))
    call("MPI_Finalized", ctypes.byref(after))
    if after.value:
        raise MpiError("MPI_Finalize has been called; open the session before")
    if not before.value:
        given = ctypes.c_int()
        call("MPI_Init_thread", None, None, abi.serialized, ctypes.byref(given))
    rank, count = ctypes.c_int(), ctypes.c_int()
    call("MPI_Comm_rank", abi.world, ctypes.byref(rank))
    call("MPI_Comm_size", abi.world, ctypes.byref(count))
    if (rank.value, count.value) != (place.rank, place.size):
        raise MpiError(
            f"{library._name} says rank {rank.value} of {count.value}: it is not the library of "
            f"what has started this process; state that in {LIBRARY_VARIABLE}"
        )
    size = ctypes.c_int(0 if message is None else len(message))
    call("MPI_Bcast", ctypes.byref(size), 4, abi.byte, 0, abi.world)
    buffer = ctypes.create_string_buffer(message or b"", size.value)
    call("MPI_Bcast", buffer, size.value, abi.byte, 0, abi.world)
    if not before.value:
        call("MPI_Finalize")
    return buffer.raw


def _checked(library: ctypes.CDLL) -> Callable[..., None]:
    def call(name: str, *arguments: Any) -> None:
        if not hasattr(library, name):
            raise MpiError(f"{library._name} is no library of MPI: it has no {name}")
        status = getattr(library, name)(*arguments)
        if status != 0:
            raise MpiError(f"{name} of {library._name} has failed with {status}")

    return call


def _abi_of(library: ctypes.CDLL) -> _Abi:
    """Open MPI has addresses for handles; MPICH and the standard of MPI 5 have numbers."""
    if hasattr(library, "ompi_mpi_comm_world"):
        world, byte = (
            ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(library, name)))
            for name in ("ompi_mpi_comm_world", "ompi_mpi_byte")
        )
        return _Abi(world, byte, 2)
    if "libmpi_abi" in Path(library._name).name:
        return _Abi(ctypes.c_void_p(0x101), ctypes.c_void_p(0x247), 2048)
    return _Abi(ctypes.c_int(0x44000000), ctypes.c_int(0x4C00010D), 2)


def _load(names: Sequence[str]) -> ctypes.CDLL:
    tried = []
    for name in _candidates(names):
        try:
            return ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError as error:
            tried.append(str(error))
    raise MpiError(
        f"the library of MPI is not found; state its file in {LIBRARY_VARIABLE}. Tried: "
        + "; ".join(tried)
    )


def _candidates(names: Sequence[str]) -> Iterator[str]:
    """Where the library may be: stated, loaded, beside the launcher, where the system looks."""
    stated = os.environ.get(LIBRARY_VARIABLE)
    if stated:
        yield stated
        return
    yield from _loaded()
    prefixes = [*_launchers(), Path(sys.prefix)]
    if prefix := os.environ.get("OPAL_PREFIX"):
        prefixes.insert(0, Path(prefix))
    for each in prefixes:
        for folder in ("lib", "lib64"):
            for name in names:
                if (file := each / folder / name).exists():
                    yield str(file)
    yield from names


def _loaded() -> list[str]:
    """Libraries of MPI in this process, as that of mpi4py."""
    maps = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    return sorted({line.split(maxsplit=5)[5] for line in maps if _LIBRARY.search(line)})


def _launchers() -> Iterator[Path]:
    """Where the programs are installed that have started this process."""
    process = os.getppid()
    while process > 1:
        try:
            program = Path(f"/proc/{process}/exe").readlink()
            status = Path(f"/proc/{process}/stat").read_text()
        except OSError:  # of another user
            return
        yield program.parent.parent
        process = int(status.rpartition(")")[2].split()[1])
