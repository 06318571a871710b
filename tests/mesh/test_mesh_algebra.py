"""Meshes and the groups that axes form on them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.native.library import call

from .model import axis_lists, merged, mesh_of, meshes, num_shards, shard_indices


@given(meshes())
def test_coordinates_and_positions_agree_with_numpy(mesh):
    shape, ids = mesh
    assert call("MeshSize", *mesh) == len(ids)
    for position, device_id in enumerate(ids):
        expected = tuple(int(c) for c in np.unravel_index(position, shape))
        assert call("Coordinates", *mesh, position) == expected
        assert call("PositionOf", *mesh, device_id) == position
    assert call("PositionOf", *mesh, max(ids) + 1) == -1
    assert call("PositionOf", *mesh, -1) == -1


def test_full_axis_is_the_whole_axis():
    assert call("FullAxis", *mesh_of(2, 4), 1) == (1, 1, 4)


@given(meshes().flatmap(lambda m: st.tuples(st.just(m), axis_lists(m[0]))))
def test_shard_indices_agree_with_numpy(case):
    mesh, axes = case
    assert call("ShardIndices", *mesh, axes) == shard_indices(mesh, axes)


@given(meshes().flatmap(lambda m: st.tuples(st.just(m), axis_lists(m[0]))))
def test_groups_differ_only_along_their_axes(case):
    mesh, axes = case
    ids = mesh[1]
    groups = call("DeviceGroups", *mesh, axes)
    assert sorted(d for group in groups for d in group) == sorted(ids)
    index = dict(zip(ids, shard_indices(mesh, axes), strict=True))
    rest = call("Complement", *mesh, axes)
    other = dict(zip(ids, shard_indices(mesh, rest), strict=True))
    for group in groups:
        assert [index[d] for d in group] == list(range(num_shards(axes)))
        assert len({other[d] for d in group}) == 1
    firsts = [ids.index(group[0]) for group in groups]
    assert firsts == sorted(firsts)
    assert call("DeviceGroups", *mesh, merged(axes)) == groups


def test_groups_of_a_worked_example():
    assert call("DeviceGroups", *mesh_of(2, 4), [[1, 1, 4]]) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert call("DeviceGroups", *mesh_of(2, 4), [[1, 2, 2], [0, 1, 2]]) == (
        (0, 4, 1, 5),
        (2, 6, 3, 7),
    )


@pytest.mark.parametrize(
    ("mesh", "text"),
    [
        (((2, 2), (0, 1, 2, 3)), "(x=2, y=2) of devices 0..3"),
        (((2, 2), (4, 5, 6, 7)), "(x=2, y=2) of devices 4..7"),
        (((2, 2), (0, 2, 1, 3)), "(x=2, y=2) of devices 0, 2, 1, 3"),
        (((1,), (5,)), "(x=1) of devices 5"),
    ],
)
def test_text_of_a_mesh(mesh, text):
    assert call("MeshToString", *mesh) == text


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        (((2, 0), ()), r"axis 1 \('y'\) of the mesh has size 0; it must be positive"),
        (((-2,), (0, 1)), r"axis 0 \('x'\) of the mesh has size -2; it must be positive"),
        (((2, 2), (0, 1, 2)), r"mesh \(x=2, y=2\) of devices 0\.\.2 has 3 device ids, not one for"),
        (((2**32, 2**32), (0,)), "has 1 device id, not one for each device of its shape"),
        (((2,), (0, -1)), "device id -1 is negative"),
        (((4,), (0, 1, 2, 1)), "device id 1 occurs twice in a mesh"),
    ],
)
def test_bad_mesh_is_an_error_that_names_the_culprit(mesh, message):
    with pytest.raises(ValueError, match=message):
        call("CheckMesh", *mesh)
