"""Recognising views of a mesh, against enumeration of all lists of references."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.native.library import call

from .model import (
    all_axis_lists,
    disjoint,
    merged,
    mesh_of,
    meshes,
    num_shards,
    shard_indices,
    views,
)


@pytest.mark.parametrize(
    ("shape", "ids", "expected"),
    [
        ((4, 2), (0, 4, 1, 5, 2, 6, 3, 7), (((1, 1, 4),), ((0, 1, 2),))),
        ((2, 2, 2), range(8), (((0, 1, 2),), ((1, 1, 2),), ((1, 2, 2),))),
        ((8,), range(8), (((0, 1, 2), (1, 1, 4)),)),
        ((2, 1, 4), range(8), (((0, 1, 2),), (), ((1, 1, 4),))),
        ((2, 4), range(8), (((0, 1, 2),), ((1, 1, 4),))),
    ],
)
def test_worked_examples(shape, ids, expected):
    assert call("Relate", shape, tuple(ids), *mesh_of(2, 4)) == expected


@given(meshes().flatmap(lambda m: st.tuples(st.just(m), views(m))))
def test_axes_of_a_view_are_found(case):
    root, (view, axes) = case
    assert call("Relate", *view, *root) == tuple(merged(part) for part in axes)


@given(meshes().flatmap(lambda m: st.tuples(views(m), views(m))))
def test_views_of_one_mesh_relate_only_as_their_devices_say(case):
    (view, _), (root, _) = case
    check_relation(view, root)


@given(
    st.data(),
    meshes([(8,), (2, 4), (12,), (3, 2)]).flatmap(lambda m: st.tuples(st.just(m), views(m))),
)
def test_view_with_two_devices_swapped_is_judged_by_its_meaning(data, case):
    root, ((shape, ids), _) = case
    i, j = data.draw(st.permutations(range(len(ids))))[:2]
    swapped = list(ids)
    swapped[i], swapped[j] = ids[j], ids[i]
    check_relation((shape, tuple(swapped)), root)


@st.composite
def any_order(draw):
    shapes = draw(st.sampled_from([[(8,), (2, 4), (4, 2), (2, 2, 2)], [(6,), (2, 3), (3, 2)]]))
    root_shape, view_shape = draw(st.sampled_from(shapes)), draw(st.sampled_from(shapes))
    ids = draw(st.permutations(range(math.prod(root_shape))))
    return (view_shape, tuple(ids)), mesh_of(*root_shape)


@given(any_order())
def test_any_order_of_devices_is_judged_by_its_meaning(case):
    check_relation(*case)


@pytest.mark.parametrize("root_shape", [(4,), (2, 2), (1, 4)])
@pytest.mark.parametrize("view_shape", [(4,), (2, 2), (4, 1), (2, 1, 2)])
def test_all_orders_of_four_devices(root_shape, view_shape):
    for ids in itertools.permutations(range(4)):
        check_relation((view_shape, ids), mesh_of(*root_shape))


@pytest.mark.parametrize(("root_shape", "orders"), [((6,), 2), ((2, 3), 1), ((3, 2), 1)])
def test_all_orders_of_six_devices(root_shape, orders):
    root = mesh_of(*root_shape)
    all_ids = itertools.permutations(range(6))
    assert sum(check_relation(((2, 3), ids), root) for ids in all_ids) == orders


def check_relation(view, root):
    """Compares with what enumeration finds; returns whether the mesh is a view."""
    found = [
        enumerate_lists(root[0]).get(shards_in_root_order(view, axis, root))
        for axis in range(len(view[0]))
    ]
    # Axes that are no parts of one split can still tell all devices apart: c % 2 and c % 3 of 6.
    is_view = None not in found and all(
        disjoint(root, a, b)
        for left, right in itertools.combinations(found, 2)
        for a in left
        for b in right
    )
    assert call("Relate", *view, *root) == (tuple(found) if is_view else None)
    return is_view


def shards_in_root_order(view, axis, root):
    """The coordinate along a view axis of each device of the root; None where it is in no view."""
    extent = view[0][axis]
    coordinates = shard_indices(view, ((axis, 1, extent),))
    by_device = dict(zip(view[1], coordinates, strict=True))
    return tuple(by_device.get(device_id) for device_id in root[1])


@functools.cache
def enumerate_lists(shape):
    """Canonical lists by the shard indices that they give, in root order."""
    return {shard_indices(mesh_of(*shape), axes): merged(axes) for axes in all_axis_lists(shape)}


@pytest.mark.parametrize(
    ("view", "root"),
    [
        (mesh_of(3, 2), mesh_of(2, 3)),  # 2 cuts across the axis of 3
        (mesh_of(2), mesh_of(4)),
        (((4,), (1, 2, 3, 4)), mesh_of(4)),
        (((4,), (1, 0, 3, 2)), mesh_of(4)),
        (((4,), (0, 1, 3, 2)), mesh_of(2, 2)),
        (((8,), (0, 1, 2, 3, 4, 5, 7, 6)), mesh_of(8)),
        (((8,), (0, 2, 1, 3, 4, 6, 7, 5)), mesh_of(8)),
        (((2, 4), (0, 1, 2, 3, 4, 6, 5, 7)), mesh_of(2, 2, 2)),
    ],
)
def test_what_is_no_view_is_refused(view, root):
    assert call("Relate", *view, *root) is None


@given(meshes([(2, 2, 3), (4, 3), (2, 4)]).flatmap(lambda m: st.tuples(st.just(m), views(m))))
def test_relation_covers_the_root_once(case):
    root, (view, _) = case
    related = call("Relate", *view, *root)
    parts = tuple(ref for axes in related for ref in axes)
    assert num_shards(parts) == len(root[1])
    assert len(set(shard_indices(root, parts))) == len(root[1])
