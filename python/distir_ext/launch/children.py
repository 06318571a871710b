"""Starts copies of a script on this machine, forwards their output, and ends them together.

The first copy that fails ends all others; rank 0 may say its own error before. Copies are a group
of processes each, so that a terminal's Ctrl-C reaches them through this process only, and end with
it, however it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from distir_ext.launch.launchers import LEADER, LISTENER, RANK, SIZE
from distir_ext.wire.connections import format_address, listen
from distir_ext.wire.standard_streams import open_closed_ones
from distir_ext.wire.tokens import FILE_VARIABLE, TOKEN_VARIABLE, new_token

# How long copies may take to end when they are asked to, and what they have printed may take to
# arrive when all have ended, in seconds.
_END_LIMIT = 10.0
_LAST_OUTPUT_LIMIT = 0.5

# How long rank 0 has to end by itself when another copy has failed, in seconds: its own error says
# more.
_OWN_ERROR_LIMIT = 2.0

# How often signals are looked for while nobody reads what is passed on, in milliseconds.
_LOOK_MILLISECONDS = 200

# How many copies a line names.
_NAMED = 8

_PIECE_BYTES = 1 << 16

# A longer line is passed on as several: to wait for its end would take memory without limit.
_LONGEST_LINE = 1 << 20
_PR_SET_PDEATHSIG = 1
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SIGNALED = 128  # and the signal, as shells report it


def run_copies(command: Sequence[str], count: int) -> int:
    """Runs copies of a command to their end.

    Args:
        command: Command that each copy runs.
        count: Number of copies.

    Returns:
        The exit status of the first that failed, or 0; 128 and the signal, if one ended it, or
        ended this.
    """
    open_closed_ones()
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen("127.0.0.1:0"))
        token = new_token()
        interrupted = stack.enter_context(_interruptions())
        copies: list[subprocess.Popen[bytes]] = []
        stack.callback(_end, copies, signal.SIGKILL)
        for rank in range(count):
            environment = {
                **{name: each for name, each in os.environ.items() if name != FILE_VARIABLE},
                "PYTHONUNBUFFERED": "1",
                RANK: str(rank),
                SIZE: str(count),
                LEADER: format_address(listener.getsockname()),
                TOKEN_VARIABLE: token,
            }
            if rank == 0:
                environment[LISTENER] = str(listener.fileno())
            copies.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=[listener.fileno()] if rank == 0 else [],
                    env=environment,
                    preexec_fn=_follower(os.getpid()),
                )
            )
        listener.close()  # so that nobody listens when rank 0 does not
        return _watch(copies, interrupted)


@contextlib.contextmanager
def _interruptions() -> Iterator[tuple[int, list[int]]]:
    """A descriptor on which something arrives with each signal of `_PASSED_ON`, and those so far.

    What this process ignores (SIGHUP under nohup) it goes on to ignore, and so do its copies.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    came: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        came.append(number)
        with contextlib.suppress(BlockingIOError):
            os.write(write, b"\0")

    before = {
        each: signal.signal(each, handle)
        for each in _PASSED_ON
        if signal.getsignal(each) is not signal.SIG_IGN
    }
    try:
        yield read, came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)


def _follower(launcher: int) -> Callable[[], None]:
    """Returns a function for a copy to run before its command: it ends when the launcher ends."""
    prctl = ctypes.CDLL(None).prctl

    def follow() -> None:
        os.setpgid(0, 0)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # it has ended before that
            os._exit(1)

    return follow


class _Lines:
    """Passes on one output stream of a copy by lines, each prefixed with the copy's rank.

    Args:
        rank: The copy's.
        source: What it writes.
        target: Where that goes.
        came: The signals so far. As soon as there are any, nobody waits for who reads the target.
    """

    def __init__(
        self, rank: int, source: IO[bytes], target: IO[bytes], came: Sequence[int]
    ) -> None:
        self.source = source
        self._prefix = b"[%d] " % rank
        self._target = target
        self._came = came
        self._begun = bytearray()

    def pass_on(self) -> bool:
        """Passes on what has arrived; whether there may be more."""
        part = os.read(self.source.fileno(), _PIECE_BYTES)
        first, *lines = part.split(b"\n")
        self._begun += first
        if lines:
            lines = [bytes(self._begun), *lines]
            self._begun = bytearray(lines.pop())
        if self._begun and (not part or len(self._begun) >= _LONGEST_LINE):
            lines.append(bytes(self._begun))
            self._begun = bytearray()
        self._write(b"".join(self._prefix + line + b"\n" for line in lines))
        return bool(part)

    def _write(self, text: bytes) -> None:
        """Writes to the target; drops the text where that would keep a signal waiting."""
        descriptor = self._target.fileno()
        ready = select.poll()
        ready.register(descriptor, select.POLLOUT)
        rest = memoryview(text)
        while rest:
            if ready.poll(_LOOK_MILLISECONDS):
                # A pipe that is ready has place for so much.
                rest = rest[os.write(descriptor, rest[: select.PIPE_BUF]) :]
            elif self._came:
                return


