"""Shows a progress bar while a session's processes take long to start."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from rich.console import Console

from distir_ext.text.progress import counting_bar


def start_bar(
    num_workers: int, console: Console | None = None
) -> AbstractContextManager[Callable[[], None]]:
    """A progress bar, as :func:`counting_bar`.

    Args:
        num_workers: Number of workers that are started.
        console: As for :func:`loading_bar`.

    Returns:
        Gives what is called when a worker has started.
    """
    return counting_bar("starting worker processes", num_workers, console)
