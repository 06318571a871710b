"""Shardings as placements, one tensor dimension or none per mesh axis, and back."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.native.library import call

from .model import blocks, merged, mesh_of, meshes, sharding_of, shardings, views

SHAPES = [(4,), (2, 4), (3, 2), (2, 3, 5), (2, 2, 2, 2), (2, 1, 3)]
sharded_meshes = meshes(SHAPES).flatmap(
    lambda m: st.tuples(st.just(m), shardings(m[0], partial=True))
)


def placed_blocks(mesh, placement, ndim):
    """Block of every device under a placement; mesh axes nest in mesh order."""
    dims = tuple(
        tuple((axis, 1, mesh[0][axis]) for axis, d in enumerate(placement) if d == dim)
        for dim in range(ndim)
    )
    return blocks(mesh, dims)


def possible_placements(view, root, dims):
    """All placements on `view` with the blocks of a sharding on `root`, by trying."""
    wanted = blocks(root, dims)
    choices = [(-1,) if extent == 1 else range(-1, len(dims)) for extent in view[0]]
    return [
        placement
        for placement in itertools.product(*choices)
        if placed_blocks(view, placement, len(dims)) == wanted
    ]


@given(sharded_meshes)
def test_placement_gives_every_device_its_block(case):
    root, sharding = case
    shape, ids, placement = call("ToPlacement", *root, sharding)
    assert placed_blocks((shape, ids), placement, len(sharding[0])) == blocks(root, sharding[0])


@given(sharded_meshes)
def test_placement_and_back_is_the_canonical_sharding(case):
    root, (dims, partial, reduction) = case
    shape, ids, placement = call("ToPlacement", *root, (dims, partial, reduction))
    back = call("FromPlacement", shape, ids, placement, len(dims), *root)
    assert back == sharding_of(*(merged(axes) for axes in dims))
    assert call("ToPlacementOn", shape, ids, *root, (dims, partial, reduction)) == placement


@given(sharded_meshes)
def test_root_is_used_exactly_where_it_can_express_the_sharding(case):
    root, sharding = case
    shape, ids, placement = call("ToPlacement", *root, sharding)
    possible = possible_placements(root, root, sharding[0])
    assert ((shape, ids) == root) == bool(possible)
    assert not possible or possible == [placement]


@given(sharded_meshes)
def test_view_is_transposed_only_where_a_dimension_nests_against_the_root(case):
    root, sharding = case
    _, ids, _ = call("ToPlacement", *root, sharding)
    against = any(list(merged(axes)) != sorted(merged(axes)) for axes in sharding[0])
    assert (ids != root[1]) == against


@given(sharded_meshes)
def test_view_is_the_coarsest(case):
    root, sharding = case
    shape, ids, placement = call("ToPlacement", *root, sharding)
    if (shape, ids) == root:
        return
    parts = call("Relate", shape, ids, *root)
    assert 1 not in shape
    assert all(len(axes) == 1 for axes in parts)  # no view axis mixes axes of the root
    for i, j in itertools.pairwise(range(len(shape))):
        mergeable = len(merged(parts[i] + parts[j])) == 1
        assert not (mergeable and placement[i] == placement[j])


@given(meshes(SHAPES).flatmap(lambda m: st.tuples(st.just(m), views(m), shardings(m[0], ndim=2))))
def test_placement_on_a_view_exists_exactly_if_trying_finds_it(case):
    root, (view, _), sharding = case
    possible = possible_placements(view, root, sharding[0])
    found = call("ToPlacementOn", *view, *root, sharding)
    assert ([] if found is None else [found]) == possible


@given(st.data(), meshes(SHAPES).flatmap(lambda m: st.tuples(st.just(m), views(m))))
def test_any_placement_on_any_view_is_understood(data, case):
    root, (view, _) = case
    ndim = data.draw(st.integers(0, 3))
    placement = tuple(data.draw(st.integers(-1, ndim - 1)) for _ in view[0])
    dims, partial, reduction = call("FromPlacement", *view, placement, ndim, *root)
    assert blocks(root, dims) == placed_blocks(view, placement, ndim)
    assert dims == tuple(merged(axes) for axes in dims)
    assert (partial, reduction) == ((), "none")


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        # The root itself, also with several axes on one dimension.
        ((((0, 1, 2),), ((1, 1, 4),)), ((2, 4), tuple(range(8)), (0, 1))),
        (((), ((0, 1, 2), (1, 1, 4))), ((2, 4), tuple(range(8)), (1, 1))),
        (((), ((1, 1, 2), (1, 2, 2))), ((2, 4), tuple(range(8)), (-1, 1))),
        # A split.
        ((((1, 2, 2),), ()), ((2, 2, 2), tuple(range(8)), (-1, -1, 0))),
        ((((1, 2, 2),), ((1, 1, 2),)), ((2, 2, 2), tuple(range(8)), (-1, 1, 0))),
        # Transposed: y before x; both halves of y, swapped.
        ((((1, 1, 4), (0, 1, 2)), ()), ((4, 2), (0, 4, 1, 5, 2, 6, 3, 7), (0, 0))),
        ((((1, 2, 2), (1, 1, 2)), ()), ((2, 2, 2), (0, 4, 2, 6, 1, 5, 3, 7), (0, 0, -1))),
    ],
)
def test_worked_examples(dims, expected):
    assert call("ToPlacement", *mesh_of(2, 4), sharding_of(*dims)) == expected


def test_placement_on_a_mesh_that_is_no_view_does_not_exist():
    assert call("ToPlacementOn", *mesh_of(3, 2), *mesh_of(2, 3), sharding_of(())) is None


@pytest.mark.parametrize(
    ("view", "placement", "message"),
    [
        (
            mesh_of(2, 4),
            (0,),
            r"a placement with 1 entry does not fit the mesh \(x=2, y=4\) of dev",
        ),
        (
            mesh_of(2, 4),
            (0, 2),
            r"axis 1 \('y'\) of the mesh is placed on dimension 2 of a tensor of 2 dimensions",
        ),
        (mesh_of(2, 4), (-2, 0), r"axis 0 \('x'\) of the mesh is placed on dimension -2 of"),
        (
            ((2, 4), (1, 0, 2, 3, 4, 5, 6, 7)),
            (0, 1),
            r"the mesh \(x=2, y=4\) of devices 1, 0, 2, 3, 4, 5, 6, 7 is not a view of the mesh "
            r"\(x=2, y=4\) of devices 0\.\.7",
        ),
    ],
)
def test_bad_placement_is_an_error_that_names_the_culprit(view, placement, message):
    with pytest.raises(ValueError, match=message):
        call("FromPlacement", *view, placement, 2, *mesh_of(2, 4))
