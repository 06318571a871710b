"""Sends the address and the token of rank 0 to the other copies of a script.

Under torchrun and MPI, rank 0 sends a message. Under other launchers each copy knows the address of
rank 0, and the token is stated. On one machine the message names a file of the token that only its
owner may read: other users may read, and write, messages of torchrun.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import socket
import stat
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from distir_ext.launch import mpi, torch_store
from distir_ext.launch.finding import (
    LauncherError,
    WrongVariableError,
    find_place,
    read_variables,
)
from distir_ext.launch.launchers import (
    LEADER,
    LISTENER,
    PORT,
    RANK,
    SIZE,
    SLURM,
    STATED,
    THIS_HOST,
    TIMEOUT,
)
from distir_ext.launch.place import Place
from distir_ext.launch.token_file import FILE, FOLDER, make_token_file, remove_token_file
from distir_ext.text.printable import printable_line, shown
from distir_ext.wire.connections import format_address, listen, parse_address
from distir_ext.wire.tokens import (
    FILE_VARIABLE,
    TOKEN_VARIABLE,
    check_token,
    is_token_stated,
    new_token,
    read_token,
)

DEFAULT_MEETING_PORT = 7273

# Ports of jobs of Slurm: below those that Linux gives to whoever connects.
_FIRST_PORT, _PORTS = 20000, 10000

HandOn = Callable[[Place, bytes | None, float], bytes]
_HAND_ON: dict[str, HandOn] = {
    "torchrun": torch_store.hand_on,
    "Open MPI": mpi.hand_on,
    "MPICH": mpi.hand_on,
}


# Of what is handed on: rank 0 says a token, or a file of one, and a few addresses.
_MOST_BYTES = 1 << 16
_MOST_ADDRESSES = 1024

# How long it may take until all copies are there, in seconds: they may import anything before.
_START_LIMIT = 300.0


@dataclass(frozen=True)
class Introduction:
    """Token and addresses by which all copies reach rank 0.

    Attributes:
        token: The token that they share.
        addresses: Addresses of rank 0, the likeliest first.
        file: A file of the token, which rank 0 removes when all copies have read it.
    """

    token: str = field(repr=False)
    addresses: list[str]
    file: Path | None = None

    def remove_file(self) -> None:
        """Removes the file, if there is one."""
        if self.file is not None:
            remove_token_file(self.file)


def stated_place(rank: int | None, size: int | None, address: str | None) -> Place:
    """This copy's place, by what the program states, and otherwise by the environment.

    Args:
        rank: Index of the copy.
        size: Number of copies.
        address: Address of rank 0.

    Raises:
        LauncherError: the environment contradicts itself.
        ValueError: what is stated makes no sense.
    """
    if (rank is None) != (size is None):
        raise ValueError(f"rank={rank} and size={size}: state both, or neither")
    if rank is None or size is None:
        place = find_place() or Place("no launcher", 0, 1)
        return replace(place, leader=address, local_size=None) if address else place
    place = Place(
        "the program itself",
        rank,
        size,
        leader=address,
        variables={"rank": str(rank), "size": str(size)},
    )
    if wrong := place.contradictions():
        raise ValueError("; ".join(wrong))
    return place


def start_limit(timeout: float | None, otherwise: float = _START_LIMIT) -> float:
    """Returns the time within which all copies have to start, in seconds.

    Args:
        timeout: The limit that the program states, or None.
        otherwise: The limit if neither the program nor the environment states one.

    Raises:
        LauncherError: the environment states no number of seconds.
        ValueError: the program does not.
    """
    stated = os.environ.get(TIMEOUT, "").strip()
    if timeout is None and not stated:
        return otherwise
    try:
        limit = float(stated if timeout is None else timeout)
    except (OverflowError, ValueError):
        limit = math.nan
    if 0 < limit < threading.TIMEOUT_MAX:
        return limit
    if timeout is None:
        raise WrongVariableError(f"{TIMEOUT}='{shown(stated)}' is no number of seconds")
    raise ValueError(f"timeout={timeout!r} is no number of seconds")


def open_listener(place: Place) -> socket.socket:
    """Opens the socket at which rank 0 accepts the other copies.

    Raises:
        LauncherError: the address of rank 0 is unknown, or this process cannot listen there.
    """
    if inherited := os.environ.pop(LISTENER, "").strip():
        return _inherited_listener(inherited, place)
    host, port = _leader(place)
    bind = host if _is_this_host(host) else _every_interface(host)
    try:
        return listen(format_address((bind, port)))
    except OSError as error:
        advice = ""
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE:
            advice = f"; another rank 0 may listen there, for which {PORT} states another port"
            if place.launcher == STATED.name:
                advice += f"; or this process has inherited {RANK} from rank 0, and is none itself"
        raise LauncherError(f"{place}: {error}{advice}. Found: {place.listed()}") from error


def _inherited_listener(descriptor: str, place: Place) -> socket.socket:
    """The socket that ``distir launch`` has opened for this process."""
    try:
        # Which otherwise would be taken for a number, or be too large for one.
        if not re.fullmatch(r"[0-9]{1,9}", descriptor):
            raise ValueError("it is no descriptor")
        listener = socket.socket(fileno=int(descriptor))
        if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            listener.detach()  # it is somebody else's
            raise ValueError("it does not listen")
    except (OSError, ValueError) as error:
        raise LauncherError(
            f"{LISTENER}={shown(descriptor)} is no socket that distir launch has opened for this "
            f"process: {error}. Found: {place.listed()}"
        ) from None
    listener.set_inheritable(False)
    return listener


def introduce(
    place: Place, listener: socket.socket | None, token: str | None, limit: float
) -> Introduction:
    """Tells all copies the token and the address of rank 0; each copy calls this.

    Args:
        place: This copy's.
        listener: Socket at which rank 0 listens; None on all others.
        token: The token, if the program states it.
        limit: Time limit for other copies to join, in seconds.

    Raises:
        LauncherError: rank 0 cannot be found, or says nothing.
        OSError: the file of the token cannot be read.
        ValueError: there is no token, or it can be guessed.
    """
    stated = _stated_token(token)
    if place.size == 1:
        return Introduction(stated or new_token(), [])
    hand_on = _HAND_ON.get(place.launcher)
    if hand_on is None:
        if stated is None:
            raise LauncherError(
                f"{place}: it hands on nothing, so all copies need one token: state its file in "
                f"{FILE_VARIABLE}, or the token in {TOKEN_VARIABLE}; make one with: distir token "
                f"FILE. Found: {place.listed()}"
            )
        return Introduction(stated, [format_address(_leader(place))])
    is_here = place.local_size == place.size
    made, message = None, None
    if listener is not None:
        made = _make(stated, is_here, _reached_at(place, listener))
        message = _written(made, stated)
    try:
        heard = _read(hand_on(place, message, limit), stated, is_here)
    except BaseException as error:
        if made is not None:
            made.remove_file()
        if not isinstance(error, mpi.MpiError | torch_store.StoreError | ValueError):
            raise
        raise LauncherError(
            f"{place}: {printable_line(str(error))}. To do without, state {LEADER}, {RANK}, {SIZE} "
            f"and {FILE_VARIABLE}. Found: {place.listed()}"
        ) from None
    return made or heard


def _make(stated: str | None, is_here: bool, addresses: list[str]) -> Introduction:
    if stated is not None:
        return Introduction(stated, addresses)
    if not is_here:
        return Introduction(new_token(), addresses)
    file = make_token_file()
    return Introduction(read_token(file).decode(), addresses, file)


def _written(made: Introduction, stated: str | None) -> bytes:
    """Encodes the message of rank 0: addresses, and the token or its file if it is not stated."""
    said: dict[str, Any] = {"addresses": made.addresses}
    if made.file is not None:
        said["file"] = str(made.file)
    elif stated is None:
        said["token"] = made.token
    return json.dumps(said).encode()


def _read(said: bytes, stated: str | None, is_here: bool) -> Introduction:
    """Decodes the message of :func:`_written`, which may come from another user.

    Raises:
        ValueError: the message is malformed, or rank 0 has not made the file that it names.
    """
    if len(said) > _MOST_BYTES:
        raise ValueError(f"what rank 0 says makes no sense (it has {len(said)} bytes)")
    try:
        heard = json.loads(said)
        addresses = [_text(each) for each in heard["addresses"]]
        if not 0 < len(addresses) <= _MOST_ADDRESSES:
            raise ValueError(f"it has {len(addresses)} addresses")
        for each in addresses:
            parse_address(each)
        if stated is not None:
            return Introduction(stated, addresses)
        if not is_here:
            token = check_token(_text(heard["token"]), "that rank 0 says").decode()
            return Introduction(token, addresses)
        file = Path(_text(heard["file"]))
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"what rank 0 says makes no sense ({error!r})") from error
    folder = file.parent
    is_made = folder.parent == Path(tempfile.gettempdir()) and folder.name.startswith(FOLDER)
    try:
        status = folder.lstat()
        if file.name != FILE or not is_made or status.st_uid != os.geteuid():
            raise ValueError(f"{file} is no file that rank 0 has made for its token")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise ValueError(f"others than its owner may use {folder}")
        return Introduction(read_token(file).decode(), addresses)
    except OSError as error:
        raise ValueError(f"the token of rank 0 cannot be read: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} instead of a text")
    return value


def _stated_token(token: str | None) -> str | None:
    if token is not None:
        return check_token(token, "that the program states").decode()
    return read_token(None).decode() if is_token_stated() else None


def _leader(place: Place) -> tuple[str, int]:
    """The host of rank 0 and the port where it listens, 0 for any."""
    default = _port(place)
    if place.size in (1, place.local_size):
        return THIS_HOST, default
    if place.leader is None:
        if place.launcher in _HAND_ON:
            return "", default
        raise LauncherError(
            f"{place}: state the host of rank 0 in {LEADER}. Found: {place.listed()}"
        )
    try:
        return parse_address(place.leader, default)
    except ValueError as error:
        raise LauncherError(f"{place}: {error}. Found: {place.listed()}") from error


def _port(place: Place) -> int:
    with read_variables(place) as reader:
        if (stated := reader.port(PORT)) is not None:
            return stated
        if place.launcher in _HAND_ON or place.size == 1:
            return 0
        if place.launcher == SLURM.name:  # steps of one job run side by side
            job, step = (reader.number(name) or 0 for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
            return _FIRST_PORT + (job * 16 + step) % _PORTS
    return DEFAULT_MEETING_PORT


def _is_this_host(name: str) -> bool:
    return name == "localhost" or name.startswith("127.") or name == "::1"


def _every_interface(host: str) -> str:
    """All interfaces: a host may know its own name by another address than others do."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host else []
    except (OSError, UnicodeError):  # it does not know its name at all
        found = []
    families = {family for family, *_ in found}
    return "::" if families == {socket.AF_INET6} else "0.0.0.0"


def _reached_at(place: Place, listener: socket.socket) -> list[str]:
    """Addresses of this host, which others try one after the other."""
    port = listener.getsockname()[1]
    if _is_this_host(listener.getsockname()[0]):
        return [format_address((THIS_HOST, port))]
    names = [place.leader] if place.leader else []
    family = listener.family
    for interface in psutil.net_if_addrs().values():
        for each in interface:
            address = each.address
            if each.family == family and not _is_this_host(address) and "%" not in address:
                names.append(address)
    return [format_address((name, port)) for name in dict.fromkeys(names)]
