"""Shows progress bars on terminals and in notebooks once an action takes long."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from distir_ext.text.printable import shown

# What is shorter shows nothing, in seconds.
PATIENCE = 1.0


# Called with the number of bytes that were loaded since the last call.
Advance = Callable[[int], None]


def bar_console() -> Console:
    """The terminal of the standard error, on which nothing is shown if ``CI`` is set."""
    return Console(stderr=True, quiet=bool(os.environ.get("CI")))


def shows_bars(console: Console) -> bool:
    """Returns whether a console shows progress bars: it is a terminal or notebook, and not quiet.

    In a notebook without ipywidgets rich shows no bar, but a warning.
    """
    has_widgets = importlib.util.find_spec("ipywidgets") is not None
    shows = has_widgets if console.is_jupyter else console.is_terminal
    return not console.quiet and shows


@contextmanager
def loading_bar(num_bytes: int, console: Console | None = None) -> Iterator[Advance]:
    """A progress bar, on a terminal or in a notebook, once loading has taken :data:`PATIENCE`.

    Args:
        num_bytes: Number of bytes to load.
        console: Console to show it on; the terminal of the standard error by default, unless the
            environment variable ``CI`` is set.
    """
    if console is None:
        console = bar_console()
    begin = time.monotonic()
    done = 0
    task = None
    with ExitStack() as stack:
        progress = Progress(
            TextColumn("loading weights"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not shows_bars(console),
        )

        def advance(num_bytes_more: int) -> None:
            nonlocal done, task
            done += num_bytes_more
            if task is None and time.monotonic() - begin >= PATIENCE:
                stack.enter_context(progress)
                task = progress.add_task("", total=num_bytes)
            if task is not None:
                progress.update(task, completed=done)

        yield advance


@contextmanager
def counting_bar(
    what: str, total: int, console: Console | None = None
) -> Iterator[Callable[[], None]]:
    """A progress bar, on a terminal or in a notebook, once it has taken :data:`PATIENCE`.

    Args:
        what: Description of the work.
        total: Number of times that the work is done.
        console: As for :func:`loading_bar`.

    Yields:
        What is called when it was done once more.
    """
    console = console or bar_console()
    if not shows_bars(console):
        yield lambda: None
        return
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
    )
    task = progress.add_task(shown(what), total=total)
    patience = threading.Timer(PATIENCE, progress.start)  # while nothing is done
    patience.daemon = True
    patience.start()
    try:
        yield lambda: progress.advance(task)
    finally:
        patience.cancel()
        patience.join()
        if progress.live.is_started:
            progress.stop()
