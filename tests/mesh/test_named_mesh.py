"""`distir_ext.mesh.Mesh`: the mesh that users name axes on."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from tests.native.library import call
from tvm.relax.distributed import DeviceMesh, Placement

from distir_ext.mesh.mesh import Mesh

from .model import SHAPES, blocks, meshes

NAMES = ("dp", "tp", "pp", "ep")


def test_properties():
    mesh = Mesh((2, 4), ("dp", "tp"))
    assert mesh.shape == (2, 4)
    assert mesh.axis_names == ("dp", "tp")
    assert mesh.device_ids == tuple(range(8))
    assert mesh.size == 8


def test_arguments_may_be_any_sequences_of_integers():
    mesh = Mesh(np.array([2, 2]), ["dp", "tp"], np.arange(4)[::-1])
    assert mesh == Mesh((2, 2), ("dp", "tp"), [3, 2, 1, 0])
    assert type(mesh.shape[0]) is int
    assert type(mesh.device_ids[0]) is int


@pytest.mark.parametrize("name", ["shape", "axis_names", "device_ids", "size"])
def test_immutable(name):
    mesh = Mesh((2,), ("dp",))
    with pytest.raises(AttributeError):
        setattr(mesh, name, (1,))


@pytest.mark.parametrize(
    ("mesh", "text"),
    [
        (Mesh((2, 4), ("dp", "tp")), "Mesh((2, 4), ('dp', 'tp'))"),
        (Mesh((2,), ("dp",), [4, 5]), "Mesh((2,), ('dp',), device_ids=range(4, 6))"),
        (Mesh((2,), ("dp",), [5, 4]), "Mesh((2,), ('dp',), device_ids=(5, 4))"),
        (Mesh((1,), ("dp",), [3]), "Mesh((1,), ('dp',), device_ids=range(3, 4))"),
        (Mesh((1,), ("dp",)), "Mesh((1,), ('dp',))"),
    ],
)
def test_text_evaluates_to_the_mesh(mesh, text):
    assert repr(mesh) == text
    assert eval(text) == mesh


def test_equality_and_hash():
    mesh = Mesh((2, 2), ("dp", "tp"))
    same = Mesh([2, 2], ["dp", "tp"], range(4))
    assert mesh == same
    assert hash(mesh) == hash(same)
    others = [
        Mesh((4, 1), ("dp", "tp")),
        Mesh((2, 2), ("tp", "dp")),
        Mesh((2, 2), ("dp", "tp"), [1, 0, 2, 3]),
    ]
    assert len({mesh, same, *others}) == 4
    assert mesh != "mesh"


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_copies_are_equal(again):
    mesh = Mesh((2, 2), ("dp", "tp"), [1, 3, 0, 2])
    assert isinstance(mesh.device_mesh, DeviceMesh)
    assert again(mesh) == mesh
    assert again(mesh).device_mesh.device_ids == mesh.device_mesh.device_ids


@pytest.mark.parametrize(
    ("mesh", "text"),
    [
        (Mesh((2, 4), ("dp", "tp")), "R.device_mesh((2, 4), R.Range(0, 8))"),
        (Mesh((2,), ("dp",), (4, 5)), "R.device_mesh((2,), R.Range(4, 6))"),
        (Mesh((2,), ("dp",), (5, 4)), "R.device_mesh((2,), [5, 4])"),
    ],
)
def test_device_mesh_is_made_once_and_prints_like_upstream(mesh, text):
    assert mesh.device_mesh is mesh.device_mesh
    assert str(mesh.device_mesh) == text


@given(meshes())
def test_device_mesh_has_shape_and_devices(case):
    shape, ids = case
    device_mesh = Mesh(shape, NAMES[: len(shape)], ids).device_mesh
    assert tuple(device_mesh.shape) == shape
    assert tuple(device_mesh.device_ids) == ids


@pytest.mark.parametrize(
    ("dims", "text"),
    [
        ((), "R, R"),
        ((None, None), "R, R"),
        (("dp",), "S[0], R"),
        ((None, "tp"), "R, S[1]"),
        (("tp", "dp"), "S[1], S[0]"),
        ((("dp", "tp"), None), "S[0], S[0]"),
        ((None, ["dp", "tp"]), "S[1], S[1]"),
        (((), ("tp",)), "R, S[1]"),
    ],
)
def test_placement_has_one_entry_per_mesh_axis(dims, text):
    placement = Mesh((2, 4), ("dp", "tp")).placement(*dims)
    assert tvm_ffi.structural_equal(placement, Placement.from_text(text))


@given(st.data(), meshes(SHAPES))
def test_placement_shards_dimensions_by_the_axes_named(data, case):
    shape, ids = case
    mesh = Mesh(shape, NAMES[: len(shape)], ids)
    axis_to_dim = [data.draw(st.integers(-1, 2)) for _ in shape]
    axes = [[axis for axis, d in enumerate(axis_to_dim) if d == dim] for dim in range(3)]
    placement = mesh.placement(*(tuple(mesh.axis_names[axis] for axis in of) for of in axes))
    specs = [spec.axis for spec in placement.dim_specs]
    assert specs == axis_to_dim
    dims, _, _ = call("FromPlacement", *case, specs, 3, *case)
    whole = tuple(tuple((axis, 1, shape[axis]) for axis in of) for of in axes)
    assert blocks(case, dims) == blocks(case, whole)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (
            (None, "model"),
            "^tensor dimension 1: there is no mesh axis 'model'; the axes are 'dp', 'tp', 'pp'$",
        ),
        (
            ("tp", ("dp", "tp")),
            "^mesh axis 'tp' is used twice in one tensor: by dimension 0 and by dimension 1$",
        ),
        (
            (("dp", "dp"),),
            "^mesh axis 'dp' is used twice in one tensor: by dimension 0 and by dimension 0$",
        ),
        (
            (None, ("tp", "dp")),
            r"^tensor dimension 1: the axes \('tp', 'dp'\) are not in the order of the mesh; "
            r"write \('dp', 'tp'\), or, if 'tp' is to be the major one, place it on "
            r"mesh\.ordered_for\(\.\.\.\), which has the axes in that order$",
        ),
    ],
)
def test_bad_placement_is_an_error_that_names_the_axis(dims, message):
    with pytest.raises(ValueError, match=message):
        Mesh((2, 2, 2), ("dp", "tp", "pp")).placement(*dims)


@pytest.mark.parametrize("entry", [0, ("dp", 1), b"dp", {"dp"}])
def test_placement_takes_names_only(entry):
    message = "tensor dimension 1 takes the name of a mesh axis, a tuple of names or None, not "
    with pytest.raises(TypeError, match=message):
        Mesh((2,), ("dp",)).placement(None, entry)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((), ()), "a mesh needs at least one axis"),
        (
            ((2, 4), ("dp",)),
            r"\(2, 4\) needs one name for each axis, but the names are \('dp',\)$",
        ),
        (((2,), ("dp", "tp")), r"one name for each axis, but the names are \('dp', 'tp'\)$"),
        (((2, 4), ("dp", "dp")), "two mesh axes are named 'dp'"),
        (((2, 4), ("dp", "")), "the name of mesh axis 1 is empty"),
        (((2, 0), ("dp", "tp")), "mesh axis 'tp' has size 0; it must be positive"),
        (((-1,), ("dp",)), "mesh axis 'dp' has size -1; it must be positive"),
        (((2**20, 2), ("dp", "tp")), "2097152 devices; at most 1048576 are supported"),
        (
            ((2, 4), ("dp", "tp"), range(6)),
            r"has 8 devices, but 6 device ids are given",
        ),
        (((2,), ("dp",), range(3)), r"shape \(2,\) has 2 devices, but 3 device ids are given"),
        (((2,), ("dp",), [1, 1]), "device id 1 occurs twice in the mesh"),
        (((2,), ("dp",), [0, -3]), "device id -3 is negative"),
    ],
)
def test_bad_mesh_is_an_error_that_names_the_culprit(arguments, message):
    with pytest.raises(ValueError, match=message):
        Mesh(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((4, ("dp",)), "shape must be integers, one after another, not 4"),
        (((2.0,), ("dp",)), r"shape must be integers, one after another, not \(2.0,\)"),
        (((2,), ("dp",), [0, "1"]), r"device_ids must be integers, one after .*, not \[0, '1'\]"),
        (((2, 4), "dp"), r"axis_names must be a tuple; write \('dp',\)"),
        (((2,), (0,)), "axis_names must be strings, not 0"),
    ],
)
def test_mesh_of_wrong_types_is_an_error_that_shows_the_argument(arguments, message):
    with pytest.raises(TypeError, match=message):
        Mesh(*arguments)
