"""Converts errors to exit statuses and one line on standard error."""

from __future__ import annotations

import os
import select
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import TextIO

from distir_ext.text.errors.full_tracebacks import are_tracebacks_full
from distir_ext.text.printable import printable, with_short_words

FAILED = 1
USAGE = 2
INTERRUPTED = 130  # 128 and the signal, as shells report it
NOBODY_READS = 141


class UsageError(ValueError):
    """Arguments that are right one by one, but not together."""


def exit_status_of(command: str, run: Callable[[], int]) -> int:
    """Runs a command, and prints an error of its user as one line on standard error.

    Errors of this program itself, such as a failed assertion, are raised with their traceback.

    Args:
        command: Name of the command, with which lines on standard error begin.
        run: Gives the exit status of a command that has not failed.
    """
    try:
        with warnings.catch_warnings():
            for category in (DeprecationWarning, FutureWarning):  # are for who writes libraries
                warnings.simplefilter("ignore", category)
            warnings.showwarning = _one_line_warnings(command)
            status = run()
        if sys.stdout is not None:  # as it is where the descriptor was closed
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return NOBODY_READS
        if are_tracebacks_full() and sys.stderr is not None:
            whole = printable(with_short_words(traceback.format_exc()))
            print(whole, end="", file=sys.stderr)
        say(command, str(error) or type(error).__name__)
        return USAGE if isinstance(error, UsageError) else FAILED


def say(command: str, message: str) -> None:
    """Prints a line on standard error."""
    if sys.stderr is not None:  # closed at the start
        said = printable(with_short_words(" ".join(message.split())))
        print(f"{command}: {said}", file=sys.stderr)


def _nobody_reads() -> bool:
    """Returns whether standard output is the broken pipe, as in ``distir rules | head``."""
    try:
        output = sys.stdout.fileno()
    except OSError:  # it is no file
        return False
    state = select.poll()
    state.register(output, 0)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in state.poll(0)):
        return False
    # The interpreter flushes what is left at its end, which is to fail no more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return True


def _one_line_warnings(command: str) -> Callable[..., None]:
    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        say(command, f"warning: {message}")

    return show
