"""Opening and closing of sessions: threads end, sessions are independent, disco is loaded."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi

from distir_ext.session.session import Session, WorkerError
from distir_ext.workers.threads import ThreadWorkers, load_disco


def num_threads():
    return len(list(Path("/proc/self/task").iterdir()))


def threads_return_to(before):
    """True if no more threads exist than before; waits, as a joined one may still be listed."""
    end = time.monotonic() + 5
    while num_threads() > before and time.monotonic() < end:
        time.sleep(0.01)
    return num_threads() <= before


def all_reduce(workers, x):
    """The sum over all workers of x + rank, checked on each of them."""
    count = workers.num_workers
    groups = f"[{list(workers.device_ids)}]"
    xs = [tvm.runtime.tensor(x + rank) for rank in range(count)]
    outs = [tvm.runtime.empty(x.shape, str(x.dtype)) for _ in range(count)]
    function = tvm_ffi.get_global_func("distir.runtime.all_reduce")
    arguments = [[xs[rank], groups, "sum", outs[rank]] for rank in range(count)]
    workers.run("all_reduce", [function] * count, arguments)
    expected = count * x + sum(range(count))
    for out in outs:
        np.testing.assert_array_equal(out.numpy(), expected)


@pytest.mark.large
def test_two_hundred_sessions_leave_no_threads():
    x = np.arange(5, dtype="float32")
    with Session(3) as session:
        all_reduce(session._workers, x)
    before = num_threads()
    for index in range(200):
        with Session(1 + index % 4) as session:
            all_reduce(session._workers, x)
    assert threads_return_to(before)


def test_forgotten_sessions_end_when_collected():
    gc.collect()
    before = num_threads()
    for _ in range(5):
        all_reduce(Session(4)._workers, np.arange(3, dtype="float32"))
    gc.collect()
    assert threads_return_to(before)


def test_failed_sessions_leave_no_threads():
    def fail():
        raise ValueError("boom")

    before = num_threads()
    for _ in range(20):
        session = Session(3)
        with pytest.raises(WorkerError):
            session._workers.run("step", [tvm_ffi.convert(fail), None, None], [[], [], []])
    assert threads_return_to(before)


def test_threads_that_were_left_alone_end_with_what_they_run():
    before = num_threads()
    session = Session(3, timeout=10.0)
    session._workers.timeout = 0.1
    with pytest.raises(WorkerError, match="timeout"):
        session._workers.run("step", [tvm_ffi.convert(time.sleep), None, None], [[0.5], [], []])
    assert num_threads() > before
    assert threads_return_to(before)


def test_sessions_side_by_side():
    """Several sessions with the same device ids, used in turns and from several threads."""
    sessions = [Session(n) for n in (2, 3, 2, 4)]
    x = np.arange(100, dtype="float32")
    failures = []

    def use(session):
        try:
            for _ in range(30):
                all_reduce(session._workers, x)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for session in sessions:
        session.close()


def test_failure_of_one_session_leaves_others_alone():
    def fail():
        raise ValueError("boom")

    x = np.arange(4, dtype="float32")
    with Session(2) as good, Session(2) as bad:
        all_reduce(good._workers, x)
        with pytest.raises(WorkerError):
            bad._workers.run("step", [None, tvm_ffi.convert(fail)], [[], []])
        assert bad.closed
        all_reduce(good._workers, x)
        assert not good.closed


def test_kernels_share_the_cores():
    """Each worker has its share, for its pool of threads and for itself."""
    threads = tvm_ffi.get_global_func("runtime.NumThreads")
    allowed = os.sched_getaffinity(0)

    def affinity():
        return len(os.sched_getaffinity(0))

    for count in (1, 2, 4):
        workers = ThreadWorkers(range(count), "cpu")
        sizes = workers.run("sizes", [threads] * count, [[]] * count)
        share = max(1, len(allowed) // count)
        assert max(sizes) <= share
        assert min(sizes) >= 1
        seen = workers.run("affinity", [tvm_ffi.convert(affinity)] * count, [[]] * count)
        assert list(seen) == [share] * count
        workers.close()


def test_disco_is_mended():
    disco = load_disco()
    assert tvm.runtime.disco is disco
    assert load_disco() is disco
    session = disco.ThreadedSession(num_workers=2)
    assert session.num_workers == 2
    session.shutdown()


def test_process_ends_with_an_open_session():
    code = (
        "import distir_ext\n"
        "from distir_ext.session import Session\n"
        "sessions = [Session(3), Session(2)]\n"
        "print('still here')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "still here\n"
