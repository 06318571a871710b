"""Every collective of the NCCL backend against NumPy: dims, dtypes, groups."""

from __future__ import annotations

import json
import math

import ml_dtypes
import numpy as np
import pytest
from tests.abi.plans import layout

FLOATS = ["float16", "bfloat16", "float32", "float64", "float8_e5m2", "float8_e4m3fn"]
INTEGERS = ["int8", "uint8", "int32", "uint32", "int64", "uint64"]
KINDS = ["sum", "max", "min", "prod", "mean"]
MOVED = ["float32", "bfloat16", "int16", "bool", "float8_e5m2"]


def as_dtype(values, dtype):
    if dtype == "bool":
        return np.asarray(values % 2 == 1)
    return np.asarray(values).astype(getattr(ml_dtypes, dtype, dtype))


def inputs(groups, shape, dtype, high=5):
    """Different small integers for each worker: exact in every dtype."""
    rng = np.random.default_rng(math.prod(shape) + len(groups))
    count = sum(map(len, groups))
    return [as_dtype(rng.integers(0, high, shape), dtype) for _ in range(count)]


def check(outs, expected):
    """`expected(group, position)` is what the worker at a position of a group should have."""
    for group, position, out in outs:
        want = expected(group, position)
        assert out.dtype == want.dtype
        np.testing.assert_array_equal(out.astype("float64"), want.astype("float64"))


def run(runner_of, name, xs, groups, args, shape):
    outs = runner_of(len(xs))(name, xs, [json.dumps(groups), *args], shape)
    return [(group, i, outs[rank]) for group in groups for i, rank in enumerate(group)]


def reduced(arrays, kind):
    dtype = arrays[0].dtype
    if dtype == np.dtype(bool):
        combine = np.logical_or if kind in ("sum", "max") else np.logical_and
        return combine.reduce(arrays)
    wide = np.stack([array.astype("float64" if dtype.kind != "i" else "int64") for array in arrays])
    operation = {"max": np.max, "min": np.min, "prod": np.prod, "mean": np.mean}.get(kind, np.sum)
    return operation(wide, axis=0).astype(dtype)


REDUCTIONS = [
    (dtype, kind)
    for dtype in [*FLOATS, *INTEGERS, "bool"]
    for kind in KINDS
    if kind != "mean" or dtype in FLOATS
]


@pytest.mark.parametrize(("dtype", "kind"), REDUCTIONS)
def test_all_reduce_of_every_dtype(runner_of, dtype, kind):
    groups = [[0, 1]]
    xs = inputs(groups, (7, 3), dtype, high=3)
    outs = run(runner_of, "all_reduce", xs, groups, [kind], (7, 3))
    check(outs, lambda group, _: reduced([xs[rank] for rank in group], kind))


@pytest.mark.parametrize("shape", [(), (1,), (5, 7), (3, 0, 2), (70001,)], ids=str)
def test_all_reduce(runner_of, groups, shape):
    xs = inputs(groups, shape, "float32")
    outs = run(runner_of, "all_reduce", xs, groups, ["sum"], shape)
    check(outs, lambda group, _: reduced([xs[rank] for rank in group], "sum"))


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("dtype", MOVED)
def test_all_gather(runner_of, groups, dtype, dim):
    shape = [3, 4, 5]
    xs = inputs(groups, shape, dtype)
    shape[dim] *= len(groups[0])
    outs = run(runner_of, "all_gather", xs, groups, [dim], shape)
    check(outs, lambda group, _: np.concatenate([xs[rank] for rank in group], axis=dim))


@pytest.mark.parametrize("kind", ["sum", "max"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_reduce_scatter(runner_of, groups, dim, kind):
    size = len(groups[0])
    shape = [3, 4, 5]
    shape[dim] *= size
    xs = inputs(groups, shape, "float32")
    shape[dim] //= size
    outs = run(runner_of, "reduce_scatter", xs, groups, [dim, kind], shape)
    check(
        outs,
        lambda group, position: np.split(
            reduced([xs[rank] for rank in group], kind), size, axis=dim
        )[position],
    )


@pytest.mark.parametrize("concat_dim", [0, 1, 2])
@pytest.mark.parametrize("split_dim", [0, 1, 2])
def test_all_to_all(runner_of, groups, split_dim, concat_dim):
    size = len(groups[0])
    shape = [2, 3, 4]
    shape[split_dim] *= size
    xs = inputs(groups, shape, "int16", high=1000)
    shape[split_dim] //= size
    shape[concat_dim] *= size
    outs = run(runner_of, "all_to_all", xs, groups, [split_dim, concat_dim], shape)
    check(
        outs,
        lambda group, position: np.concatenate(
            [np.split(xs[rank], size, axis=split_dim)[position] for rank in group], axis=concat_dim
        ),
    )


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_slice(runner_of, groups, dim):
    size = len(groups[0])
    shape = [3, 4, 5]
    shape[dim] *= size
    xs = inputs(groups, shape, "bfloat16")
    x_of = {id(group): [xs[rank] for rank in group] for group in groups}
    shape[dim] //= size
    outs = run(runner_of, "slice", xs, groups, [dim], shape)
    check(
        outs,
        lambda group, position: np.split(x_of[id(group)][position], size, axis=dim)[position],
    )


FILLS = {"float32": "-1.5", "bfloat16": "-1.5", "int16": "-7", "bool": "1", "int8": "-128"}


def segments(runner_of, whole, dim, rows, size, fill="0"):
    """Runs a segment exchange on two shards of `whole`; `size` is that of a result's shard."""
    side = layout([0, 1], [2 if d == dim else 1 for d in range(whole.ndim)])
    plan = {"channel": 0, "dim": dim, "fill": fill, "segments": rows, "source": side}
    plan |= {"source_size": whole.shape[dim], "target_size": 2 * size, "target": side}
    shape = list(whole.shape)
    shape[dim] = size
    xs = [np.ascontiguousarray(part) for part in np.split(whole, 2, axis=dim)]
    return runner_of(2)("segment_exchange", xs, [json.dumps(plan)], shape)


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("dtype", FILLS)
def test_halo(runner_of, dtype, dim):
    whole = inputs([[0]], [8, 8, 8], dtype, high=100)[0]
    rows = [[0, 2, 1, 5], [3, 7, 1, 5]]
    outs = segments(runner_of, whole, dim, rows, 7, FILLS[dtype])
    widths = [(2, 2) if d == dim else (0, 0) for d in range(3)]
    value = np.array(float(FILLS[dtype])).astype(whole.dtype)
    padded = np.pad(whole, widths, constant_values=value)
    np.testing.assert_array_equal(outs[0], padded.take(range(7), dim))
    np.testing.assert_array_equal(outs[1], padded.take(range(5, 12), dim))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_segments_with_steps_and_repetition(runner_of, dim):
    whole = inputs([[0]], [8, 8, 8], "int16", high=1000)[0]
    rows = [[7, 0, -2, 2], [0, 2, 3, 2], [2, 4, 0, 3], [4, 7, 1, 1]]
    outs = segments(runner_of, whole, dim, rows, 4)
    np.testing.assert_array_equal(outs[0], whole.take([7, 5, 0, 3], dim))
    np.testing.assert_array_equal(outs[1], whole.take([2, 2, 2, 4], dim))


def test_comparison_notices_a_wrong_sum():
    with pytest.raises(AssertionError):
        check([([0], 0, np.ones(3, "float32"))], lambda *_: np.array([1, 1, 2], "float32"))
