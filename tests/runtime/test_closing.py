"""Sessions that are closed, restarted and measured while other threads use them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi
from safetensors.numpy import save_file
from tests.stages.programs import chain, chain_result, chain_values

import distir_ext as dx

WIDTHS = [8, 12, 8]
MESH = dx.Mesh(tp=2)
PLAN = {"w0": (None, "tp"), "w1": ("tp", None)}
X, WEIGHTS = chain_values(WIDTHS, rows=6)
KINDS = ("threads", "processes")


@pytest.fixture(scope="module")
def exe():
    return dx.build(dx.annotate(chain(WIDTHS, rows="n"), MESH, PLAN))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file(WEIGHTS, path)
    return path


def check(function):
    np.testing.assert_allclose(function(X).numpy(), chain_result(X, WEIGHTS), rtol=1e-4, atol=1e-5)


def num_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def children():
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return set(path.read_text().split())


class Users:
    """Threads that use a session until that fails, or for as long as they are told to."""

    def __init__(self, *uses):
        self.ended = []
        self.done = [0] * len(uses)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._use, args=each, daemon=True) for each in enumerate(uses)
        ]
        for thread in self._threads:
            thread.start()
        while not all(self.done) and not self.ended:
            time.sleep(0.001)

    def _use(self, number, use):
        try:
            while not self._stop.is_set():
                use()
                self.done[number] += 1
        except Exception as error:
            self.ended.append(error)

    def stop(self):
        self._stop.set()
        return self.join()

    def join(self):
        """Joins all threads within a time limit; returns the errors that ended them."""
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()
        return self.ended


@pytest.mark.parametrize("kind", KINDS)
def test_closing_while_other_threads_use_it(kind, exe, file):
    """A call, a pipeline, a load, a profile, counts, each in a thread of its own."""
    before = children(), num_descriptors()
    session = dx.Session(MESH, workers=kind, timeout=30)
    function = session.load(exe, params=file)["main"]
    pipeline = function.pipeline(3)
    users = Users(
        lambda: check(function),
        lambda: check(pipeline),
        lambda: check(session.load(exe, params=file)),
        lambda: function.profile(X, repeat=1, warmup=0),
        session.statistics,
    )
    begin = time.monotonic()
    closers = [threading.Thread(target=session.close) for _ in range(2)]
    for thread in closers:
        thread.start()
    session.close()
    assert session.closed
    assert children() == before[0]
    for thread in closers:
        thread.join()
    ended = users.join()
    assert time.monotonic() - begin < 15
    assert {(type(each), str(each)) for each in ended} == {(RuntimeError, "the session is closed")}
    assert len(ended) == 5
    assert num_descriptors() <= before[1] + 1


def test_closing_while_a_step_takes_long():
    """Threads are left to what they run, processes are ended."""
    for kind in KINDS:
        session = dx.Session(2, workers=kind, imports=["worker_functions"], timeout=60)
        ended = []

        seconds = 30.0 if kind == "processes" else 8.0

        def run(workers=session._workers, ended=ended, seconds=seconds):
            with pytest.raises(RuntimeError, match=r"^the session is closed$"):
                workers.run("long", ["distir.test.sleep"] * 2, [[seconds]] * 2)
            ended.append(True)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.3)
        begin = time.monotonic()
        session.close()
        thread.join()
        assert ended
        assert time.monotonic() - begin < 4


def test_restarting_while_other_threads_use_it(exe, file):
    """Two threads restart, another one measures, others call: no error but those of closed ones."""
    for kind in KINDS:
        with dx.Session(MESH, workers=kind) as session:
            function = session.load(exe, params=file)["main"]

            def patiently(use):
                def tried():
                    try:
                        use()
                    except RuntimeError as error:
                        if str(error) != "the session is closed: it was restarted":
                            raise
                        time.sleep(0.01)

                return tried

            users = Users(
                patiently(lambda function=function: check(function)),
                patiently(lambda function=function: check(function.pipeline(2))),
                patiently(lambda function=function: function.profile(X, repeat=1, warmup=0)),
            )
            restarts = [threading.Thread(target=session.restart) for _ in range(2)]
            for thread in restarts:
                thread.start()
            for thread in restarts:
                thread.join(60)
                assert not thread.is_alive()
            assert users.stop() == []
            check(function)


def test_closing_while_it_restarts(exe, file):
    """From another thread: the restart fails, and leaves nothing."""
    for kind, delay in (("threads", 0.0), ("processes", 0.0), ("processes", 0.4)):
        before = children()
        session = dx.Session(MESH, workers=kind)
        model = session.load(exe, params=file)
        errors = []

        def restart(session=session, errors=errors):
            try:
                while True:
                    session.restart()
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=restart)
        thread.start()
        while not session._is_restarting:
            time.sleep(0.001)
        time.sleep(delay)
        session.close()
        thread.join(20)
        assert not thread.is_alive()
        assert errors == ["the session is closed"]
        assert session.closed
        with pytest.raises(RuntimeError, match="the session is closed"):
            model(X)
        assert children() == before


@pytest.mark.parametrize("kind", KINDS)
def test_two_threads_measure(kind, exe, file):
    """Calls of others, and their measurements, are in none of them."""
    with dx.Session(MESH, workers=kind) as session:
        function = session.load(exe, params=file)["main"]
        alone = function.profile(X, repeat=2)
        found = []
        users = Users(
            *[lambda: found.append(function.profile(X, repeat=2, warmup=0))] * 2,
            lambda: check(function),
        )
        assert users.stop() == []
        names = [(each.device, each.repetition, each.name) for each in alone.events]
        assert len(found) >= 2
        for each in found:
            assert [(e.device, e.repetition, e.name) for e in each.events] == names


SCRIPT = """
import gc, os, signal, sys, time
import distir_ext as dx
sys.path.insert(0, {folder!r})
import worker_functions

