"""Processor time of this process, which other work on a machine changes least."""

from __future__ import annotations

import time
from collections.abc import Callable


def seconds(run: Callable[[], object], repeats: int) -> float:
    """The best of several runs."""
    taken = []
    for _ in range(repeats):
        begin = time.process_time()
        run()
        taken.append(time.process_time() - begin)
    return min(taken)
