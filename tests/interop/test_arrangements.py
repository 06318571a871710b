"""One mesh for many lists of devices."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import distir_ext as dx
from distir_ext.interop._arrangements import Arrangement, CommonMesh


def common(*arrangements):
    mesh = CommonMesh(arrangements[0].devices)
    for each in arrangements:
        each.check()
        mesh.add(each)
    return mesh


def groups_of(mesh, dims):
    """By definition: which devices have which shard, for dims on a mesh."""
    sizes = dict(zip(mesh.axis_names, mesh.shape, strict=True))
    shards = tuple(math.prod(sizes[axis] for axis in axes) for axes in dims)
    groups = {index: [] for index in itertools.product(*map(range, shards))}
    ids = np.reshape(mesh.device_ids, mesh.shape)
    for place in itertools.product(*map(range, mesh.shape)):
        at = dict(zip(mesh.axis_names, place, strict=True))
        index = []
        for axes in dims:
            number = 0
            for axis in axes:
                number = number * sizes[axis] + at[axis]
            index.append(number)
        groups[tuple(index)].append(int(ids[place]))
    return Arrangement(shards, tuple(tuple(sorted(group)) for group in groups.values()))


def test_digits_become_axes():
    w = Arrangement((4,), ((0,), (1,), (2,), (3,)))
    x = Arrangement((2,), ((0, 1), (2, 3)))
    for order in itertools.permutations([w, x]):
        mesh = common(*order)
        assert mesh.mesh() == dx.Mesh(x=2, y=2)
        assert mesh.axes_of(w) == [("x", "y")]
        assert mesh.axes_of(x) == [("x",)]


def test_devices_in_any_order():
    x = Arrangement((3,), ((5,), (1,), (4,)))
    assert common(x).mesh() == dx.Mesh((3,), ("x",), device_ids=(5, 1, 4))


def test_replicas_get_an_axis():
    x = Arrangement((2,), ((0, 2, 4), (1, 3, 5)))
    assert common(x).mesh().shape == (3, 2)
    assert CommonMesh([3, 4]).mesh() == dx.Mesh((2,), ("x",), device_ids=(3, 4))
    assert CommonMesh([7]).mesh() == dx.Mesh((1,), ("x",), device_ids=(7,))


@pytest.mark.parametrize(
    "other",
    [
        Arrangement((2,), ((0, 1, 2), (3, 4, 5))),  # the major half of what (3,) cuts in thirds
        Arrangement((6,), ((0,), (2,), (1,), (3,), (4,), (5,))),
        Arrangement((3,), ((0, 2), (1, 3), (4, 5))),
    ],
)
def test_no_common_mesh(other):
    mesh = common(Arrangement((3,), ((0, 1), (2, 3), (4, 5))))
    before = mesh.mesh()
    with pytest.raises(ValueError, match="do not go with those of tensors before it"):
        mesh.add(other)
    assert mesh.mesh() == before


def test_what_no_mesh_has():
    with pytest.raises(ValueError, match="its shards lie on 1 to 2 devices"):
        Arrangement((2,), ((0, 1), (2,))).check()
    with pytest.raises(ValueError, match="device 1 has two of its shards"):
        Arrangement((2,), ((0, 1), (1, 2))).check()


@st.composite
def meshes_and_dims(draw):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    size = math.prod(shape)
    ids = draw(st.permutations(range(3, 3 + size)))
    mesh = dx.Mesh(shape, [f"a{i}" for i in range(len(shape))], ids)
    tensors = []
    for _ in range(draw(st.integers(1, 4))):
        axes = draw(st.permutations(mesh.axis_names))
        ends = sorted(draw(st.lists(st.integers(0, len(axes)), min_size=2, max_size=3)))
        tensors.append([axes[a:b] for a, b in itertools.pairwise(ends)])
    return mesh, tensors


@given(meshes_and_dims())
def test_whatever_a_mesh_says_is_found(case):
    """Also from axes in any order; the mesh found says the same of every device."""
    mesh, tensors = case
    arrangements = [groups_of(mesh, dims) for dims in tensors]
    found = common(*arrangements)
    assert sorted(found.mesh().device_ids) == sorted(mesh.device_ids)
    for each in arrangements:
        assert groups_of(found.mesh(), found.axes_of(each)) == each
