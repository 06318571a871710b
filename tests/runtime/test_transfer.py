"""send, recv and transfer: tensors that move between meshes, against NumPy."""

from __future__ import annotations

import itertools
import json

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi


def unit_boxes(grid, parts, device_ids):
    """Devices of a mesh that cuts dimension i into parts[i], row-major: device -> unit box."""
    boxes = {}
    for device, block in zip(device_ids, itertools.product(*map(range, parts)), strict=True):
        step = [g // p for g, p in zip(grid, parts, strict=True)]
        begin = [b * s for b, s in zip(block, step, strict=True)]
        boxes[device] = (begin, [b + s for b, s in zip(begin, step, strict=True)])
    return boxes


def make_plan(channel, grid, source_boxes, target_boxes):
    """Every unit of a target comes from the first source that has it."""
    pieces = []
    for target, (begin, end) in target_boxes.items():
        for unit in itertools.product(*(range(b, e) for b, e in zip(begin, end, strict=True))):
            source = next(
                device
                for device, (low, high) in source_boxes.items()
                if all(a <= u < b for a, u, b in zip(low, unit, high, strict=True))
            )
            pieces.append([source, target, list(unit), [u + 1 for u in unit]])
    return {
        "channel": channel,
        "grid": list(grid),
        "pieces": pieces,
        "source_boxes": {str(device): box for device, box in source_boxes.items()},
        "target_boxes": {str(device): box for device, box in target_boxes.items()},
    }


def local(array, grid, box):
    unit = [size // g for size, g in zip(array.shape, grid, strict=True)]
    begin, end = box
    where = tuple(slice(b * u, e * u) for b, e, u in zip(begin, end, unit, strict=True))
    return np.array(array[where], order="C")


def run_plan(runner, plan, array, source_boxes, target_boxes):
    text = json.dumps(plan)
    grid = plan["grid"]
    calls = []
    for device in range(runner.num_workers):
        x = local(array, grid, source_boxes[device]) if device in source_boxes else None
        out = local(array, grid, target_boxes[device]) if device in target_boxes else None
        if x is not None and out is not None:
            calls.append(("transfer", (x, text), out.shape))
        elif x is not None:
            calls.append(("send", (x, text), None))
        elif out is not None:
            calls.append(("recv", (text,), out.shape))
        else:
            calls.append(("keep", (), None))
    return runner.calls(calls)


CASES = {
    "one to one": ((1, 1), (1, 1), [0], (1, 1), [1]),
    "rows to columns, other devices": ((2, 2), (2, 1), [0, 1], (1, 2), [2, 3]),
    "rows to columns, same devices": ((4, 4), (4, 1), [0, 1, 2, 3], (1, 4), [0, 1, 2, 3]),
    "two to four, sharing two": ((2, 2), (2, 1), [0, 1], (2, 2), [0, 1, 2, 3]),
    "four to one that has a part": ((2, 2), (2, 2), [0, 1, 2, 3], (1, 1), [2]),
    "reversed": ((4, 1), (4, 1), [0, 1, 2, 3], (4, 1), [3, 2, 1, 0]),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "float64"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_moves_between_meshes(runner_of, case, dtype):
    grid, source_parts, sources, target_parts, targets = case
    runner = runner_of(4)
    source_boxes = unit_boxes(grid, source_parts, sources)
    target_boxes = unit_boxes(grid, target_parts, targets)
    for channel, shape in enumerate([(4, 4), (8, 12), (20, 4), (4, 0)]):
        array = np.arange(int(np.prod(shape))).reshape(shape) % 97
        array = (array % 2 if dtype == "bool" else array).astype(getattr(ml_dtypes, dtype, dtype))
        plan = make_plan(channel, grid, source_boxes, target_boxes)
        outs = run_plan(runner, plan, array, source_boxes, target_boxes)
        for device, box in target_boxes.items():
            np.testing.assert_array_equal(outs[device], local(array, grid, box))


def test_scalar(runner_of):
    boxes = ([], [])
    plan = make_plan(0, (), {0: boxes}, {1: boxes})
    outs = run_plan(runner_of(2), plan, np.array(2.5, "float32"), {0: boxes}, {1: boxes})
    assert outs[1] == np.float32(2.5)


def test_comparison_notices_a_wrong_plan(runner_of):
    """The control: two pieces of equal size that change their targets."""
    grid, source_parts, sources, target_parts, targets = CASES["rows to columns, other devices"]
    source_boxes = unit_boxes(grid, source_parts, sources)
    target_boxes = unit_boxes(grid, target_parts, targets)
    plan = make_plan(0, grid, source_boxes, target_boxes)
    sent = {(source, target): piece for piece in plan["pieces"] for source, target in [piece[:2]]}
    sent[0, 2][0], sent[1, 2][0] = 1, 0  # each source sends what the other has
    plan["source_boxes"] = {"0": source_boxes[1], "1": source_boxes[0]}
    sent[0, 3][0], sent[1, 3][0] = 1, 0
    array = np.arange(16, dtype="float32").reshape(4, 4)
    outs = run_plan(runner_of(4), plan, array, source_boxes, target_boxes)
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(outs[2], local(array, grid, target_boxes[2]))


def test_messages_keep_their_order_and_senders_do_not_wait(runner_of):
    """A sender runs ahead by several steps' worth of messages, on two channels."""
    runner = runner_of(2)
    box = ([0], [1])
    plans = [json.dumps(make_plan(channel, (1,), {0: box}, {1: box})) for channel in (7, 8)]
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
