"""Lists of devices as iotas and back."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import distir_ext as dx
from distir_ext.interop import gspmd

# The ten cases of https://github.com/pytorch/xla/issues/9348: a mesh (x=2, y=4), a matrix, and
# what the dims, which had no subgroups there, and the permutation of [2,4] were found to be.
THREAD = [
    (("x", "y"), (2, 4), (0, 1)),
    (("y", "x"), (4, 2), (1, 0)),
    (("x", None), (2, 1, 4), (0, 1)),
    (("y", None), (4, 1, 2), (1, 0)),
    ((None, "x"), (1, 2, 4), (0, 1)),
    ((None, "y"), (1, 4, 2), (1, 0)),
    ((("x", "y"), None), (8, 1), (0, 1)),
    ((("y", "x"), None), (8, 1), (1, 0)),
    ((None, ("x", "y")), (1, 8), (0, 1)),
    ((None, ("y", "x")), (1, 8), (1, 0)),
]


@pytest.mark.parametrize(("dims", "tile_dims", "perm"), THREAD)
def test_cases_of_the_thread(dims, tile_dims, perm):
    mesh = dx.Mesh((2, 4), ("x", "y"))
    sharding = gspmd.HloSharding.from_mesh_dims(mesh, dims)
    order = np.arange(8).reshape(2, 4).transpose(perm).reshape(8)
    assert sharding.tile_dims == tile_dims
    assert sharding.device_list == tuple(order)
    assert sharding.devices == gspmd.Iota((2, 4), perm).canonical()
    assert sharding.to_mesh_dims(mesh) == (mesh, dims)


def test_three_axes_of_the_thread():
    """Consecutive axes merge: the answer there, [2,4]T(1,0), has a mistake that was admitted."""
    mesh = dx.Mesh((2, 2, 2), ("x", "y", "z"))
    sharding = gspmd.HloSharding.from_mesh_dims(mesh, ("z", ("x", "y")))
    order = np.arange(8).reshape(2, 2, 2).transpose(2, 0, 1).reshape(8)
    assert sharding.device_list == tuple(order)
    assert str(sharding) == "{devices=[2,4]<=[4,2]T(1,0)}"
    assert gspmd.parse("{devices=[2,4]<=[2,2,2]T(2,0,1)}").canonical() == sharding


def test_example_at_the_end_of_the_thread():
    first = "{devices=[2,2,4]0,8,4,12,1,9,5,13,2,10,6,14,3,11,7,15}"
    second = "{devices=[2,2,4]<=[2,2,4]T(2,1,0)}"
    assert str(gspmd.parse(first).to_v2()) == second
    assert str(gspmd.parse(second).to_v1()) == first


SHAPES = [
    shape
    for rank in range(1, 5)
    for shape in itertools.product((1, 2, 3, 4), repeat=rank)
    if math.prod(shape) <= 24
]


def test_every_transposed_iota_is_found_again():
    """``numpy.arange(n).reshape(reshape_dims).transpose(perm).reshape(n)`` of small shapes."""
    forms = {}
    for shape in SHAPES:
        for perm in itertools.permutations(range(len(shape))):
            order = np.arange(math.prod(shape)).reshape(shape).transpose(perm).reshape(-1)
            written = gspmd.Iota(shape, perm)
            assert written.devices == tuple(order)
            found = gspmd.find_iota(order)
            assert found.devices == tuple(order)
            assert found == written.canonical() == found.canonical()
            forms.setdefault(tuple(order), set()).add(found)
            assert len(found.reshape_dims) <= max(1, len([size for size in shape if size > 1]))
    assert all(len(found) == 1 for found in forms.values())  # one form for one order
    assert len(forms) > 100


def test_only_transposed_iotas_are_found():
    """Of all orders of six devices; nine factorisations and permutations give these."""
    iotas = {
        tuple(np.arange(6).reshape(shape).transpose(perm).reshape(-1))
        for shape in [(6,), (2, 3), (3, 2)]
        for perm in itertools.permutations(range(len(shape)))
    }
    for order in itertools.permutations(range(6)):
        assert (gspmd.find_iota(order) is not None) == (order in iotas)


@given(st.permutations(list(range(12))), st.sampled_from([(12,), (3, 4), (2, 2, 3)]))
def test_other_orders_stay_lists(order, tile_dims):
    sharding = gspmd.HloSharding("tiled", tile_dims, tuple(order))
    assert sharding.canonical().to_v1() == sharding
    if gspmd.find_iota(order) is None:
        assert sharding.canonical() == sharding
        with pytest.raises(ValueError, match="no version 2 has the devices"):
            sharding.to_v2()


def test_a_million_devices_are_fast():
    order = gspmd.Iota((2,) * 20, tuple(reversed(range(20))))
    assert gspmd.find_iota(order.devices) == order


def test_tuples_and_words_have_all_versions():
    sharding = gspmd.parse("{{devices=[4]<=[2,2]T(1,0)}, {replicated}, {maximal device=1}}")
    assert str(sharding.to_v1()) == "{{devices=[4]0,2,1,3}, {replicated}, {maximal device=1}}"
    assert sharding.to_v1().to_v2() == sharding


def test_replicas_are_sorted():
    """XLA does so, too: which replica comes first says nothing."""
    texts = [
        "{devices=[2,4]<=[8] last_tile_dim_replicate}",
        "{devices=[2,2,2]<=[2,2,2]T(0,2,1) last_tile_dims={replicated, replicated}}",
        "{devices=[2,4]3,1,2,0,7,5,4,6 last_tile_dim_replicate}",
    ]
    assert {str(gspmd.parse(text).canonical()) for text in texts} == {
        "{devices=[2,4]<=[8] last_tile_dim_replicate}"
    }


def test_iotas_that_are_none():
    with pytest.raises(ValueError, match="reshape dims are positive sizes"):
        gspmd.Iota((2, 0), (0, 1))
    with pytest.raises(ValueError, match="is no permutation of the 2 reshape dims"):
        gspmd.Iota((2, 2), (0, 2))
