"""Loads the MPI library of this process's launcher: for one broadcast, or for the whole session.

The library is found here, at run time, and called by the native library (communicators/mpi). It is
initialized for the message alone, unless sessions with ``ccl="mpi"`` want it, or a program that
uses MPI itself has initialized it before, and goes on using it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tvm_ffi

from distir_ext.launch.place import Place
from distir_ext.launch.waiting import in_time

LIBRARY_VARIABLE = "DISTIR_EXT_MPI_LIBRARY"
_STANDARD = ("libmpi_abi.so.1", "libmpi_abi.so.0")
_NAMES = {
    "Open MPI": ("libmpi.so.40", *_STANDARD, "libmpi.so"),
    "MPICH": ("libmpi.so.12", *_STANDARD, "libmpi.so"),
    # By PMI or PMIx, of whichever library is there.
    "Slurm": ("libmpi.so.12", "libmpi.so.40", *_STANDARD, "libmpi.so"),
}
_Result = TypeVar("_Result")
_LIBRARY = re.compile(r"/libmpi(?:_abi)?\.so[.0-9]*$")


class MpiError(RuntimeError):
    """MPI cannot be loaded, or fails."""


def hand_on(place: Place, message: bytes | None, limit: float) -> bytes:
    """Hands a message from rank 0 to all copies, each of which calls this.

    Args:
        place: This copy's.
        message: The message of rank 0; None on all others.
        limit: Time limit for the other copies to join, in seconds.

    Raises:
        MpiError: there is no library, it fails, or others do not come.
    """

    def broadcast() -> bytes:
        _begin(place)
        heard = bytes(_native("broadcast")(message or b""))
        _native("end")()
        return heard

    return _in_time(broadcast, limit)


def keep(place: Place, limit: float) -> None:
    """Starts MPI for sessions with ``ccl="mpi"``, until this process ends; all copies call it.

    Args:
        place: This copy's.
        limit: Time limit for the other copies to join, in seconds.

    Raises:
        MpiError: the launcher has not started MPI, there is no library, it fails, threads may not
            call it, or others do not come.
    """
    if place.launcher not in _NAMES:
        raise MpiError(
            f'{place.launcher} has not started MPI, which ccl="mpi" needs: start the script by '
            "mpiexec, or by srun"
        )

    def begin() -> None:
        _begin(place)
        _native("keep")()

    _in_time(begin, limit)


def check_kept() -> None:
    """Finds out whether workers of this process can use MPI.

    Raises:
        RuntimeError: :func:`keep` has not been called in it; says what to do.
    """
    _native("kept")()


def _in_time(work: Callable[[], _Result], limit: float) -> _Result:
    try:
        return in_time(work, limit)
    except TimeoutError:
        raise MpiError(f"after {limit:g} seconds not all copies have come to MPI_Init") from None
    except RuntimeError as error:
        raise MpiError(str(error)) from None


def _begin(place: Place) -> None:
    """Loads and initializes MPI, unless that has been done.

    Raises:
        MpiError: there is no library, or it has not started this copy.
        RuntimeError: MPI fails.
    """
    library = _open(_NAMES[place.launcher])
    rank, count = _native("begin")()
    if (rank, count) != (place.rank, place.size):
        raise MpiError(
            f"{library} says rank {rank} of {count}: it is not the library of what has started "
            f"this process; state that in {LIBRARY_VARIABLE}"
        )


def _native(name: str) -> Any:
    """A function of the native library, which calls MPI."""
    return tvm_ffi.get_global_func(f"distir.runtime.mpi_{name}")


def _open(names: Sequence[str]) -> str:
    """Loads the first library of MPI that can be loaded; its file."""
    tried = []
    for name in _candidates(names):
        try:
            return str(_native("open")(name))
        except RuntimeError as error:
            tried.append(str(error))
    raise MpiError(
        f"the library of MPI is not found; state its file in {LIBRARY_VARIABLE}. Tried: "
        + "; ".join(tried)
    )


def _candidates(names: Sequence[str]) -> Iterator[str]:
    """Yields paths of MPI's library to try: stated, loaded, beside the launcher, on the system."""
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
                with contextlib.suppress(OSError):  # of a variable that is no path
                    if (file := each / folder / name).exists():
                        yield str(file)
    yield from names


def _loaded() -> list[str]:
    """Libraries of MPI in this process, as that of mpi4py."""
    maps = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    return sorted({line.split(maxsplit=5)[5] for line in maps if _LIBRARY.search(line)})


def _launchers() -> Iterator[Path]:
    """Yields the installation prefixes of the programs that have started this process."""
    process = os.getppid()
    while process > 1:
        try:
            program = Path(f"/proc/{process}/exe").readlink()
            status = Path(f"/proc/{process}/stat").read_text()
        except OSError:  # of another user
            return
        yield program.parent.parent
        process = int(status.rpartition(")")[2].split()[1])
