"""States of a session's workers (open, closing, closed), and the lock of the thread that uses them.

Workers are open, then closing, then closed. What they have (streams, descriptors, shared memory,
threads) belongs to the thread whose turn it is, which runs a step on them or ends them; no other
thread touches it. Whoever closes them from elsewhere, which may be another thread, a signal
handler or a finalizer in the middle of a step, only states that they are closing and interrupts
the step: it fails with the error of closed workers, and the thread that runs it ends them.

Locks are taken in this order: the turn, then the state. The state is never held while anything is
waited for. Both may be taken again by a thread that has them, as a signal handler does.
"""

from __future__ import annotations

import contextlib
import enum
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

_Result = TypeVar("_Result")

# How long a step that is running may take until workers end, once they are closing, in seconds.
# Whoever runs it ends them later if it takes longer.
_STEP_LIMIT = 15.0


class _State(enum.Enum):
    OPEN = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()


class Lifecycle(ABC):
    """Workers that run one step at a time, and end once."""

    def __init__(self) -> None:
        self._turn = threading.RLock()
        self._owner = os.getpid()
        self._state = _State.OPEN
        self._state_lock = threading.RLock()
        self._reason = ""
        # Both belong to the turn.
        self._runs_step = False
        self._is_ending = False

    @property
    def belongs_here(self) -> bool:
        """True in the process that has started the workers, False in forks of it."""
        return os.getpid() == self._owner

    @property
    def is_open(self) -> bool:
        """True if steps can be run."""
        return self._state is _State.OPEN and self.belongs_here

    def check_open(self) -> None:
        """Raises RuntimeError if the workers are closing or gone, or another process's; says why.

        Whoever waits for a lock of the workers looks before that: in a fork, nobody may hold it.
        """
        if not self.belongs_here:
            raise RuntimeError(
                f"the session belongs to process {self._owner}, of which this one, {os.getpid()}, "
                "is a fork; open a session in this process"
            )
        if self._state is not _State.OPEN:
            raise RuntimeError(
                f"the session is closed: {self._reason}"
                if self._reason
                else "the session is closed"
            )

    def turn(self) -> AbstractContextManager[bool]:
        """A lock that keeps the steps of other threads away, for several steps in a row.

        Raises:
            RuntimeError: as :meth:`check_open`.
        """
        self.check_open()
        self._check_caller("start a step of")
        return self._turn

    def close(self, reason: str = "") -> None:
        """Ends the workers and waits for that; the first reason given is kept.

        A step that another thread runs fails. If this thread runs one, in which a signal handler or
        a finalizer calls this, the workers end when that step does, and not before.
        """
        if not self.belongs_here:
            return
        self._check_caller("close")
        self._begin_to_close(reason)
        if self._turn.acquire(timeout=_STEP_LIMIT):
            try:
                self._end_once()
            finally:
                self._turn.release()

    def _in_turn(self, body: Callable[[], _Result]) -> _Result:
        """Runs a step, when it is this thread's turn.

        Raises:
            RuntimeError: the workers are closed, or this is called in the middle of a step.
        """
        with self.turn():
            self.check_open()
            if self._runs_step:
                raise RuntimeError(
                    "the session is in the middle of a step of this thread, which a signal "
                    "handler or a finalizer has interrupted; the step has to end before another "
                    "one begins"
                )
            self._runs_step = True
            try:
                return body()
            finally:
                self._runs_step = False
                self._end_once()

    def _begin_to_close(self, reason: str) -> None:
        """States that the workers are to end; the step that runs hears of it."""
        with self._state_lock:
            if self._state is _State.OPEN:
                self._state, self._reason = _State.CLOSING, reason
                self._interrupt()

    def _end_once(self) -> None:
        """Ends workers that are closing, unless this thread is in the middle of a step or of that.

        The turn is this thread's.
        """
        if self._state is not _State.CLOSING or self._runs_step or self._is_ending:
            return
        self._is_ending = True
        try:
            self._end()
            self._state = _State.CLOSED
        finally:
            self._is_ending = False

    def _check_caller(self, action: str) -> None:  # noqa: B027  (most callers may do anything)
        """Raises RuntimeError if this is a worker, which would wait for itself."""

    @abstractmethod
    def _interrupt(self) -> None:
        """Has a step that runs notice that the workers are closing; any thread may call it."""

    @abstractmethod
    def _end(self) -> None:
        """Ends the workers and gives back what they have; called again if it was interrupted."""


class Bell:
    """A descriptor that a thread can wait on with others, until it is rung."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._mutex = threading.RLock()

    def fileno(self) -> int:
        """Returns a descriptor that is readable once the bell was rung; -1 after it is closed."""
        return self._descriptor

    def ring(self) -> None:
        """Wakes whoever waits, now and later."""
        with self._mutex:
            if self._descriptor >= 0:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_write(self._descriptor, 1)

    def close(self) -> None:
        """Gives the descriptor back."""
        with self._mutex:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)

    def forget(self) -> None:
        """As :meth:`close`, in a fork, where nobody may release the mutex."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
