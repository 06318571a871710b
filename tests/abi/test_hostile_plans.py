"""Plans that nobody compiled: an error that says what is wrong with them, in no time."""

from __future__ import annotations

import json

import pytest
from tests.native.library import call

from .plans import layout

MOST = 2**63 - 1


def parts_of(kind, plan):
    text = plan if isinstance(plan, str) else json.dumps(plan)
    return call(f"{kind}Parts", text)


def segment_plan(**changes):
    two = layout([0, 1], [2])
    plan = {"channel": 0, "dim": 0, "source_size": 8, "target_size": 8, "fill": "0"}
    return {**plan, "segments": [[0, 0, 1, 8]], "source": two, "target": two, **changes}


def transfer_plan(**changes):
    two = layout([0, 1], [2])
    return {"channel": 0, "shape": [8], "source": two, "target": two, **changes}


def devices(*runs, dims=()):
    return {"devices": list(runs), "dims": list(dims)}


OUTSIDE = r"segments\[0\]: lies outside of its tensors"
NO_RUN = r"devices\[0\]: is not a run of devices"

SEGMENT_PLANS = {
    "a count that wraps": ({"segments": [[0, 0, 1, MOST]]}, OUTSIDE),
    "a count and a place that wrap": ({"segments": [[0, 2, 1, MOST]]}, OUTSIDE),
    "a step that wraps": ({"segments": [[0, 0, 2**61, 8]]}, OUTSIDE),
    "a step back that wraps": ({"segments": [[4, 0, -(2**63), 2]]}, OUTSIDE),
    "a step of one element": ({"segments": [[0, 0, MOST, 1]]}, OUTSIDE),
    "a source beyond": ({"segments": [[MOST, 0, 1, 1]]}, OUTSIDE),
    "a target beyond": ({"segments": [[0, MOST, 1, 1]]}, OUTSIDE),
    "nothing": ({"segments": [[0, 0, 1, 0]]}, OUTSIDE),
    "a negative count": ({"segments": [[0, 0, 1, -(2**63)]]}, OUTSIDE),
    "a size of everything": ({"source_size": MOST - 1}, "source_size: is not a number from 0"),
    "a negative size": ({"target_size": -8}, "target_size: is not a number from 0"),
    "no dimension": ({"dim": 1}, "dim: is no dimension"),
    "a dimension before the first": ({"dim": -1}, "dim: is no dimension"),
}
TRANSFER_PLANS = {
    "a shape of everything": ({"shape": [MOST]}, r"shape\[0\]: is not a number from 0"),
    "a negative shape": ({"shape": [-4]}, r"shape\[0\]: is not a number from 0"),
    "more devices than there are": ({"source": devices([0, MOST, 1], dims=[[]])}, NO_RUN),
    "a device more than there can be": (
        {"source": devices([0, (1 << 20) + 1, 1], dims=[[]])},
        NO_RUN,
    ),
    "an element more than there can be": ({"shape": [2**48 + 1]}, f"from 0 to {2**48}"),
    "a dimension more than there can be": (
        {"shape": [1] * 65, "source": devices([0, 1, 1], dims=[[]] * 65)},
        "has 65 lists, more than there can be",
    ),
    "16 million devices": ({"source": devices([0, 1 << 24, 1], dims=[[]])}, NO_RUN),
    "ids that wrap": ({"source": devices([2**31, 2**20, MOST], dims=[[]])}, NO_RUN),
    "ids that wrap back": ({"source": devices([0, 3, -(2**63)], dims=[[]])}, NO_RUN),
    "a negative id": ({"source": devices([-1, 1, 1], dims=[[]])}, NO_RUN),
    "a digit that wraps": (
        {"source": devices([0, 2, 1], dims=[[[2**32, 2**32]]])},
        "is not a digit of the position",
    ),
    "a digit of nothing": (
        {"source": devices([0, 2, 1], dims=[[[0, 2]]])},
        "is not a digit of the position",
    ),
    "many dimensions": (
        {"shape": [1] * 99, "source": devices([0, 1, 1], dims=[[]] * 99)},
        "has 99 lists, more than there can be",
    ),
}


@pytest.mark.parametrize("case", SEGMENT_PLANS)
def test_segment_plan(case):
    changes, message = SEGMENT_PLANS[case]
    with pytest.raises(ValueError, match=f"segment plan.*{message}"):
        parts_of("Segment", segment_plan(**changes))


@pytest.mark.parametrize("case", TRANSFER_PLANS)
def test_transfer_plan(case):
    changes, message = TRANSFER_PLANS[case]
    with pytest.raises(ValueError, match=f"transfer plan.*{message}"):
        parts_of("Transfer", transfer_plan(**changes))


def test_the_plans_that_were_changed_are_right():
    assert parts_of("Segment", segment_plan())
    assert parts_of("Transfer", transfer_plan())


def test_the_largest_plans():
    assert parts_of("Transfer", transfer_plan(shape=[2**48]))
    one = devices([0, 1, 1], dims=[[]] * 64)
    assert parts_of("Transfer", transfer_plan(shape=[1] * 64, source=one, target=one))


@pytest.mark.parametrize("bracket", ["[", '{"a":', '["[\\"", ['])
def test_text_that_is_nested_deep(bracket):
    """Two hundred thousand levels used up the stack."""
    for levels in (65, 200_000):
        with pytest.raises(ValueError, match="nested more than 64 levels deep"):
            parts_of("Segment", bracket * levels)


def test_brackets_in_text_are_not_levels():
    with pytest.raises(ValueError, match="segment plan: is not an object"):
        parts_of("Segment", json.dumps('[\\"' * 1000))


def test_digits_of_one_value_take_no_time():
    dims = [[[1, 1]] * 20_000 + [[1, 2]]]
    assert parts_of("Transfer", transfer_plan(source=devices([0, 2, 1], dims=dims)))
