"""A worker that fails, or a program that disagrees with the others', ends the step for all."""

from __future__ import annotations

import time

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tests.abi.plans import layout, transfer_plan
from tests.runtime.lateness import check_in_time, interrupted_late, reported_late

from distir_ext.session.session import Session
from distir_ext.workers.base import WorkerError
from distir_ext.workers.threads import ThreadWorkers

X = np.arange(6, dtype="float32").reshape(2, 3)
SHAPE = (2, 3)


def all_reduce(groups="[[0,1,2,3]]", x=X, kind="sum"):
    return ("all_reduce", (x, groups, kind), x.shape)


NOTHING = ("keep", (), None)


def fails(runner, calls, match):
    """The error of a step, which must come within seconds and close the session."""
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=match) as caught:
        runner.calls(calls)
    assert time.monotonic() - begin < 5
    with pytest.raises(RuntimeError, match="the session is closed: worker"):
        runner.calls([NOTHING] * runner.workers.num_workers)
    return caught.value


REDUCE = [
    "all_reduce",
    tvm.runtime.tensor(X),
    "[[0,1,2,3]]",
    "sum",
    tvm_ffi.Shape(SHAPE),
    "float32",
]


def test_others_wake_when_a_worker_raises(fresh_runner):
    """The others sleep in the all-reduce when it raises."""
    runner = fresh_runner(4)
    functions = ["distir.test.run_builtin"] * 4
    functions[1] = "distir.test.sleep_and_fail"
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=r"worker 1 \(device 1\) failed in \"step\".*boom") as e:
        runner.workers.run("step", functions, [REDUCE, [0.3], REDUCE, REDUCE])
    assert time.monotonic() - begin < 5
    assert (e.value.worker, e.value.device, e.value.function) == (1, 1, "step")
    assert e.value.kind == "ValueError"
    assert "sleep_and_fail" in e.value.backtrace


RECEIVE = [
    "recv",
    transfer_plan(layout([0], [1]), layout([1], [1]), channel=4),
    tvm_ffi.Shape((4,)),
    "float32",
]


@pytest.mark.large
def test_others_wake_from_recv_when_a_worker_raises(fresh_runner):
    runner = fresh_runner(3)
    functions = [None, "distir.test.run_builtin", "distir.test.sleep_and_fail"]
    with pytest.raises(WorkerError, match=r"worker 2 .* ValueError: boom"):
        runner.workers.run("step", functions, [[], RECEIVE, [0.3]])


def test_device_ids_are_named_not_ranks(fresh_runner):
    runner = fresh_runner([3, 5, 9])
    outs = runner("all_reduce", [X] * 3, ("[[9,3,5]]", "sum"), [SHAPE] * 3)
    np.testing.assert_array_equal(outs[0], 3 * X)
    error = fails(runner, [all_reduce("[[3,5]]")] * 3, r"no group of .* has device 9")
    assert (error.worker, error.device) == (2, 9)


@pytest.mark.parametrize(
    ("calls", "match"),
    [
        (
            [all_reduce("[[0,1]]"), NOTHING],
            r"all_reduce over devices \[0, 1\] can never complete.*device 1 has finished",
        ),
        (
            [
                all_reduce("[[0,1],[2,3]]"),
                all_reduce("[[0,1],[2,3]]"),
                all_reduce("[[2,3]]"),
                NOTHING,
            ],
            r"all_reduce over devices \[2, 3\] can never complete",
        ),
        (
            [all_reduce("[[0,1]]"), all_reduce("[[1,2]]"), all_reduce("[[0,2]]")],
            r"can never complete.*waits in all_reduce over devices",
        ),
        (
            [all_reduce("[[0,1]]"), all_reduce("[[1,0]]")],
            r"can never complete.*waits in all_reduce over devices",
        ),
    ],
    ids=["one skips", "others are done", "cycle", "orders differ"],
)
def test_programs_that_would_wait_forever(fresh_threads, calls, match):
    fails(fresh_threads(len(calls)), calls, match)


