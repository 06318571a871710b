"""Shared results of collectives: equal for all members, and one buffer where possible."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tvm_ffi

from distir_ext import WorkerError
from distir_ext.params.host_array import host_array


def run(runner, calls_of):
    """Per worker the results of its calls, and their addresses."""
    kept, arguments = [], []
    for calls in calls_of:
        mine = []
        for name, x, *rest in calls:
            kept.append(host_array(x))
            mine.append([name, kept[-1].shard([0] * x.ndim, x.shape), *rest])
        arguments.append([mine])
    others = runner.workers.num_workers - len(calls_of)
    functions = ["distir.test.run_shared"] * len(calls_of) + [None] * others
    outcomes = runner.workers.run("test", functions, arguments + [[]] * others)
    return [
        ([result.numpy().copy() for result in results], list(addresses))
        for results, addresses in outcomes[: len(calls_of)]
    ]


def integers(rng, shape):
    return rng.integers(-100, 100, shape).astype("float32")


def test_all_reduce_and_all_gather(runner_of, groups, worker_kind):
    runner = runner_of(sum(map(len, groups)))
    rng = np.random.default_rng(0)
    xs = [integers(rng, (3, 5)) for _ in range(runner.num_workers)]
    text = json.dumps(groups)
    calls = lambda x: [  # noqa: E731
        ("shared_all_reduce", x, text, "sum"),
        *(("shared_all_gather", x, text, dim) for dim in range(2)),
        ("shared_all_reduce", x, text, "max"),
    ]
    outcomes = run(runner, [calls(x) for x in xs])
    for group in groups:
        members = [xs[device] for device in group]
        expected = [
            np.sum(members, axis=0),
            np.concatenate(members, axis=0),
            np.concatenate(members, axis=1),
            np.max(members, axis=0),
        ]
        for device in group:
            results, addresses = outcomes[device]
            for result, want in zip(results, expected, strict=True):
                np.testing.assert_array_equal(result, want)
            assert len(set(addresses)) == 4, "a result that is held was written over"
            if worker_kind == "threads":
                assert addresses == outcomes[group[0]][1], "each member has a copy"
    firsts = {outcomes[group[0]][1][0] for group in groups}
    assert worker_kind == "processes" or len(firsts) == len(groups)


def test_some_members_have_results_of_their_own(runner_on):
    """As where the programs of the members differ."""
    runner = runner_on("threads", 4)
    rng = np.random.default_rng(1)
    xs = [integers(rng, (1000, 7)) for _ in range(4)]
    groups = "[[0,1,2,3]]"
    for own in ({1}, {0, 2}, {0, 1, 2}):
        expected = {"all_reduce": np.sum(xs, axis=0), "all_gather": np.concatenate(xs, axis=1)}
        for name, want in expected.items():
            argument = "sum" if name == "all_reduce" else 1
            arguments, kept = [], []
            for rank, x in enumerate(xs):
                kept.append(host_array(x))
                shard = kept[-1].shard([0, 0], x.shape)
                if rank in own:
                    shape = tvm_ffi.Shape(want.shape)
                    arguments.append([name, shard, groups, argument, shape, "float32"])
                else:
                    arguments.append([[[f"shared_{name}", shard, groups, argument]]])
            functions = [
                "distir.test.run_builtin" if rank in own else "distir.test.run_shared"
                for rank in range(4)
            ]
            for rank, outcome in enumerate(runner.workers.run("test", functions, arguments)):
                result = outcome if rank in own else outcome[0][0]
                np.testing.assert_array_equal(result.numpy(), want)


def test_memory_is_used_again(runner_on):
    runner = runner_on("threads", 2)
    x = np.ones((100, 100), "float32")
    calls = [("shared_all_reduce", x, "[[0,1]]", "sum")]
    addresses = {run(runner, [calls, calls])[0][1][0] for _ in range(50)}
    assert len(addresses) <= 3


def test_different_shapes(fresh_runner):
    runner = fresh_runner(2)
    shapes = [(2, 3), (3, 2)]
    calls_of = [
        [("shared_all_reduce", np.ones(shape, "float32"), "[[0,1]]", "sum")] for shape in shapes
    ]
    with pytest.raises(WorkerError, match=r"device [01] calls all_reduce of float32 \(?\[?[23]"):
        run(runner, calls_of)
