"""A session belongs to the process that opened it; in a fork of that it cannot be used."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx


@I.ir_module
class Double:
    @R.function
    def main(x: R.Tensor((4,), "float32"), w: R.Tensor((4,), "float32")):
        R.func_attr({"num_input": 1})
        y = R.add(R.multiply(x, R.const(2.0, "float32")), w)
        return y


FILES = Path("/proc/self/fd")
X = np.arange(4, dtype="float32")
W = np.ones(4, dtype="float32")


@pytest.fixture(scope="module")
def executable():
    mesh = dx.Mesh((2,), ("a",))
    return dx.build(dx.annotate(Double, mesh, {"x": ("a",), "w": ("a",)}))


def in_fork(action):
    """The text that an action returns in a fork of this process, which must end."""
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        try:
            text = action()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(theirs, text.encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as stream:
        killer = threading.Timer(20, os.kill, (child, 9))
        killer.start()
        text = stream.read()
        killer.cancel()
    os.waitpid(child, 0)
    return text


def message_of(action):
    try:
        action()
    except RuntimeError as error:
        return str(error)
    return "nothing was raised"


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_every_call_in_a_fork_says_whose_session_it_is(executable, kind, tmp_path):
    with dx.Session(2, workers=kind) as session:
        model = session.load(executable, [W])
        result = model["main"](X)
        pipeline = model["main"].pipeline(1)
        calls = [
            lambda: session.load(executable, [W]),
            lambda: model["main"](X),
            lambda: model["main"](result),
            lambda: pipeline(X),
            lambda: model.save_shards(tmp_path),
        ]

        def use():
            messages = {message_of(call) for call in calls}
            assert len(messages) == 1
            assert session.closed
            session.close()
            return messages.pop()

        def end():
            nonlocal session, model, result, pipeline
            session = model = result = pipeline = None
            calls.clear()
            gc.collect()
            return "ended"

        said = in_fork(use)
        assert f"the session belongs to process {os.getpid()}" in said
        assert in_fork(end) == "ended"
        assert not session.closed
        np.testing.assert_array_equal(model["main"](result).numpy(), 2 * (2 * X + W) + W)


def test_a_fork_has_a_session_of_its_own(executable):
    def use():
        with dx.Session(2, workers="processes") as other:
            return str(other.load(executable, [W])["main"](X).numpy().tolist())

    with dx.Session(2) as session:
        assert in_fork(use) == str((2 * X + W).tolist())
        assert not session.closed


@pytest.mark.large
def test_a_fork_while_a_call_runs(fresh_runner):
    """Locks that a call holds are held for ever in the fork."""
    runner = fresh_runner(2)
    functions = ["distir.test.sleep"] * 2
    call = threading.Thread(target=runner.workers.run, args=("step", functions, [[2.0]] * 2))
    call.start()
    time.sleep(0.5)

    def use():
        return message_of(lambda: runner.workers.run("step", [None] * 2, [[]] * 2))

    assert "belongs to process" in in_fork(use)
    call.join()
    assert list(runner.workers.run("step", [None] * 2, [[]] * 2)) == [None] * 2


def mapped():
    """The memory of worker processes that this process has mapped, by inode."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return {int(line.split()[4]) for line in lines if "memfd:distir" in line}


def memories():
    """The memory that this process has open to share, by inode."""
    found = set()
    for each in FILES.iterdir():
        with contextlib.suppress(OSError):  # the folder itself, which is closed again
            if "memfd:distir" in str(each.readlink()):
                found.add(each.stat().st_ino)
    return found


def test_a_fork_keeps_nothing_of_worker_processes():
    """Neither memory nor connections, which other hosts would wait for."""
    others = memories() | mapped()  # of sessions of other tests, which nobody has closed yet
    with dx.Session(2, workers="processes") as session:
        streams = [each.stream for each in session._workers._started.branches]

        def look():
            found = (bool(each() - others) for each in (mapped, memories))
            return str((*found, [stream.fileno() for stream in streams]))

        assert (mapped() | memories()) - others
        assert in_fork(look) == str((False, False, [-1, -1]))


@pytest.mark.large
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_the_end_of_a_fork(kind):
    """Whatever runs when an interpreter ends runs in the fork, too."""
    code = f"""
import multiprocessing, os, sys, warnings
warnings.simplefilter("ignore")
import distir_ext as dx

session = dx.Session(2, workers={kind!r})
child = os.fork()
if child == 0:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
process = multiprocessing.get_context("fork").Process(target=session.close)
process.start()
process.join()
assert process.exitcode == 0
print(session._workers.run("step", ["distir.runtime.backends"] * 2, [[]] * 2)[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "cpu" in done.stdout