def test_recv_without_send(fresh_runner):
    runner = fresh_runner(2)
    with pytest.raises(WorkerError, match=r"recv on channel 4 from device 0 to device 1 can never"):
        runner.workers.run("step", [None, "distir.test.run_builtin"], [[], RECEIVE])


@pytest.mark.parametrize(
    ("calls", "match"),
    [
        ([all_reduce("[[0,1]]", kind="sum"), all_reduce("[[0,1]]", kind="max")], "disagree"),
        ([all_reduce("[[0,1]]"), all_reduce("[[0,1]]", X.T.copy())], r"\[2, 3\].*\[3, 2\]"),
        ([all_reduce("[[0,1]]"), all_reduce("[[0,1]]", X.astype("int32"))], "float32.*int32"),
        (
            [all_reduce("[[0,1]]"), ("all_gather", (X, "[[0,1]]", 0), (2 * SHAPE[0], SHAPE[1]))],
            "device 0 calls all_reduce.*device 1 calls all_gather",
        ),
        (
            [
                ("all_gather", (np.zeros((2, 2)), "[[0,1]]", d), s)
                for d, s in [(0, (4, 2)), (1, (2, 4))]
            ],
            "disagree",
        ),
    ],
    ids=["kind", "shape", "dtype", "operation", "dim"],
)
def test_calls_that_do_not_match(fresh_threads, calls, match):
    fails(fresh_threads(2), calls, match)


def test_message_of_an_earlier_step_is_not_taken(fresh_runner):
    plan = transfer_plan(layout([0], [1]), layout([1], [1]))
    runner = fresh_runner(2)
    runner.calls([("send", (X[0].copy(), plan), None), NOTHING])
    calls = [("send", (X[0].copy(), plan), None), ("recv", (plan,), (3,))]
    fails(runner, calls, "channel 0 from device 0 to device 1.*of another call")


def plan_with(source=None, target=None):
    side = layout([0, 1], [1, 1])
    return transfer_plan({**side, **(source or {})}, {**side, **(target or {})})


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (("all_reduce", (X, "[[0,1]]", "median"), SHAPE), 'unknown reduction "median"'),
        (("all_reduce", (X, "[[0,1]]", "sum"), (3, 2)), r"out has shape \[3, 2\].*\[2, 3\]"),
        (("all_reduce", (X, "[[0,1", "sum"), SHAPE), "groups: not JSON"),
        (("all_reduce", (X, "[[0,1],[1]]", "sum"), SHAPE), r"groups\[1\]: device 1 occurs twice"),
        (("all_reduce", (X, '{"a": 1}', "sum"), SHAPE), "groups: is not a list"),
        (
            ("all_reduce", (X, "[[0,1,7]]", "sum"), SHAPE),
            r"device 7 is not in the session.*\[0, 1\]",
        ),
        (("all_reduce", (X.astype("int32"), "[[0,1]]", "mean"), SHAPE), "mean of int32"),
        (("all_reduce", (X > 1, "[[0,1]]", "mean"), SHAPE), "mean of bool"),
        (
            ("all_reduce", (X.astype(ml_dtypes.float8_e3m4), "[[0,1]]", "sum"), SHAPE),
            "float8_e3m4 cannot be reduced",
        ),
        (("all_gather", (X, "[[0,1]]", 2), (4, 3)), r"dim 2 is not a dimension of x"),
        (("all_gather", (X, "[[0,1]]", -1), (4, 3)), r"dim -1 is not a dimension of x"),
        (("reduce_scatter", (X, "[[0,1]]", 1, "sum"), (2, 1)), "does not divide into 2 parts"),
        (("all_to_all", (X, "[[0,1]]", 1, 0), (4, 1)), "does not divide into 2 parts"),
        (("slice", (X, "[[0,1]]", 1), (2, 1)), "does not divide into 2 parts"),
        (("send", (X, plan_with(*[{"devices": [[2, 2, 1]]}] * 2)), None), "neither source nor"),
        (("send", (X, plan_with({"devices": [[0, 2, 0]]})), None), "device 0 occurs twice"),
        (("send", (X, plan_with({"devices": [[0, 2]]})), None), "is not a run of devices"),
        (("send", (X, plan_with({"devices": []})), None), "has no device"),
        (("send", (X, plan_with({"dims": [[[1, 3]], []]})), None), "is not a digit"),
        (
            ("send", (X, plan_with({"dims": [[[1, 2]], [[1, 2]]]})), None),
            "more blocks than devices",
        ),
        (
            (
                "send",
                (X, plan_with({"devices": [[0, 4, 1]], "dims": [[[1, 2], [1, 2]], []]})),
                None,
            ),
            "to different numbers of devices",
        ),
        (("send", (X, plan_with({"dims": [[]]})), None), "has 2 dimensions, the tensor has 1"),
        (("send", (X, "{}"), None), 'has no key "channel"'),
    ],
)
def test_bad_arguments(fresh_threads, call, match):
    error = fails(fresh_threads(2), [call, call], match)
    assert error.kind in ("ValueError", "TypeError")


