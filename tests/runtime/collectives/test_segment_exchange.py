"""segment_exchange: elements that move along one dimension, against NumPy."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from tests.abi.plans import layout

from distir_ext.session.session import WorkerError


def plan_of(segments, source_size=8, target_size=8, fill="0"):
    """Along the columns of a matrix that lies on two devices."""
    return {
        "channel": 0,
        "dim": 1,
        "source_size": source_size,
        "target_size": target_size,
        "fill": fill,
        "segments": segments,
        "source": layout([0, 1], [1, 2]),
        "target": layout([0, 1], [1, 2]),
    }


# Two shards of four columns get one more on either side.
HALO = plan_of([[0, 1, 1, 5], [3, 6, 1, 5]], target_size=12)


def run(runner, plan, arrays, shapes):
    return runner("segment_exchange", arrays, (json.dumps(plan),), shapes)


def halves(rows, dtype="float32"):
    whole = (np.arange(rows * 8).reshape(rows, 8) % 97).astype(getattr(ml_dtypes, dtype, dtype))
    return whole, [np.ascontiguousarray(part) for part in np.split(whole, 2, axis=1)]


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        ("float32", "-3.4028234663852886e38"),
        ("float64", "0.1"),
        ("float16", "-65504"),
        ("bfloat16", "-1.5"),
        ("float8_e4m3fn", "-1.5"),
        ("float8_e5m2", "-1.5"),
        ("int8", "-128"),
        ("uint8", "255"),
        ("int64", "-9223372036854775808"),
        ("bool", "1"),
    ],
)
def test_halo_with_fill(runner_of, dtype, fill):
    whole, parts = halves(3, dtype)
    value = (
        np.array(float(fill)).astype(whole.dtype)
        if dtype == "bool"
        else whole.dtype.type(float(fill) if "." in fill or "float" in dtype else int(fill))
    )
    padded = np.pad(whole, ((0, 0), (1, 1)), constant_values=value)
    for rows in (3, 0):
        given = [part[:rows] for part in parts]
        got = run(runner_of(2), {**HALO, "fill": fill}, given, [(rows, 6)] * 2)
        np.testing.assert_array_equal(got[0], padded[:rows, :6])
        np.testing.assert_array_equal(got[1], padded[:rows, 4:])


def test_steps_and_repetition(runner_of):
    whole, parts = halves(2)
    # Columns 7 5 3 1 on device 0; column 2 three times and one place of nobody on device 1.
    plan = plan_of([[7, 0, -2, 4], [2, 5, 0, 3]], fill="9")
    got = run(runner_of(2), plan, parts, [(2, 4)] * 2)
    np.testing.assert_array_equal(got[0], whole[:, [7, 5, 3, 1]])
    np.testing.assert_array_equal(got[1][:, 0], [9, 9])
    np.testing.assert_array_equal(got[1][:, 1:], whole[:, [2, 2, 2]])


def test_comparison_notices_a_wrong_plan(runner_of):
    """The control: the neighbour's other end."""
    whole, parts = halves(3)
    wrong = {**HALO, "segments": [[0, 1, 1, 4], [7, 5, 1, 1], [3, 6, 1, 5]]}
    got = run(runner_of(2), wrong, parts, [(3, 6)] * 2)
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(got[0][:, 1:], whole[:, :5])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 2}, r"segment plan\.dim: is no dimension"),
        ({"fill": "nought"}, r"segment plan\.fill: is not a number"),
        ({"segments": [[7, 0, 1, 2]]}, r"segment plan\.segments\[0\]: lies outside of its"),
        ({"segments": [[0, 1, 3]]}, r"segment plan\.segments\[0\]: has not four integers"),
        ({"segments": [[0, 0, 1, 2], [4, 1, 1, 2]]}, "give a place twice"),
        ({"source_size": 9}, r"segment plan\.source_size: does not divide into 2 blocks"),
        ({"source": layout([2, 3], [1, 2])}, "does not have device [01] on both sides"),
        ({"target": layout([0, 1], [2, 1])}, "differs from the source in another dimension"),
        ({"source_size": 10}, r"the plan moves along dimension 1 of 2, which has 5 elements"),
        ({"target_size": 14}, r"out has shape"),
    ],
)
def test_refuses(fresh_threads, changes, message):
    _, parts = halves(3)
    with pytest.raises(WorkerError, match=message):
        run(fresh_threads(2), {**HALO, **changes}, parts, [(3, 6)] * 2)
