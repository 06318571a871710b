"""Registry of communication backends (``cpu``, ``nccl``, ``mpi``), with what each needs to start.

The native library has their collectives by the same names, through ``RegisterBackend`` in
``src/runtime/communicators/communicator.h``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import tvm_ffi


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Backend:
    """A communication library.

    Example:
        >>> register_backend(Backend("mine"))
        >>> unregister_backend("mine")
    """

    name: str
    """The ``ccl`` of sessions, and the name in ``RegisterBackend``."""

    prepare: Callable[[], None] = _nothing
    """Runs in each process that has workers, before the native library makes them."""

    check: Callable[[], None] = _nothing
    """Runs in the controller before it starts processes on its host: an error that each of them
    would find by itself, later, is raised at once."""

    needs_tvm: bool = True
    """True if worker processes import all of TVM for it, instead of its runtime alone."""

    connects: bool = False
    """True if workers whose tensors are in host memory have to find each other, and open groups
    together; those on GPUs always do."""

    of_copies: bool = False
    """True if its workers are threads of the copies of a script (docs/clusters.md), instead of
    processes that they start."""

    device: str = "cpu"
    """Type of device that programs run on."""

    other_devices: Collection[str] = ()
    """Other types of devices that a session may choose; only for workers that are not threads of
    the controller."""

    in_the_clear: bool = False
    """True if messages between hosts are neither encrypted nor authenticated by the token; a
    session on several machines warns then."""


def prepare_gpus() -> None:
    """Loads what workers on GPUs need, in a process that has some."""
    from distir_ext.native.machine import nvidia as _nvidia  # which imports TVM

    _nvidia.prepare_runtime()


def _check_nccl() -> None:
    prepare_gpus()
    tvm_ffi.get_global_func("distir.runtime.load_nccl")()


def _check_mpi() -> None:
    from distir_ext.launch import mpi

    mpi.check_kept()


_backends = {
    each.name: each
    for each in (
        Backend("cpu", needs_tvm=False),
        Backend("nccl", prepare=prepare_gpus, check=_check_nccl, device="cuda", in_the_clear=True),
        Backend(
            "mpi",
            prepare=_check_mpi,
            check=_check_mpi,
            needs_tvm=False,
            connects=True,
            of_copies=True,
            other_devices=("cuda",),
            in_the_clear=True,
        ),
    )
}

_OWN = frozenset(_backends)


def register_backend(backend: Backend, *, replace: bool = False) -> None:
    """Makes a backend known to sessions of this process.

    Worker processes need the same call: let a module make it, and name that module in
    ``Session(imports=)``. A backend that needs no preparation works without.

    Args:
        backend: Its name, and what it needs of this process.
        replace: Whether it takes the place of a backend that was registered under this name before,
            as when a notebook's cell runs again.

    Raises:
        ValueError: The name is that of a backend of distir_ext or, without ``replace``, of another
            one.
    """
    if backend.name in _OWN:
        raise ValueError(f"{backend.name!r} is a backend of distir_ext; choose another name")
    if backend.name in _backends and not replace:
        raise ValueError(
            f"there is a backend {backend.name!r} already; replace=True replaces it, and "
            f"unregister_backend({backend.name!r}) forgets it"
        )
    _backends[backend.name] = backend


def unregister_backend(name: str) -> None:
    """Forgets a backend.

    Args:
        name: As :func:`register_backend` was given it.

    Raises:
        ValueError: There is none of this name, or it is one of distir_ext.
    """
    if name in _OWN or name not in _backends:
        raise ValueError(f"{name!r} is no backend that was registered")
    del _backends[name]


def is_of_copies(name: str) -> bool:
    """Returns whether a backend's workers are threads of a script's copies; False if unknown."""
    backend = _backends.get(name)
    return backend is not None and backend.of_copies


def sends_in_the_clear(name: str) -> bool:
    """Returns whether a backend declares that it sends unencrypted; False if it is unknown."""
    backend = _backends.get(name)
    return backend is not None and backend.in_the_clear


def other_device(ccl: str, device: str | None) -> str:
    """The device that a session states for its programs, if it is not that of the backend.

    Args:
        ccl: The backend's name.
        device: ``"cpu"`` or ``"cuda"``; None: the backend's.

    Returns:
        The device; empty if it is the backend's.

    Raises:
        ValueError: The backend does not move tensors between such devices.
    """
    backend = find_backend(ccl)
    if device is None or device == backend.device:
        return ""
    if device in backend.other_devices:
        return device
    known = " or ".join(f'"{each}"' for each in (backend.device, *backend.other_devices))
    raise ValueError(f'with ccl="{ccl}" programs run on device={known}, not {device!r}')


def find_backend(name: str) -> Backend:
    """The backend of a name.

    Raises:
        ValueError: The native library has no collectives of this name.
    """
    known = [str(each) for each in tvm_ffi.get_global_func("distir.runtime.backends")()]
    if name not in known:
        raise ValueError(f"ccl={name!r} is not supported; this build has {known}")
    return _backends.get(name) or Backend(name)
