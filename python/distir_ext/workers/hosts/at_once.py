"""Runs blocking calls in parallel, one thread per host.

Example: ``at_once([connect_a, connect_b], lambda connection: connection.close())`` gives both
connections. If ``b`` cannot be reached, its error is raised, and the connection to ``a`` is closed.
If neither can, the error is that of ``a``, whichever comes first.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_Result = TypeVar("_Result")

# How many are under way. Each has a thread, and what it waits for takes little of a processor.
MOST_AT_ONCE = 32


def at_once(
    calls: Sequence[Callable[[], _Result]], undo: Callable[[_Result], None]
) -> list[_Result]:
    """Runs calls in parallel, and returns their results in order.

    Args:
        calls: Each ends by itself, sooner or later.
        undo: Called with each result, early or late, if a call fails or the wait is interrupted.

    Raises:
        What the first of the calls that fail has raised, as soon as those before it have ended.
    """
    return _AtOnce(calls, undo).results()


class _AtOnce(Generic[_Result]):
    def __init__(
        self, calls: Sequence[Callable[[], _Result]], undo: Callable[[_Result], None]
    ) -> None:
        self._undo = undo
        self._count = len(calls)
        self._left = deque(enumerate(calls))
        self._found: dict[int, _Result] = {}
        self._errors: dict[int, BaseException] = {}
        self._is_over = False
        self._changed = threading.Condition()

    def results(self) -> list[_Result]:
        try:
            for _ in range(min(MOST_AT_ONCE, self._count)):
                # What is given up goes on for a while, and keeps no process from ending.
                threading.Thread(target=self._work, daemon=True).start()
            return [self._result(index) for index in range(self._count)]
        except BaseException:
            with self._changed:
                self._is_over = True
                self._left.clear()
            for each in self._found.values():
                self._undo(each)
            raise

    def _result(self, index: int) -> _Result:
        with self._changed:
            self._changed.wait_for(lambda: index in self._found or index in self._errors)
        if index in self._errors:
            raise self._errors[index]
        return self._found[index]

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._left:
                    return
                index, call = self._left.popleft()
            try:
                result = call()
            except BaseException as error:
                with self._changed:
                    self._errors[index] = error
                    self._left.clear()  # those before it are under way
                    self._changed.notify_all()
                return
            with self._changed:
                is_late = self._is_over
                if not is_late:
                    self._found[index] = result
                self._changed.notify_all()
            if is_late:
                self._undo(result)
