"""distir.runtime.all_reduce against NumPy: every dtype, kind and shape of group."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
import tvm

SMALL_FLOATS = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
FLOATS = [*SMALL_FLOATS, "float32", "float64"]
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
KINDS = ["sum", "max", "min", "prod", "mean"]
CASES = [
    (dtype, kind)
    for dtype in [*FLOATS, *INTEGERS, "bool"]
    for kind in KINDS
    if kind != "mean" or dtype in FLOATS
]
# Scalars, nothing at all, odd sizes, and more than one block of the kernels and of the backend.
SHAPES = [(), (0,), (1,), (7,), (3, 5), (4, 0, 2), (9001,)]


def numpy_dtype(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def random_array(rng, shape, dtype):
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape), dtype=bool)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        values = rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
        return np.asarray(values, dtype=dtype)
    return np.asarray(rng.standard_normal(shape) * 3).astype(numpy_dtype(dtype))


def reduced(arrays, kind):
    """The reduction in order, accumulated as documented and rounded once."""
    dtype = arrays[0].dtype
    if dtype.kind == "b":
        operation = {"sum": np.logical_or, "max": np.logical_or}.get(kind, np.logical_and)
    else:
        operation = {"max": np.maximum, "min": np.minimum, "prod": np.multiply}.get(kind, np.add)
    wide = np.dtype("float32") if dtype.name in SMALL_FLOATS else dtype
    result = arrays[0].astype(wide)
    with np.errstate(all="ignore"):
        for array in arrays[1:]:
            result = np.asarray(operation(result, array.astype(wide)), dtype=wide)
        if kind == "mean":
            result = result / wide.type(len(arrays))
        return np.asarray(result).astype(dtype)


def assert_same_bits(actual, expected):
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    with np.errstate(invalid="ignore"):  # signalling NaNs
        nan = np.isnan(expected.astype("float64"))
        np.testing.assert_array_equal(np.isnan(actual.astype("float64")), nan)
    raw = f"u{expected.dtype.itemsize}"
    np.testing.assert_array_equal(
        np.ascontiguousarray(actual).view(raw)[~nan], np.ascontiguousarray(expected).view(raw)[~nan]
    )


@pytest.mark.every_case_nightly
@pytest.mark.parametrize(("dtype", "kind"), CASES)
def test_equals_numpy_bit_for_bit(runner_of, groups, dtype, kind):
    runner = runner_of(sum(map(len, groups)))
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        xs = [random_array(rng, shape, dtype) for _ in range(runner.num_workers)]
        outs = runner("all_reduce", xs, (json.dumps(groups), kind), [shape] * len(xs))
        for group in groups:
            expected = reduced([xs[device] for device in group], kind)
            for device in group:
                assert_same_bits(outs[device], expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", KINDS)
def test_special_values(runner_of, dtype, kind):
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 65504.0, 3e38, 1e-40, 6e-8, 5.5]
    with np.errstate(over="ignore"):
        left, right = (
            grid.ravel().astype(numpy_dtype(dtype)) for grid in np.meshgrid(special, special)
        )
    outs = runner_of(2)("all_reduce", [left, right], ("[[0,1]]", kind), [left.shape] * 2)
    expected = reduced([left, right], kind)
    if kind in ("max", "min"):  # either zero is right
        outs = [out + numpy_dtype(dtype).type(0) for out in outs]
        expected = expected + numpy_dtype(dtype).type(0)
    for out in outs:
        assert_same_bits(out, expected)


@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_every_small_float_passes_through(runner_of, dtype):
    """A group of one loads, widens, rounds and stores every bit pattern there is."""
    bits = 8 * numpy_dtype(dtype).itemsize
    patterns = np.arange(1 << bits, dtype=f"uint{bits}").view(numpy_dtype(dtype))
    (out,) = runner_of(1)("all_reduce", [patterns], ("[[0]]", "sum"), [patterns.shape])
    assert_same_bits(out, patterns)


@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_small_floats_round_to_nearest_even(runner_of, dtype):
    rng = np.random.default_rng(1)
    size = 8 * numpy_dtype(dtype).itemsize
    bits = rng.integers(0, 1 << size, (2, 200_000), dtype=f"uint{size}")
    xs = list(bits.view(numpy_dtype(dtype)))
    for kind in ("sum", "prod", "mean"):
        outs = runner_of(2)("all_reduce", xs, ("[[0,1]]", kind), [xs[0].shape] * 2)
        assert_same_bits(outs[1], reduced(xs, kind))


def test_16_bit_floats_are_rounded_once(runner_of):
    """1 + 2^-11 + 2^-11 is 1 + 2^-10 in float32, but 1 when every step rounds to float16."""
    xs = [np.float16([value]) for value in (1.0, 2.0**-11, 2.0**-11)]
    outs = runner_of(3)("all_reduce", xs, ("[[0,1,2]]", "sum"), [(1,)] * 3)
    assert outs[0][0] == np.float16(1 + 2.0**-10)


def test_output_may_be_the_input(runner_of):
    runner = runner_of(4)
    rng = np.random.default_rng(2)
    values = [random_array(rng, (5000,), "float32") for _ in range(4)]
    tensors = [tvm.runtime.tensor(value) for value in values]
    idle = runner.workers.num_workers - 4
    outs = runner.workers.run(
        "test",
        ["distir.test.all_reduce_in_place"] * 4 + [None] * idle,
        [[x, "[[0,1,2,3]]", "sum"] for x in tensors] + [[]] * idle,
    )
    for out in outs[:4]:
        assert_same_bits(out.numpy(), reduced(values, "sum"))


def test_comparison_notices_a_wrong_reduction(runner_of):
    """The control: other kinds, groups and orders than the reference's fail the comparison."""
    rng = np.random.default_rng(3)
    xs = [random_array(rng, (64,), "float32") * 10.0**i for i in range(4)]
    xs = [x.astype("float32") for x in xs]
    expected = reduced(xs, "sum")
    for groups, kind in [("[[0,1,2,3]]", "max"), ("[[0,1],[2,3]]", "sum"), ("[[3,2,1,0]]", "sum")]:
        outs = runner_of(4)("all_reduce", xs, (groups, kind), [(64,)] * 4)
        with pytest.raises(AssertionError):
            assert_same_bits(outs[0], expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
@pytest.mark.parametrize("elements", [1, 0, -1])
def test_results_that_are_written_past_the_caches(runner_of, dtype, elements):
    # From 4 MiB on; sizes that are no whole lines, and parts that begin anywhere.
    shape = ((4 << 20) // numpy_dtype(dtype).itemsize + elements * 9001,)
    rng = np.random.default_rng(2)
    for count in (1, 3):
        xs = [random_array(rng, shape, dtype) for _ in range(count)]
        outs = runner_of(count)(
            "all_reduce", xs, (f"[{list(range(count))}]", "sum"), [shape] * count
        )
        expected = reduced(xs, "sum")
        for out in outs:
            assert_same_bits(out, expected)
