"""One view for many lists, against a search through all views."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.native.library import call

from .model import axis_lists, digits, mesh_of, sharding_of, splits


@pytest.mark.parametrize(
    ("shape", "lists", "expected"),
    [
        ((4, 2), ["x", "x1", "x2 y"], ((2, 2, 2), range(8))),
        ((4, 2), ["y x"], ((2, 4), (0, 2, 4, 6, 1, 3, 5, 7))),
        ((2, 2), ["x", "y"], ((2, 2), range(4))),
        ((2, 4), [], ((2, 4), range(8))),
        ((2, 2), ["x y", "y x"], None),
        ((6,), ["x1", "x of 3"], None),
    ],
)
def test_worked_examples(shape, lists, expected):
    refs = {
        "x": (0, 1, shape[0]),
        "y": (1, 1, shape[-1]),
        "x1": (0, 1, 2),
        "x2": (0, 2, 2),
        "x of 3": (0, 1, 3),
    }
    axes = [
        tuple(refs[name] for name in ([text] if text in refs else text.split())) for text in lists
    ]
    found = call("CommonView", *mesh_of(*shape), axes)
    assert found == (None if expected is None else (expected[0], tuple(expected[1])))


@functools.cache
def all_views(shape):
    """Every cut of the axes in every order."""
    root = mesh_of(*shape)
    views = []
    for cut in itertools.product(*(splits(size) for size in shape)):
        parts = [(axis, *part) for axis, split in enumerate(cut) for part in split]
        for order in itertools.permutations(parts):
            ids = np.lexsort([digits(root, ref) for ref in reversed(order)])
            views.append((tuple(size for _, _, size in order), tuple(int(i) for i in ids)))
    return views


def names_all(view, root, lists):
    return all(call("ToPlacementOn", *view, *root, sharding_of(axes)) is not None for axes in lists)


@given(
    st.sampled_from([(4,), (6,), (2, 2), (4, 2), (3, 2)]).flatmap(
        lambda shape: st.tuples(st.just(shape), st.lists(axis_lists(shape), max_size=4))
    )
)
def test_a_view_names_every_list_and_none_is_missed(case):
    shape, lists = case
    root = mesh_of(*shape)
    found = call("CommonView", *root, lists)
    if found is None:
        assert not any(names_all(view, root, lists) for view in all_views(shape))
    else:
        assert names_all(found, root, lists)
