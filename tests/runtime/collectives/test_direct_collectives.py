"""Large collectives between processes that see each other's tensors, and that do not."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tvm_ffi

from distir_ext.params.host_array import host_array

SIZE = 96_000  # elements of an operand or a result: more than 256 KiB


def run(runner, name, xs, arguments, shape, seen=lambda rank: (True, True)):
    """Per worker its result."""
    kept = [host_array(x) for x in xs]
    calls = [
        [
            name,
            each.shard([0] * x.ndim, x.shape),
            list(arguments),
            tvm_ffi.Shape(shape),
            *seen(rank),
        ]
        for rank, (each, x) in enumerate(zip(kept, xs, strict=True))
    ]
    others = runner.workers.num_workers - len(xs)
    functions = ["distir.test.run_seen"] * len(xs) + [None] * others
    outcomes = runner.workers.run("test", functions, calls + [[]] * others)[: len(xs)]
    assert all(unchanged for _, unchanged in outcomes), "an operand was written to"
    return [out.numpy() for out, _ in outcomes]


GROUPS = {
    "4": [[0, 1, 2, 3]],
    "3": [[0, 1, 2]],
    "2x2": [[0, 1], [2, 3]],
    "2x2 across": [[0, 2], [1, 3]],
    "other order": [[3, 1], [2, 0]],
}
SEEN = {
    "all": lambda rank: (True, True),
    "no result": lambda rank: (True, False),
    "not the operand of one": lambda rank: (rank != 1, True),
    "none": lambda rank: (False, False),
}


@pytest.mark.parametrize("seen", SEEN.values(), ids=SEEN)
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_all_collectives(runner_on, groups, seen):
    num_workers, n = sum(map(len, groups)), len(groups[0])
    runner = runner_on("processes", num_workers)
    rng = np.random.default_rng(0)
    xs = [rng.integers(-9, 9, (120, SIZE // 120)).astype("float32") for _ in range(num_workers)]
    text = json.dumps(groups)
    columns = SIZE // 120
    found = {
        "all_reduce": run(runner, "all_reduce", xs, [text, "sum"], (120, columns), seen),
        "all_gather": run(runner, "all_gather", xs, [text, 1], (120, columns * n), seen),
        "reduce_scatter": run(
            runner, "reduce_scatter", xs, [text, 0, "max"], (120 // n, columns), seen
        ),
        "all_to_all": run(runner, "all_to_all", xs, [text, 0, 1], (120 // n, columns * n), seen),
    }
    for group in groups:
        members = [xs[rank] for rank in group]
        blocks = [np.split(x, n) for x in members]
        for position, rank in enumerate(group):
            expected = {
                "all_reduce": np.sum(members, axis=0),
                "all_gather": np.concatenate(members, axis=1),
                "reduce_scatter": np.split(np.max(members, axis=0), n)[position],
                "all_to_all": np.concatenate([block[position] for block in blocks], axis=1),
            }
            for name, want in expected.items():
                np.testing.assert_array_equal(found[name][rank], want, err_msg=name)


@pytest.mark.parametrize("dtype", ["float16", "int8", "float64"])
def test_dtypes(runner_on, dtype):
    runner = runner_on("processes", 4)
    rng = np.random.default_rng(1)
    xs = [rng.integers(-9, 9, 300_001).astype(dtype) for _ in range(4)]
    sums = run(runner, "all_reduce", xs, ["[[0,1,2,3]]", "sum"], (300_001,))
    for rank in range(4):
        np.testing.assert_array_equal(sums[rank], np.sum(xs, axis=0, dtype=dtype))


def test_equal_to_the_bit_however_tensors_are_seen(runner_on):
    """As threads, and as messages."""
    rng = np.random.default_rng(2)
    xs = [rng.standard_normal(SIZE).astype("float32") for _ in range(4)]
    arguments = ("all_reduce", xs, ["[[0,1,2,3]]", "mean"], (SIZE,))
    wanted = xs[0]
    for x in xs[1:]:
        wanted = wanted + x
    wanted = wanted / np.float32(4)
    for kind in ("threads", "processes"):
        for seen in SEEN.values():
            for result in run(runner_on(kind, 4), *arguments, seen):
                np.testing.assert_array_equal(result.view("u4"), wanted.view("u4"))


def test_many_rounds_use_the_same_memory(runner_on):
    """Operands and results come and go; nobody sees what was there before."""
    runner = runner_on("processes", 2)
    for round_ in range(20):
        xs = [np.full(SIZE, round_ + rank, "float32") for rank in range(2)]
        for result in run(runner, "all_reduce", xs, ["[[0,1]]", "sum"], (SIZE,)):
            np.testing.assert_array_equal(result, np.full(SIZE, 2 * round_ + 1, "float32"))
