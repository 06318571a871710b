"""Adds time limits and Ctrl-C to blocking calls of libraries that have neither."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


def in_time(work: Callable[[], _Result], limit: float) -> _Result:
    """Runs a function in a thread of its own, so that this one stays free for signals.

    Python handles signals between two steps of its main thread, so a handler would wait for a call
    of a library to end. If the time is over, or a handler raises, the call goes on in its thread,
    which nothing ends but the end of the process.

    Args:
        work: Function to run; its errors are raised here.
        limit: Time limit, in seconds.

    Raises:
        TimeoutError: it has not ended.
    """
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"it has not ended after {limit:g} seconds")
    return results[0]
