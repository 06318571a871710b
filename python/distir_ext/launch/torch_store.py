"""Broadcasts a message from rank 0 to all copies, through the store that torchrun starts."""

from __future__ import annotations

import datetime
import os
from typing import Any

from distir_ext.launch.launchers import STORE_PORT, Reader, WrongValueError
from distir_ext.launch.place import Place
from distir_ext.launch.waiting import in_time
from distir_ext.text.printable import shown

_kept: list[Any] = []  # a store that this process has started lasts as long as the process


class StoreError(RuntimeError):
    """There is no store, or rank 0 has not written to it."""


def hand_on(place: Place, message: bytes | None, limit: float) -> bytes:
    """Hands a message from rank 0 to all copies, each of which calls this.

    Args:
        place: This copy's.
        message: The message of rank 0; None on all others.
        limit: Time limit for the other copies to join, in seconds.

    Raises:
        StoreError: there is no PyTorch, the store cannot be reached, or rank 0 does not come.
    """
    try:
        from torch.distributed import TCPStore
    except ImportError as error:
        raise StoreError(
            f"torchrun's store needs PyTorch, which cannot be imported: {error}"
        ) from error
    reader = Reader(os.environ)
    try:
        port = reader.port(STORE_PORT)
        attempt = reader.number("TORCHELASTIC_RESTART_COUNT") or 0
    except WrongValueError as error:
        raise StoreError(str(error)) from None
    if port is None:
        raise StoreError(f"{STORE_PORT} is not set, so that it is not known where the store is")
    host = os.environ.get("MASTER_ADDR", "")
    # Others than torchrun set its variables and leave the store to rank 0.
    starts = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    key = f"distir_ext/{attempt}"

    def through_store() -> bytes:
        store = TCPStore(
            host,
            port,
            is_master=starts,
            timeout=datetime.timedelta(seconds=limit),
            wait_for_workers=False,
            multi_tenant=True,
        )
        _kept.append(store)
        if message is not None:
            store.set(key, message)
            return message
        return bytes(store.get(key))

    try:
        return in_time(through_store, limit)
    except (RuntimeError, TimeoutError, ValueError) as error:
        said = shown(str(error).partition("\n")[0].rstrip("."))
        raise StoreError(
            f"rank 0 says nothing through the store at {shown(host)}:{port}: {said}"
        ) from error
