"""send, recv and transfer: tensors that move between meshes, against NumPy."""

from __future__ import annotations

import json
import math

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tests.abi.plans import layout, transfer_plan
from tests.mesh.model import num_shards, shards
from tests.native.library import call


def local(array, parts, device_ids, device):
    """The block of a device of a mesh that cuts dimension i into parts[i], row-major."""
    block = np.unravel_index(device_ids.index(device), parts) if parts else ()
    for dim, (index, count) in enumerate(zip(block, parts, strict=True)):
        array = np.split(array, count, axis=dim)[index]
    return np.array(array, order="C")


def run_plan(runner, plan, array, source, target):
    """Sides are (parts, device ids)."""
    calls = []
    for device in range(runner.num_workers):
        x = local(array, *source, device) if device in source[1] else None
        out = local(array, *target, device) if device in target[1] else None
        if x is not None and out is not None:
            calls.append(("transfer", (x, plan), out.shape))
        elif x is not None:
            calls.append(("send", (x, plan), None))
        elif out is not None:
            calls.append(("recv", (plan,), out.shape))
        else:
            calls.append(("keep", (), None))
    return runner.calls(calls)


def plan_of(source, target, channel=0):
    return transfer_plan(layout(source[1], source[0]), layout(target[1], target[0]), None, channel)


CASES = {
    "one to one": (((1, 1), [0]), ((1, 1), [1])),
    "rows to columns, other devices": (((2, 1), [0, 1]), ((1, 2), [2, 3])),
    "rows to columns, same devices": (((4, 1), [0, 1, 2, 3]), ((1, 4), [0, 1, 2, 3])),
    "two to four, sharing two": (((2, 1), [0, 1]), ((2, 2), [0, 1, 2, 3])),
    "four to one that has a part": (((2, 2), [0, 1, 2, 3]), ((1, 1), [2])),
    "reversed": (((4, 1), [0, 1, 2, 3]), ((4, 1), [3, 2, 1, 0])),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "float64"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_moves_between_meshes(runner_of, case, dtype):
    source, target = case
    runner = runner_of(4)
    for channel, shape in enumerate([(4, 4), (8, 12), (20, 4), (4, 0)]):
        array = np.arange(int(np.prod(shape))).reshape(shape) % 97
        array = (array % 2 if dtype == "bool" else array).astype(getattr(ml_dtypes, dtype, dtype))
        outs = run_plan(runner, plan_of(source, target, channel), array, source, target)
        for device in target[1]:
            np.testing.assert_array_equal(outs[device], local(array, *target, device))


def test_scalar(runner_of):
    source, target = ((), [0]), ((), [1])
    outs = run_plan(runner_of(2), plan_of(source, target), np.array(2.5, "float32"), source, target)
    assert outs[1] == np.float32(2.5)


def test_copies_share_the_sending_of_what_divides(runner_of):
    """Two devices hold all, one wants it: each sends its half of the shape that the plan states."""
    plan = transfer_plan(layout([0, 1], [1, 1]), layout([2], [1, 1]), [4, 6])
    array = np.arange(1, 25, dtype="float32").reshape(4, 6)
    both = [array.copy(), np.zeros_like(array)]
    calls = [("send", (x, plan), None) for x in both]
    out = runner_of(3).calls([*calls, ("recv", (plan,), (4, 6))])[2]
    assert sorted(np.count_nonzero(half) for half in np.split(out, 2)) == [0, 12]


def test_comparison_notices_a_wrong_plan(runner_of):
    """The control: sources that change their places."""
    source, target = CASES["rows to columns, other devices"]
    plan = plan_of((source[0], source[1][::-1]), target)
    array = np.arange(16, dtype="float32").reshape(4, 4)
    outs = run_plan(runner_of(4), plan, array, source, target)
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(outs[2], local(array, *target, 2))


def test_messages_keep_their_order_and_senders_do_not_wait(runner_of):
    """A sender runs ahead by several steps' worth of messages, on two channels."""
    runner = runner_of(2)
    plans = [plan_of(((1,), [0]), ((1,), [1]), channel) for channel in (7, 8)]
    sends = [
        ["send", tvm.runtime.tensor(np.full((3,), i, "int32")), plans[i % 2], None, ""]
        for i in range(10)
    ]
    order = [*range(1, 10, 2), *range(0, 10, 2)]  # the second channel first
    receives = [["recv", plans[i % 2], tvm_ffi.Shape((3,)), "int32"] for i in order]
    idle = runner.workers.num_workers - 2
    functions = ["distir.test.run_builtins"] * 2 + [None] * idle
    outs = runner.workers.run("test", functions, [[sends], [receives]] + [[]] * idle)[1]
    for i, out in zip(order, outs, strict=True):
        np.testing.assert_array_equal(out.numpy(), np.full((3,), i))


MESHES = [(6,), (3, 2), (2, 4), (2, 2, 2), (5,), (2,)]


def random_side(rng, ndim):
    """A mesh over some of eight devices in any order, and axes of it on some dimensions."""
    shape = MESHES[rng.integers(len(MESHES))]
    devices = tuple(int(device) for device in rng.permutation(8)[: math.prod(shape)])
    dims = [()] * ndim
    for axis in rng.permutation(len(shape)):
        dim = rng.integers(ndim + 1)
        if dim < ndim:
            dims[dim] += ((int(axis), 1, shape[axis]),)
    return (shape, devices), (tuple(dims), (), "none")


@pytest.mark.parametrize("hosts", [(), ((0, 1, 2, 3), (4, 5, 6, 7))], ids=["alike", "hosts"])
def test_random_pairs_of_shardings(fresh_threads, hosts):
    """On meshes that are equal, overlap or are disjoint; extents that divide just so, or more."""
    rng = np.random.default_rng(len(hosts))
    runner = fresh_threads(8)
    for channel in range(60):
        ndim = int(rng.integers(0, 4))
        source, target = random_side(rng, ndim), random_side(rng, ndim)
        shape = tuple(
            math.lcm(num_shards(a), num_shards(b)) * int(rng.integers(1, 4))
            for a, b in zip(source[1][0], target[1][0], strict=True)
        )
        whole = np.array(rng.permutation(math.prod(shape)).reshape(shape), "int32")
        stated = shape if rng.integers(2) else (0,) * ndim
        plan = json.loads(call("TransferPlan", *source[0], source[1], *target[0], target[1],
                               stated, hosts))  # fmt: skip
        plan = json.dumps({**plan, "channel": channel})
        held = shards(source[0], source[1][0], whole)
        wanted = shards(target[0], target[1][0], whole)
        calls = []
        for device in range(8):
            x = np.array(held[device], order="C") if device in held else None
            if device in wanted:
                out = wanted[device].shape
                name, arguments = ("recv", (plan,)) if x is None else ("transfer", (x, plan))
                calls.append((name, arguments, out))
            else:
                calls.append(("keep", (), None) if x is None else ("send", (x, plan), None))
        outs = runner.calls(calls)
        for device, part in wanted.items():
            np.testing.assert_array_equal(outs[device], part, err_msg=plan)
