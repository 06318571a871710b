"""Opens descriptors 0, 1 and 2 if supervisors have closed them (``python serve.py <&-``).

The system gives the number of a closed descriptor to whatever is opened next. A socket or shared
memory that gets one of these is replaced when a process is started with a standard input of its
own, and is written to by whatever reports an error on descriptor 2.
"""

from __future__ import annotations

import os

_NUMBERS = (0, 1, 2)


def open_closed_ones() -> None:
    """Opens each of the three as ``/dev/null`` if it is closed.

    Called before descriptors are opened that other processes get, or that stay open.
    """
    for number in _NUMBERS:
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            if opened == number:
                os.set_inheritable(number, True)
            else:  # another thread has just opened something
                os.close(opened)


def is_inherited(number: int) -> bool:
    """Returns whether child processes inherit a descriptor.

    A socket that has taken the number of a closed stream is not inherited.

    Args:
        number: 1 or 2.
    """
    try:
        return os.get_inheritable(number)
    except OSError:
        return False
