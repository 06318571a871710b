"""A bar for sessions whose processes take long to start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from distir_ext._params.progress import PATIENCE, bar_console, shows_bars


@contextmanager
def start_bar(num_workers: int, console: Console | None = None) -> Iterator[Callable[[], None]]:
    """A progress bar, on a terminal or in a notebook, once starting has taken :data:`PATIENCE`.

    Args:
        num_workers: How many are started.
        console: As for :func:`loading_bar`.

    Yields:
        What is called when a worker has started.
    """
    console = console or bar_console()
    if not shows_bars(console):
        yield lambda: None
        return
    progress = Progress(
        TextColumn("starting worker processes"),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
    )
    task = progress.add_task("", total=num_workers)
    patience = threading.Timer(PATIENCE, progress.start)  # while nothing is heard of the workers
    patience.daemon = True
    patience.start()
    try:
        yield lambda: progress.advance(task)
    finally:
        patience.cancel()
        patience.join()
        if progress.live.is_started:
            progress.stop()
