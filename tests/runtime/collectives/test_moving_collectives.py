"""Collectives that move blocks, against NumPy: gather, scatter, all-to-all, slice."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

pytestmark = pytest.mark.every_case_nightly

DTYPES = ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "bool"]
DTYPES += [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


def numbered(device, shape, dtype):
    """An array whose elements are different on every device, as far as the dtype can tell."""
    count = int(np.prod(shape))
    values = (np.arange(count) * 7 + device * 31) % 101
    if dtype == "bool":
        values = values % 2
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    return values.reshape(shape).astype(kind)


def check(outs, expected):
    assert len(outs) == len(expected)
    for out, right in zip(outs, expected, strict=True):
        assert out.dtype == right.dtype
        np.testing.assert_array_equal(out.astype("float64"), right.astype("float64"))


def blocks(array, count, dim):
    return np.split(array, count, dim)


def gathered(xs, groups, dim):
    return per_device(groups, lambda group, _: np.concatenate([xs[d] for d in group], dim))


def scattered(xs, groups, dim):
    def sums(group, position):
        total = xs[group[0]].copy()
        for device in group[1:]:
            total = total + xs[device]
        return blocks(total, len(group), dim)[position]

    return per_device(groups, sums)


def exchanged(xs, groups, split, concat):
    def received(group, position):
        return np.concatenate([blocks(xs[d], len(group), split)[position] for d in group], concat)

    return per_device(groups, received)


def sliced(xs, groups, dim):
    return per_device(groups, lambda g, position: blocks(xs[g[position]], len(g), dim)[position])


def per_device(groups, function):
    """function(group, position) of every device, by device."""
    results = {d: function(g, position) for g in groups for position, d in enumerate(g)}
    return [results[device] for device in sorted(results)]


def scale(shape, **factors):
    return tuple(size * factors.get(f"d{dim}", 1) for dim, size in enumerate(shape))


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_gather(runner_of, groups, dtype):
    runner = runner_of(sum(map(len, groups)))
    for shape, dim in [
        ((5,), 0),
        ((3, 5), 0),
        ((3, 5), 1),
        ((2, 3, 4), 1),
        ((0, 3), 1),
        ((2, 0), 1),
    ]:
        xs = [numbered(d, shape, dtype) for d in range(runner.num_workers)]
        expected = gathered(xs, groups, dim)
        outs = runner("all_gather", xs, (json.dumps(groups), dim), [e.shape for e in expected])
        check(outs, expected)


@pytest.mark.parametrize("dtype", ["float32", "int8", "float64", "uint16"])
def test_reduce_scatter(runner_of, groups, dtype):
    runner = runner_of(sum(map(len, groups)))
    n = len(groups[0])
    for shape, dim in [
        ((n,), 0),
        ((3 * n, 5), 0),
        ((3, 5 * n), 1),
        ((2, 2 * n, 3), 1),
        ((0, n), 1),
    ]:
        xs = [numbered(d, shape, dtype) for d in range(runner.num_workers)]
        expected = scattered(xs, groups, dim)
        args = (json.dumps(groups), dim, "sum")
        check(runner("reduce_scatter", xs, args, [e.shape for e in expected]), expected)


@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod", "mean"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32", "bool"])
def test_reduce_scatter_is_all_reduce_then_slice(runner_of, kind, dtype):
    if kind == "mean" and dtype in ("int32", "bool"):
        return
    runner = runner_of(4)
    xs = [numbered(d, (3, 8, 5), dtype) for d in range(4)]
    text = "[[0,1,2,3]]"
    whole = runner("all_reduce", xs, (text, kind), [(3, 8, 5)] * 4)
    parts = runner("reduce_scatter", xs, (text, 1, kind), [(3, 2, 5)] * 4)
    check(parts, sliced(whole, [[0, 1, 2, 3]], 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_to_all(runner_of, groups, dtype):
    runner = runner_of(sum(map(len, groups)))
    n = len(groups[0])
    cases = [
        ((n,), 0, 0),
        ((2 * n, 3), 0, 1),
        ((3, 2 * n), 1, 0),
        ((2 * n, 3), 0, 0),
        ((2, 3 * n, 2, 5), 1, 3),
        ((2, 3, 2 * n, 5), 2, 0),
        ((0, n), 1, 0),
    ]
    for shape, split, concat in cases:
        xs = [numbered(d, shape, dtype) for d in range(runner.num_workers)]
        expected = exchanged(xs, groups, split, concat)
        args = (json.dumps(groups), split, concat)
        check(runner("all_to_all", xs, args, [e.shape for e in expected]), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_slice(runner_of, groups, dtype):
    runner = runner_of(sum(map(len, groups)))
    n = len(groups[0])
    for shape, dim in [((n,), 0), ((3, 2 * n), 1), ((2 * n, 5, 2), 0), ((0, n), 1)]:
        xs = [numbered(d, shape, dtype) for d in range(runner.num_workers)]
        expected = sliced(xs, groups, dim)
        outs = runner("slice", xs, (json.dumps(groups), dim), [e.shape for e in expected])
        check(outs, expected)


def test_comparison_notices_wrong_collectives(runner_of):
    """The control: each collective, run with one argument changed, differs from its reference."""
    runner = runner_of(4)
    groups, wrong = [[0, 1, 2, 3]], [[1, 0, 2, 3]]
    xs = [numbered(d, (4, 4), "float32") for d in range(4)]
    every = json.dumps(wrong)
    sabotaged = [
        ("all_gather", (every, 0), gathered(xs, groups, 0)),
        ("reduce_scatter", (every, 0, "sum"), scattered(xs, groups, 0)),
        ("all_to_all", (every, 0, 1), exchanged(xs, groups, 0, 1)),
        ("slice", (every, 0), sliced(xs, groups, 0)),
    ]
    for name, args, expected in sabotaged:
        outs = runner(name, xs, args, [e.shape for e in expected])
        with pytest.raises(AssertionError):
            check(outs, expected)


def test_overlapping_groups_in_one_step(runner_of):
    """Rows, then columns, then everybody: three groups that share members, in one job."""
    runner = runner_of(4)
    xs = [numbered(d, (2, 2), "float32") for d in range(4)]
    for _ in range(20):
        rows = runner("all_reduce", xs, ("[[0,1],[2,3]]", "sum"), [(2, 2)] * 4)
        both = runner("all_reduce", rows, ("[[0,2],[1,3]]", "sum"), [(2, 2)] * 4)
        every = runner("all_reduce", xs, ("[[0,1,2,3]]", "sum"), [(2, 2)] * 4)
        check(both, every)


@pytest.mark.large
@pytest.mark.parametrize("shape", [(2, 1050, 1060), (2, 70, 16_001), (4, 1_100_003)])
def test_results_that_are_written_past_the_caches(runner_of, shape):
    runner, text, n = runner_of(2), "[[0,1]]", 2
    groups = [[0, 1]]
    xs = [numbered(d, shape, "float32") for d in range(n)]
    for dim in range(len(shape)):
        gathered_ = gathered(xs, groups, dim)
        check(runner("all_gather", xs, (text, dim), [each.shape for each in gathered_]), gathered_)
    parts = scattered(xs, groups, 0)
    check(runner("reduce_scatter", xs, (text, 0, "sum"), [each.shape for each in parts]), parts)