class _Running:
    """Copies that have not ended, and how they are made to.

    Attributes:
        status: Exit status: that of the first failed copy, or of a signal to this process.
        copies: By rank.
    """

    def __init__(self, copies: Sequence[subprocess.Popen[bytes]]) -> None:
        self.status = 0
        self.copies = dict(enumerate(copies))
        self._asks_at: float | None = None
        self._kills_at: float | None = None

    def left(self) -> float | None:
        """Seconds until something has to be done; None if nothing has."""
        times = [each for each in (self._asks_at, self._kills_at) if each is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def look(self) -> None:
        """Ends copies whose time is over."""
        now = time.monotonic()
        if self._asks_at is not None and now >= self._asks_at:
            self._ask(signal.SIGTERM)
        elif self._kills_at is not None and now >= self._kills_at:
            self._kills_at = None
            _say(f"not ended {_END_LIMIT:g} s after they were asked to: {self._named()}; SIGKILL")
            _end(list(self.copies.values()), signal.SIGKILL)

    def interrupted(self, number: int) -> None:
        """Passes on a signal that has come to this process."""
        self.status = self.status or _SIGNALED + number
        _say(f"{_signal_name(number)} has come, and is sent to {self._named()}")
        self._ask(number)

    def ended(self, rank: int) -> None:
        """Notes that a copy has ended; if it has failed, all others are to end."""
        copy = self.copies.pop(rank)
        found = copy.wait()
        is_first = bool(found) and not self.status
        if found < 0 and self._kills_at is None:
            _say(f"rank {rank} (pid {copy.pid}) was ended by {_signal_name(-found)}")
        if is_first:
            self.status = found if found > 0 else _SIGNALED - found
            # Rank 0 may be about to say what it lacks without this copy.
            self._asks_at = time.monotonic() + _OWN_ERROR_LIMIT
        if self._asks_at is not None and 0 not in self.copies:
            self._ask(signal.SIGTERM)

    def _ask(self, number: int) -> None:
        self._asks_at = None
        self._kills_at = self._kills_at or time.monotonic() + _END_LIMIT
        _end(list(self.copies.values()), number)

    def _named(self) -> str:
        named = [f"rank {rank} (pid {copy.pid})" for rank, copy in self.copies.items()]
        more = len(named) - _NAMED
        return ", ".join(named[:_NAMED]) + (f" and {more} others" if more > 0 else "")


def _say(line: str) -> None:
    if sys.stderr is not None:  # closed at the start
        print(f"distir launch: {line}", file=sys.stderr, flush=True)


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:  # of those for real time, which have none
        return f"signal {number}"
    return f"{name}, which the system sends where memory runs out" if number == 9 else name


def _watch(
    copies: Sequence[subprocess.Popen[bytes]], interrupted: tuple[int, Sequence[int]]
) -> int:
    descriptor, came = interrupted
    running = _Running(copies)
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        selector.register(descriptor, selectors.EVENT_READ)
        nowhere = stack.enter_context(Path(os.devnull).open("wb"))
        for rank, copy in enumerate(copies):
            ended = os.pidfd_open(copy.pid)
            stack.callback(os.close, ended)
            selector.register(ended, selectors.EVENT_READ, rank)
            for source, target in ((copy.stdout, sys.stdout), (copy.stderr, sys.stderr)):
                assert source is not None
                stack.enter_context(source)
                # Python has no stream where the descriptor was closed at its start.
                lines = _Lines(rank, source, nowhere if target is None else target.buffer, came)
                selector.register(source, selectors.EVENT_READ, lines)
        while running.copies:
            ready = selector.select(running.left())
            running.look()
            for key, _ in ready:
                if isinstance(key.data, _Lines):
                    if not key.data.pass_on():
                        selector.unregister(key.fileobj)
                elif key.data is None:
                    os.read(descriptor, 1)
                    running.interrupted(came[-1])
                else:
                    selector.unregister(key.fileobj)
                    running.ended(key.data)
        _pass_on_the_rest(selector)
    return running.status


def _pass_on_the_rest(selector: selectors.BaseSelector) -> None:
    """Passes on the remaining output of copies that have ended, for a limited time.

    Processes that the copies have started may keep the outputs open for long.
    """
    deadline = time.monotonic() + _LAST_OUTPUT_LIMIT
    while any(isinstance(key.data, _Lines) for key in selector.get_map().values()):
        ready = selector.select(max(0.0, deadline - time.monotonic()))
        if not ready:
            return
        for key, _ in ready:
            if not isinstance(key.data, _Lines) or not key.data.pass_on():
                selector.unregister(key.fileobj)


def _end(copies: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    """Sends a signal to copies that have not ended, and to what they have started."""
    for copy in copies:
        if copy.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(copy.pid, number)
