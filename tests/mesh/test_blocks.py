"""Tests of the Python function for the block of an array on a device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir_ext.mesh.blocks import blocks_of, shard_shape

from .model import blocks, meshes

SHAPES = [(1,), (4,), (3, 2), (2, 4), (2, 2, 2, 2), (2, 3, 5)]
NDIM = 3


@given(
    meshes(SHAPES).flatmap(
        lambda mesh: st.tuples(
            st.just(mesh), st.tuples(*[st.integers(-1, NDIM - 1) for _ in mesh[0]])
        )
    )
)
def test_mesh_axes_nest_in_mesh_order(case):
    (shape, device_ids), placement = case
    dims = tuple(
        tuple((axis, 1, shape[axis]) for axis, d in enumerate(placement) if d == dim)
        for dim in range(NDIM)
    )
    found = blocks_of(shape, device_ids, placement, NDIM)
    # The model gives (part, number of parts) for each dimension.
    of_device = {
        device: tuple(zip(block, found.parts, strict=True))
        for device, block in found.of_device.items()
    }
    assert of_device == blocks((shape, device_ids), dims)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=3))
def test_a_shard_is_the_least_that_covers_the_array(dims):
    shape, parts = [size for size, _ in dims], [count for _, count in dims]
    for size, count, local in zip(shape, parts, shard_shape(shape, parts), strict=True):
        assert local * count >= size > (local - 1) * count


@pytest.mark.parametrize(
    ("shape", "parts", "message"),
    [
        ((8, 4), (2,), "2 dimensions is cut along 1"),
        ((8,), (0,), "cannot be cut into 0 parts"),
        ((-1,), (2,), "size -1 cannot be cut"),
        ((2**63 - 1,), (2,), "cannot be cut into 2 parts"),
    ],
)
def test_what_no_array_is_cut_into_is_refused(shape, parts, message):
    with pytest.raises(ValueError, match=message):
        shard_shape(shape, parts)


def test_a_placement_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="dimension 2 of a tensor of 2 dimensions"):
        blocks_of((2,), (0, 1), (2,), 2)
    with pytest.raises(ValueError, match="device id 0 occurs twice"):
        blocks_of((2,), (0, 0), (0,), 1)
