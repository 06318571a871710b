"""A bar for loads that take long."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

# Shorter loads show nothing, in seconds.
PATIENCE = 1.0


# Called with the number of bytes that were loaded since the last call.
Advance = Callable[[int], None]


@contextmanager
def loading_bar(num_bytes: int, console: Console | None = None) -> Iterator[Advance]:
    """A progress bar, on a terminal or in a notebook, once loading has taken :data:`PATIENCE`.

    Args:
        num_bytes: How much there is to load.
        console: Where to show it; the terminal of the standard error by default, unless the
            environment variable ``CI`` is set.
    """
    if console is None:
        console = Console(stderr=True, quiet=bool(os.environ.get("CI")))
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
            disable=console.quiet or not (console.is_terminal or console.is_jupyter),
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
