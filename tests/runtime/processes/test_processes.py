"""Workers that are processes: equal bits, what they are told, how they end, what they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import tvm
import tvm_ffi
from tests.abi.plans import layout, transfer_plan
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx
from distir_ext.demo.forum import megatron_case
from distir_ext.session.session import Session, WorkerError
from distir_ext.workers.processes import ProcessWorkers

GROUPS = [[0, 2, 1]]
TEXT = json.dumps(GROUPS)


def float_bits(rng, shape):
    """Values of very different size, so that another order of a sum gives other bits."""
    return (rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 4, shape)).astype("float32")


@pytest.mark.parametrize("size", [3, 4095, 70_000, 700_001])
def test_large_and_small_messages_have_the_bits_of_threads(runner_on, size):
    """One message, a part of one, several, and parts that do not divide; group of three."""
    rng = np.random.default_rng(size)
    flat = [float_bits(rng, (size,)) for _ in range(3)]
    wide = [float_bits(rng, (3, size // 3, 3)) for _ in range(3)]
    cases = [
        ("all_reduce", flat, (TEXT, "sum"), (size,)),
        ("all_gather", flat, (TEXT, 0), (3 * size,)),
        ("all_gather", wide, (TEXT, 1), (3, size // 3 * 3, 3)),
        ("reduce_scatter", wide, (TEXT, 0, "sum"), (1, size // 3, 3)),
        ("reduce_scatter", wide, (TEXT, 2, "sum"), (3, size // 3, 1)),
        ("all_to_all", wide, (TEXT, 0, 2), (1, size // 3, 9)),
    ]
    for name, xs, args, shape in cases:
        threads, processes = (
            runner_on(kind, 3)(name, xs, args, [shape] * 3) for kind in ("threads", "processes")
        )
        for one, other in zip(threads, processes, strict=True):
            np.testing.assert_array_equal(one.view("uint32"), other.view("uint32"))


def test_transfer_of_many_chunks_while_both_send_first(shared_workers):
    """Both workers send 40 MB before either receives."""
    workers = shared_workers("processes", 2)
    plan = transfer_plan(layout([0, 1], [2]), layout([1, 0], [2]), channel=5)
    x = [np.random.default_rng(rank).standard_normal(5_000_000) for rank in range(2)]
    arguments = [
        ["transfer", tvm.runtime.tensor(each), plan, tvm_ffi.Shape(each.shape), "float64"]
        for each in x
    ]
    idle = workers.num_workers - 2
    functions = ["distir.test.run_builtin"] * 2 + [None] * idle
    outs = workers.run("swap", functions, arguments + [[]] * idle)
    np.testing.assert_array_equal(outs[0].numpy(), x[1])
    np.testing.assert_array_equal(outs[1].numpy(), x[0])


def test_partitioned_program_has_the_bits_of_threads(process_session):
    case = megatron_case()
    exe = dx.build(case.annotate(case.module))
    inputs = case.inputs.values()
    with Session(4) as threads:
        expected = threads.load(exe, case.weights)[case.function](*inputs).numpy()
    model = process_session.load(exe, case.weights)
    for _ in range(3):
        actual = model[case.function](*inputs).numpy()
        np.testing.assert_array_equal(actual.view("uint32"), expected.view("uint32"))


def test_results_stay_with_the_processes(process_session, tmp_path):
    """They are passed on without being fetched; large ones are fetched when they are read."""
    rows = [np.random.default_rng(0).standard_normal((256, 128)).astype("float32")]

    @I.ir_module
    class Twice:
        @R.function
        def main(x: R.Tensor((256, 128), "float32"), w: R.Tensor((256, 128), "float32")):
            R.func_attr({"num_input": 1})
            y = R.add(x, w)
            return y

    mesh = dx.Mesh((2, 2), ("a", "b"))
    exe = dx.build(dx.annotate(Twice, mesh, {"x": ("a", "b"), "w": ("a", "b")}))
    model = process_session.load(exe, rows)
    x = np.ones((256, 128), "float32")
    once = model["main"](x)
    twice = model["main"](once)
    assert [shard.value for shard in twice.shards.values()] == [None] * 4
    np.testing.assert_array_equal(twice.numpy(), x + rows[0] + rows[0])
    model.save_shards(tmp_path / "shards")
    again = process_session.load(exe, tmp_path / "shards")
    np.testing.assert_array_equal(again["main"](x).numpy(), x + rows[0])


def test_library_that_was_loaded_before_must_be_named(process_session, tmp_path):
    case = megatron_case()
    dx.build(case.annotate(case.module)).export_library(tmp_path / "library.so")
    loaded = tvm.runtime.load_module(str(tmp_path / "library.so"))
    with pytest.raises(TypeError, match="pass the library's path"):
        process_session.load(loaded, case.weights)
    assert not process_session.closed


def test_what_users_get_wrong_leaves_the_session_open(process_session):
    with pytest.raises(TypeError, match="expected an executable"):
        process_session.load(3)
    with pytest.raises(TypeError, match="cannot be sent between processes"):
        process_session._workers.run("test", ["x"] * 4, [[object()]] * 4)
    with pytest.raises(TypeError, match="run global functions by name"):
        process_session._workers.run("test", [tvm_ffi.convert(print)] * 4, [[]] * 4)
    assert not process_session.closed
    assert process_session._workers.run("test", [None] * 4, [[]] * 4) == [None] * 4


def test_held_objects_are_let_go(process_session):
    """Weights that nobody refers to any more do not stay with the workers."""
    workers = process_session._workers

    def held_bytes():
        return sum(psutil.Process(pid).memory_info().rss for pid in pids_of(workers))

    # So large that its memory goes back to the system when it is let go.
    array = tvm.runtime.tensor(np.zeros(10_000_000, "float32"))
    for _ in range(5):
        workers.hold("test", [[array], [], [], []])  # a sanitizer keeps what it notes of these
    before = held_bytes()
    for _ in range(5):
        workers.hold("test", [[array], [], [], []])
    assert held_bytes() < before + 100e6
    held = [workers.hold("test", [[array], [], [], []]) for _ in range(10)]
    assert held_bytes() > before + 150e6
    del held


def test_processes_are_started_fresh(shared_workers):
    workers = shared_workers("processes", 2)
    found = workers.run("test", ["distir.test.process"] * 4, [[]] * 4)
    pids = [each[0] for each in found]
    assert len({*pids, os.getpid()}) == 5
    assert {each[1] for each in found} == {os.getpid()}
    # Ctrl-C does not reach them, and yielding does.
    assert {each[2] for each in found}.isdisjoint({os.getpgid(0)})
    assert {each[3] for each in found} == {os.getsid(0)}


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"ccl": "gloo"}, ValueError, "ccl='gloo' is not supported"),
        ({"imports": ["no_such_module"]}, RuntimeError, "(?s)worker 0 .*no_such_module"),
    ],
)
def test_sessions_that_do_not_start(arguments, error, match):
    with pytest.raises(error, match=match):
        Session(1, workers="processes", **arguments)


def start(count=2, timeout=None):
    return ProcessWorkers(range(count), "cpu", timeout, ["worker_functions"])


X = tvm.runtime.tensor(np.ones(4, "float32"))
REDUCE = ["all_reduce", X, "[[0,1]]", "sum", tvm_ffi.Shape((4,)), "float32"]


def check_gone(workers, pids):
    """The processes are reaped, and the session says that it is closed."""
    assert not workers.is_open
    assert [each.returncode is None for each in processes_of(workers)] == [False] * len(pids)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def processes_of(workers):
    (host,) = workers._started.hosts
    return [host.processes[rank] for rank in range(workers.num_workers)]


def pids_of(workers):
    return [each.pid for each in processes_of(workers)]


def fail_by(workers, how):
    """A step in which worker 1 fails while worker 0 waits for it; the error."""
    function, arguments = {
        "raise": ("distir.test.sleep_and_fail", [0.05]),
        "kill": ("distir.test.kill_after", [0.05, int(signal.SIGKILL)]),
        "exit": ("distir.test.exit_with", [3]),
        "stop": ("distir.test.kill_after", [0.05, int(signal.SIGSTOP)]),
        "stall": ("distir.test.sleep", [60.0]),
        "mismatch": ("distir.test.run_builtin", [*REDUCE[:3], "max", *REDUCE[4:]]),
        "skip": ("distir.runtime.keep", []),
    }[how]
    workers.timeout = 0.7 if how in ("stop", "stall") else 30.0
    pids = pids_of(workers)
    begin = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        workers.run("step", ["distir.test.run_builtin", function], [REDUCE, arguments])
    assert time.monotonic() - begin < 5
    check_gone(workers, pids)
    return caught.value


HOW = {
    "raise": ("ValueError", "boom"),
    "kill": ("ProcessLostError", "was ended by SIGKILL"),
    "exit": ("ProcessLostError", "has ended with exit status 3"),
    "stop": ("TimeoutError", "timeout of 0.7 seconds"),
    "stall": ("TimeoutError", "timeout of 0.7 seconds"),
    "mismatch": ("ValueError", "disagree"),
    "skip": ("ValueError", "can never complete"),
}


@pytest.mark.parametrize("how", HOW)
def test_failure_ends_the_step_on_all_workers(how):
    kind, match = HOW[how]
    error = fail_by(start(), how)
    assert error.kind == kind
    assert match in str(error)
    assert error.function == "step"
    if how not in ("mismatch", "skip"):
        assert (error.worker, error.device) == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raise", "kill", "stop", "stall"])
def test_failures_a_hundred_times(how):
    kind, match = HOW[how]
    for _ in range(100):
        error = fail_by(start(), how)
        assert (error.kind, error.worker) == (kind, 1)
        assert match in str(error)


def test_killed_worker_is_named_with_its_operator(signature, tensor_type, function_type):
    """Also between steps: the next one finds out."""
    rows = tensor_type([4, 4], "float32", (2,), [0])
    text = signature(main=function_type({"x": rows}, rows, [("main", [0, 1], [0], [0])]))

    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((2, 4), "float32")):
            y = R.add(x, x)
            z = R.call_dps_packed(
                "distir.test.kill_self", (y, y), out_ty=R.Tensor((2, 4), "float32")
            )
            return z

        @R.function
        def distir_signature() -> R.Object:
            return R.str(text)

    session = Session(2, workers="processes", imports="worker_functions")
    main = session.load(tvm.compile(Module, "llvm"))["main"]
    with pytest.raises(WorkerError, match="was ended by SIGKILL") as caught:
        main(np.ones((4, 4), "float32"))
    assert caught.value.operator == "distir.test.kill_self"
    assert session.closed
    with pytest.raises(RuntimeError, match=r"the session is closed: worker . .*SIGKILL"):
        main(np.ones((4, 4), "float32"))
    workers = start(1)
    os.kill(pids_of(workers)[0], signal.SIGKILL)
    with pytest.raises(WorkerError, match="was ended by SIGKILL"):
        workers.run("next", [None], [[]])


CONTROLLER = """
import os, signal, sys, threading, time
sys.path.insert(0, {folder!r})
import worker_functions
from distir_ext.workers.processes import ProcessWorkers
workers = ProcessWorkers(range(2), "cpu", None, ["worker_functions"])
print(*[each.pid for each in workers._started.hosts[0].processes.values()], flush=True)
if {busy}:
    threading.Thread(
        target=workers.run, args=("s", ["distir.test.sleep"] * 2, [[60.0]] * 2), daemon=True
    ).start()
    time.sleep(0.3)
{end}
"""


@pytest.mark.large
@pytest.mark.parametrize(
    ("end", "busy"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", True),
        ("pass", False),
        ("raise KeyboardInterrupt", False),
    ],
    ids=["killed", "exits", "interrupted"],
)
def test_workers_end_with_their_controller(end, busy):
    folder = str(Path(__file__).parents[1] / "on_workers")
    code = CONTROLLER.format(folder=folder, busy=busy, end=end)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def shared_files():
    """Shared memory that has a name. (Other tests have folders there.)"""
    folder = Path("/dev/shm")
    return sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def check_leaks(sessions, collectives):
    """Sessions leave no descriptors, processes and files; collectives leave no memory."""
    start(1).close()
    files, descriptors, threads = shared_files(), open_descriptors(), threading.active_count()
    for _ in range(sessions):
        workers = start(2)
        pids = pids_of(workers)
        assert shared_files() == files  # memory without a name
        workers.close()
        check_gone(workers, pids)
    assert (open_descriptors(), threading.active_count()) == (descriptors, threads)
    assert shared_files() == files
    workers = start(2)
    array = tvm.runtime.tensor(np.ones(70_000, "float32"))
    big = ["all_reduce", array, "[[0,1]]", "sum", tvm_ffi.Shape((70_000,)), "float32"]
    batch = [REDUCE, big] * 50

    def rounds(count):
        for _ in range(count // len(batch)):
            workers.run("test", ["distir.test.run_builtins"] * 2, [[batch]] * 2)
        return sum(psutil.Process(pid).memory_info().rss for pid in pids_of(workers))

    before = rounds(200)
    assert rounds(collectives) < before + 40e6
    workers.close()


def test_without_nccl(monkeypatch):
    monkeypatch.setenv("DISTIR_EXT_NCCL_LIBRARY", "/no/such/library.so")
    monkeypatch.setattr(subprocess, "Popen", None)  # before a worker is started
    with pytest.raises(RuntimeError, match=r"^NCCL cannot be loaded; install it with"):
        Session(1, ccl="nccl", workers="processes")


@pytest.mark.large
def test_nothing_is_left_behind():
    check_leaks(sessions=2, collectives=1000)


@pytest.mark.slow
def test_nothing_is_left_behind_by_very_many():
    check_leaks(sessions=1000, collectives=100_000)