def test_builtins_outside_a_session():
    x = tvm.runtime.tensor(X)
    with pytest.raises(RuntimeError, match="run on the workers of a session"):
        tvm_ffi.get_global_func("distir.runtime.all_reduce")(x, "[[0]]", "sum", x)


def test_a_worker_can_not_wait_for_itself():
    workers = ThreadWorkers(range(2), "cpu")

    def reenter():
        workers.run("inner", [None, None], [[], []])

    with pytest.raises(WorkerError, match="worker 0 cannot start a step of its own session"):
        workers.run("outer", [tvm_ffi.convert(reenter), None], [[], []])


@pytest.mark.parametrize("first", ["waits", "runs"])
def test_interrupt_ends_the_step(fresh_runner, first):
    """A KeyboardInterrupt while a worker runs on; the other one waits for it, or runs on, too."""
    reduce = [*REDUCE[:2], "[[0,1]]", *REDUCE[3:]]
    sleep = "distir.test.sleep", [2.0]
    functions, arguments = zip(
        {"waits": ("distir.test.run_builtin", reduce), "runs": sleep}[first], sleep, strict=True
    )

    check_in_time(lambda: interrupted_late(fresh_runner(2).workers, functions, arguments))


def test_step_that_takes_too_long_names_the_worker_that_stalls(fresh_runner):
    runner = fresh_runner(3, timeout=10.0)
    runner.workers.timeout = 0.5
    reduce = [*REDUCE[:2], "[[0,1,2]]", *REDUCE[3:]]
    functions = ["distir.test.run_builtin", "distir.test.sleep", "distir.test.run_builtin"]
    with pytest.raises(WorkerError, match=r"within the session's timeout of 0.5 seconds") as error:
        runner.workers.run("step", functions, [reduce, [4.0], reduce])
    assert (error.value.worker, error.value.function) == (1, "step")
    assert error.value.kind == "TimeoutError"
    with pytest.raises(RuntimeError, match="the session is closed: worker 1"):
        runner.workers.check_open()


def test_a_timeout_is_reported_in_time(fresh_runner):
    """Also where no worker waits for another one."""

    def late():
        workers = fresh_runner(2, timeout=10.0).workers
        workers.timeout = 0.5
        return reported_late(workers, ["distir.test.sleep"] * 2, [[2.0], [2.0]])

    check_in_time(late)


def test_a_failure_does_not_wait_for_what_others_run(fresh_runner):
    runner = fresh_runner(2)
    functions = ["distir.test.sleep_and_fail", "distir.test.sleep"]
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=r"worker 0 .*boom"):
        runner.workers.run("step", functions, [[0.1], [5.0]])
    assert time.monotonic() - begin < 2.5


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), True, "2"])
def test_bad_timeouts(timeout):
    with pytest.raises(ValueError, match="must be a positive number of seconds or None"):
        Session(1, timeout=timeout)
