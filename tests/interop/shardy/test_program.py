"""Shardy's shardings of the values of programs."""

from __future__ import annotations

import pytest
import tvm

import distir_ext as dx
from distir_ext.interop import shardy

from ..programs import Products, Tuples

MESH = dx.Mesh(dp=2, tp=4)
GIVEN = {
    "x": '#sdy.sharding<@mesh, [{"dp", ?}, {?}]>',
    "up": '#sdy.sharding<@mesh, [{}, {"tp"}p1]>',
    "down": '#sdy.sharding<@mesh, [{"tp":(2)2}, {?}], replicated={"dp"}>',
}


def texts(shardings):
    return {name: str(sharding) for name, sharding in shardings.items()}


def test_annotations_are_those_of_a_plan():
    given = {name: GIVEN[name] for name in ("x", "up")}
    stated = dx.annotate(
        Products, MESH, {"x": (("dp", ...), ...), "up": (None, dx.Dim("tp", priority=1))}
    )
    tvm.ir.assert_structural_equal(shardy.annotate(Products, given, MESH), stated)


@pytest.mark.parametrize("mesh", [MESH, {"mesh": MESH}, shardy.LogicalMesh.from_mesh(MESH)])
def test_shardings_come_out_as_they_went_in(mesh):
    mod = shardy.annotate(Products, GIVEN, mesh)
    meshes, found = shardy.shardings(mod)
    assert meshes == {"mesh": shardy.LogicalMesh.from_mesh(MESH)}
    assert texts(found) == GIVEN


def test_a_propagated_program():
    given = {
        "x": '<mesh<["dp"=2, "tp"=4]>, [{"dp"}, {}]>',
        "up": '<mesh<["dp"=2, "tp"=4]>, [{}, {"tp"}]>',
    }
    mod = dx.transform.PropagateSharding()(shardy.annotate(Products, given, inputs=["x"]))
    meshes, found = shardy.shardings(mod)
    assert texts(meshes) == {"mesh": '#sdy.mesh<["dp"=2, "tp"=4]>'}
    assert texts(found) == {
        "x": '#sdy.sharding<@mesh, [{"dp"}, {}]>',
        "up": '#sdy.sharding<@mesh, [{}, {"tp"}]>',
        "down": '#sdy.sharding<@mesh, [{"tp"}, {}]>',
        "return": '#sdy.sharding<@mesh, [{"dp"}, {}]>',
    }


def test_two_meshes_and_fields_of_tuples():
    given = {
        "x": '<@first, [{"a"}, {}]>',
        r"weights\.0": '<@second, [{}, {"b"}]>',
        "return.1": '<@second, [{}, {"b"}]>',
    }
    meshes = {"first": dx.Mesh(a=2), "second": dx.Mesh((2,), ("b",), (1, 0))}
    mod = shardy.annotate(Tuples, given, meshes)
    found_meshes, found = shardy.shardings(mod)
    assert {name: mesh.to_mesh() for name, mesh in found_meshes.items()} == {
        "mesh": meshes["first"],
        "mesh_1": meshes["second"],
    }
    assert texts(found) == {
        "x": '#sdy.sharding<@mesh, [{"a"}, {}]>',
        "weights.0": '#sdy.sharding<@mesh_1, [{}, {"b"}]>',
        "return.1": '#sdy.sharding<@mesh_1, [{}, {"b"}]>',
    }


MISTAKES = [
    ({"x": "<@mesh, [{]>"}, "x: Shardy sharding, column 11: expected the name of a mesh axis"),
    ({"x": '<@mesh, [{"d"}, {}]>'}, "x: there is no mesh axis 'd'; the axes are 'dp', 'tp'"),
    ({"x": '<@mesh, [{"dp"}]>'}, "parameter x has 2 dimensions"),
    ({"x": '<@mesh, [{}, {}], unreduced={"dp"}>'}, r"x: the sharding is unreduced \(partial\)"),
    ({"z": "<@mesh, [{}, {}]>"}, "pattern 'z' matches no parameter"),
]


@pytest.mark.parametrize(("given", "message"), MISTAKES)
def test_mistakes_name_the_value(given, message):
    with pytest.raises(ValueError, match=message):
        shardy.annotate(Products, given, MESH)


def test_devices_that_shardy_does_not_have():
    mod = dx.annotate(Products, dx.Mesh((2,), ("a",), (4, 5)), {"x": ("a", None)})
    with pytest.raises(ValueError, match="x: Shardy numbers the 2 devices of a mesh from 0 on"):
        shardy.shardings(mod)