kind = sys.argv[1]

class Closes:
    def __init__(self, session):
        self.session, self.itself = session, self
    def __del__(self):
        self.session.close()

def call(session):
    try:
        session._workers.run("again", [None] * 2, [[]] * 2)
    except RuntimeError as error:
        print("in it:", str(error)[:53])

def close(session):
    session.close()

def forget(session):
    Closes(session)
    gc.collect()

def close_and_call(session):
    session.close()
    call(session)

def call_and_close(session):
    call(session)
    session.close()

def leave(session):
    session.close()
    sys.exit(3)

for case in (close, forget, close_and_call, call_and_close, leave):
    session = dx.Session(2, workers=kind, imports=["worker_functions"])
    signal.signal(signal.SIGALRM, lambda *ignored: case(session))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        session._workers.run("long", ["distir.test.sleep"] * 2, [[1.0]] * 2)
        session._workers.run("long", ["distir.test.sleep"] * 2, [[1.0]] * 2)
    except RuntimeError as error:
        print(error)
    children = open(f"/proc/self/task/{{os.getpid()}}/children").read()
    print("left:", children.split(), flush=True)
"""


@pytest.mark.large
def test_closing_in_a_signal_handler_and_a_finalizer():
    """In the middle of a step of the same thread, which is the one that would end it."""
    folder = str(Path(__file__).parent / "on_workers")
    code = SCRIPT.format(folder=folder)
    ends = ["the session is closed", "left: []"]
    in_a_step = "in it: the session is in the middle of a step of this thread"
    expected = [*ends, *ends, "in it: the session is closed", *ends, in_a_step, *ends]
    for kind in KINDS:
        command = [sys.executable, "-c", code, kind]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.stdout.splitlines() == expected, (kind, done.stderr)
        assert done.returncode == 3, (kind, done.stderr)


def test_native_functions_refuse_none():
    """Of their objects, which Python calls by name: an error, where the process would end."""
    code = """
import tvm_ffi, distir_ext
from tvm_ffi.registry import list_global_func_names
names = [each for each in list_global_func_names()
         if each.startswith("distir.runtime.") and not each.endswith((
             ".tell_exit_status", ".exit_with_controller"))]
for name in names:
    function = tvm_ffi.get_global_func(name)
    for count in range(1, 13):
        print(name, count, flush=True)
        try:
            function(*[None] * count)
        except Exception as error:
            continue
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("done\n"), done.stdout[-100:] + done.stderr[-1000:]
    assert tvm_ffi.get_global_func("distir.runtime.tls_why", allow_missing=True) is not None
    with pytest.raises(TypeError, match="TlsStream"):
        tvm_ffi.get_global_func("distir.runtime.tls_why")(None)
    with pytest.raises(TypeError, match="ProcessBoard"):
        tvm_ffi.get_global_func("distir.runtime.process_board_abort")(None)
