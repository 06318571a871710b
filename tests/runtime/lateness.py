"""Delay between an interrupt or a timeout and the end of a session's step."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from distir_ext.workers.base import WorkerError

SANITIZED = "san.so" in os.environ.get("LD_PRELOAD", "")

# In seconds. What a sanitizer watches is slower; a defect is as late as workers run.
IN_TIME = 1.0 if SANITIZED else 0.3


def check_in_time(lateness):
    """One of three tries is in time: a busy machine is late now and then, a defect always."""
    seen = []
    while len(seen) < 3:
        seen.append(lateness())
        if seen[-1] < IN_TIME:
            return
    raise AssertionError(f"late by {seen} seconds")


def interrupted_late(workers, functions, arguments):
    """Delay between Ctrl-C and the end of a step of these workers."""
    interrupted = []

    def interrupt():
        time.sleep(0.3)
        interrupted.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    # A process started in the background of a shell ignores the signal.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            workers.run("step", functions, arguments)
        late = time.monotonic() - interrupted[0]
        thread.join()
    finally:
        signal.signal(signal.SIGINT, handler)
    with pytest.raises(RuntimeError, match='"step" was interrupted by KeyboardInterrupt'):
        workers.check_open()
    return late


def reported_late(workers, functions, arguments):
    """Delay between the workers' timeout and the end of a longer step."""
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=f"timeout of {workers.timeout:g} second"):
        workers.run("step", functions, arguments)
    return time.monotonic() - begin - workers.timeout
