"""GSPMD's shardings of the values of programs."""

from __future__ import annotations

import pytest
import tvm

import distir_ext as dx
from distir_ext.interop import gspmd

from ..programs import Products, Tuples

# Megatron on a mesh (2, 4), as XLA prints it.
MEGATRON = {
    "x": "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
    "up": "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}",
    "down": "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}",
}
V1 = {name: str(gspmd.parse(text).to_v1()) for name, text in MEGATRON.items()}
MESH = dx.Mesh(dp=2, tp=4)
V3 = {name: str(gspmd.parse(text).to_named(MESH)) for name, text in MEGATRON.items()}


def texts(shardings):
    return {name: str(sharding) for name, sharding in shardings.items()}


@pytest.mark.parametrize("given", [MEGATRON, V1, V3])
def test_every_version_annotates_alike(given):
    stated = dx.annotate(
        Products, MESH, {"x": ("dp", None), "up": (None, "tp"), "down": ("tp", None)}
    )
    tvm.ir.assert_structural_equal(gspmd.annotate(Products, given, MESH), stated)


@pytest.mark.parametrize("given", [MEGATRON, V1, V3])
def test_shardings_come_out_as_they_went_in(given):
    mod = gspmd.annotate(Products, given, inputs=["x"])
    assert texts(gspmd.shardings(mod)) == MEGATRON
    assert dx.meshes(mod) == (dx.Mesh(x=2, y=4) if given is not V3 else MESH,)
    propagated = dx.transform.PropagateSharding()(mod)
    assert texts(gspmd.shardings(propagated)) == {**MEGATRON, "return": MEGATRON["x"]}


def test_parts_of_axes_are_said_on_the_whole_mesh():
    given = {"x": "{devices=[2,1,4]<=[8] last_tile_dim_replicate}", "up": "{devices=[1,8]<=[8]}"}
    mod = gspmd.annotate(Products, given, dx.Mesh(tp=8))
    assert texts(gspmd.shardings(mod)) == given
    assert dx.meshes(mod)[0] == dx.Mesh(tp=8)
    propagated = dx.transform.PropagateSharding()(mod)
    x, up, _ = propagated["main"].params
    assert dx.dims(propagated, x) == ("tp:(1)2", None)
    assert dx.dims(propagated, up) == (None, "tp")


def test_another_order_of_devices():
    given = {"x": "{devices=[2,3]<=[2,3]T(1,0)}", "up": "{replicated}"}
    mesh, dims = gspmd.parse(given["x"]).to_mesh_dims()
    for mod in (gspmd.annotate(Products, given), gspmd.annotate(Products, given, mesh)):
        assert texts(gspmd.shardings(mod)) == given
        assert dx.meshes(mod) == (mesh,)
    assert dims == ("x", "y")


def test_tuples():
    first, second = "{devices=[2,2]<=[4]}", "{devices=[2,2]<=[2,2]T(1,0)}"
    given = {"weights": f"{{{first}, {second}}}", "return": f"{{{{unknown}}, {first}}}"}
    mod = gspmd.annotate(Tuples, given)
    assert texts(gspmd.shardings(mod)) == {
        "weights.0": first,
        "weights.1.0": second,
        "return.1": first,
    }
    with pytest.raises(ValueError, match="weights has 2 fields, but its sharding is a tuple of 1"):
        gspmd.annotate(Tuples, {"weights": f"{{{first}}}"})


def test_what_is_unknown_is_left_to_propagation():
    assert gspmd.annotate(Products, {"x": "{unknown}"}).same_as(Products)
    assert gspmd.annotate(Products, {}).same_as(Products)
    assert gspmd.shardings(Products) == {}


MISTAKES = [
    ({"x": "{devices=[2}"}, "x: GSPMD sharding, column 12: expected ']'"),
    ({"x": "{manual}"}, r"x: the sharding is manual over \"dp\", \"tp\""),
    ({"x": "{devices=[2,4]<=[8] shard_like 1}"}, "x: the sharding has shard_like 1"),
    ({"x": "{devices=[8]<=[8]}"}, r"parameter x has 2 dimensions, but the plan's \(\('dp', 'tp'\)"),
    ({"y": "{replicated}"}, "pattern 'y' matches no parameter of function main"),
    ({"x": "{devices=[4]<=[4]}"}, "x: the sharding has 4 devices"),
]


@pytest.mark.parametrize(("given", "message"), MISTAKES)
def test_mistakes_name_the_value(given, message):
    with pytest.raises(ValueError, match=message):
        gspmd.annotate(Products, given, MESH)


def test_wrong_types():
    with pytest.raises(TypeError, match="x: a GSPMD sharding is a text, not None"):
        gspmd.annotate(Products, {"x": None}, MESH)
    with pytest.raises(TypeError, match="the mesh is of type str"):
        gspmd.annotate(Products, MEGATRON, "mesh")
    with pytest.raises(ValueError, match="no Relax function named 'other'"):
        gspmd.annotate(Products, MEGATRON, func="other")


def test_open_dimensions_are_not_lost_silently():
    mod = dx.annotate(Products, MESH, {"x": (("dp", ...), None)})
    with pytest.raises(ValueError, match=r"x: dimension 0 is .*GSPMD has no open dimensions"):
        gspmd.shardings(mod)
