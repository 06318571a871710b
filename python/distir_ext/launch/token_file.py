"""Shares rank 0's token with the other copies on its machine, through a file."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from distir_ext.text.files.temporary import lasting_folder
from distir_ext.wire.tokens import make_token

# DIRECTORY/distir_ext-xyz/token
FOLDER, FILE = "distir_ext-", "token"

_made: set[Path] = set()


def make_token_file() -> Path:
    """A file of a new token that only this user may read, in a new folder.

    Raises:
        OSError: it cannot be made.
    """
    file = lasting_folder(FOLDER) / FILE
    _made.add(file)
    try:
        make_token(file)
    except BaseException:
        remove_token_file(file)
        raise
    return file


def remove_token_file(file: Path) -> None:
    """Removes a file that :func:`make_token_file` has made, and its folder."""
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
        file.parent.rmdir()
    _made.discard(file)


@contextlib.contextmanager
def removed_when_ended() -> Iterator[None]:
    """Removes token files when SIGTERM or SIGHUP ends this process.

    Where the program handles them itself, or this is not its main thread, they are left to it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [
        each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL
    ]
    for number in numbers:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, frame: FrameType | None) -> None:
    del frame
    for file in list(_made):
        remove_token_file(file)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)  # so that the exit status says what has ended it
