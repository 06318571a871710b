"""Between Shardy's shardings and a mesh with dims, and GSPMD's."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import distir_ext as dx
from distir_ext.interop import gspmd, shardy

from ..shardings import SHAPES, all_dims, blocks, meshes, tiles


@pytest.mark.parametrize("shape", SHAPES)
def test_every_sharding_comes_back(shape):
    for mesh in meshes(shape):
        for dims in all_dims(mesh.axis_names):
            written = shardy.from_mesh_dims(mesh, dims)
            named = shardy.from_mesh_dims(mesh, dims, name="mesh")
            for sharding in (written, named):
                again = shardy.parse(str(sharding))
                assert again == sharding
                assert shardy.to_mesh_dims(again, {"mesh": mesh}) == (mesh, dims)
            # To GSPMD and back, which has the devices instead of the names.
            hlo = gspmd.HloSharding.from_shardy(named, mesh)
            assert hlo.to_shardy(mesh, 2) == written
            if hlo.kind == "tiled":
                assert tiles(hlo) == blocks(mesh, dims)
                assert gspmd.HloSharding.from_shardy(hlo.to_shardy()) == hlo


MESH = dx.Mesh(x=2, y=8)
SPLIT = dx.Mesh((2, 2, 2, 2), ("x", "y:(1)2", "y:(2)2", "y:(4)2"))

CASES = [
    ('<@mesh, [{"x", ?}, {}]>', MESH, (("x", ...), None)),
    ("<@mesh, [{?}, {?}p2]>", MESH, (..., dx.Dim(open=True, priority=2))),
    ('<@mesh, [{"y", "x"}p1, {?}]>', MESH, (dx.Dim("y", "x", priority=1), ...)),
    ('<@mesh, [{?}, {}], replicated={"x"}>', MESH, dx.TensorDims(..., None, replicated=("x",))),
    ('<@mesh, [{"y"}, {}], replicated={"x"}>', MESH, ("y", None)),
    ('<@mesh, [{"y":(2)2}, {"y":(4)2}]>', SPLIT, ("y:(2)2", "y:(4)2")),
    (
        '<@mesh, [{"y":(4)2, "x"}, {}]>',
        dx.Mesh((2, 4, 2), ("x", "y:(1)4", "y:(4)2")),
        (("y:(4)2", "x"), None),
    ),
    (
        '<@mesh, [{"y":(1)2, ?}, {}], replicated={"y":(2)4}>',
        dx.Mesh((2, 2, 4), ("x", "y:(1)2", "y:(2)4")),
        dx.TensorDims(("y:(1)2", ...), None, replicated=("y:(2)4",)),
    ),
]


@pytest.mark.parametrize(("text", "mesh", "dims"), CASES)
def test_open_dimensions_priorities_and_parts_of_axes(text, mesh, dims):
    sharding = shardy.parse(text)
    assert shardy.to_mesh_dims(sharding, MESH) == (mesh, dims)
    # Parts of axes can be stated on the whole mesh.
    again = shardy.from_mesh_dims(MESH, dims, name="mesh")
    explicit = any(dim.open for dim in sharding.dims)
    assert again == (sharding if explicit else shardy.parse(re.sub(r", repl.*", ">", text)))


def test_neighbours_that_are_one_part_are_joined():
    sharding = shardy.parse('<@mesh, [{"y":(1)2, "y":(2)4}, {"x"}]>')
    assert shardy.to_mesh_dims(sharding, MESH) == (MESH, ("y", "x"))


def test_meshes():
    ordered = dx.Mesh((2, 2), ("x", "y"), (0, 2, 1, 3))
    logical = shardy.LogicalMesh.from_mesh(ordered)
    assert str(logical) == '#sdy.mesh<["x"=2, "y"=2], device_ids=[0, 2, 1, 3]>'
    assert shardy.parse_mesh(str(logical)).to_mesh() == ordered
    maximal = shardy.parse_mesh("<[], device_ids=[5]>")
    assert maximal.to_mesh() == dx.Mesh((1,), ("device",), (5,))
    assert shardy.LogicalMesh.from_mesh(maximal.to_mesh()) == maximal
    with pytest.raises(ValueError, match="an empty mesh has no devices"):
        shardy.parse_mesh("<[]>").to_mesh()
    shifted = shardy.LogicalMesh.from_mesh(dx.Mesh((2,), ("x",), (4, 5)))
    with pytest.raises(ValueError, match="numbers the 2 devices of a mesh from 0 on; it has no"):
        str(shifted)


def test_words_of_gspmd():
    mesh = dx.Mesh(a=2, b=2)

    def text(hlo, rank=2):
        return str(gspmd.parse(hlo).to_shardy(mesh, rank))

    prefix = '#sdy.sharding<mesh<["a"=2, "b"=2]>, '
    assert text("{replicated}") == f"{prefix}[{{}}, {{}}]>"
    assert text("{unknown}") == f"{prefix}[{{?}}, {{?}}]>"
    assert text("{unreduced}", 1) == f'{prefix}[{{}}], unreduced={{"a", "b"}}>'
    assert text("{maximal device=3}") == "#sdy.sharding<mesh<[], device_ids=[3]>, []>"
    with pytest.raises(ValueError, match="Shardy's shardings have no manual axes"):
        text("{manual}")
    empty = gspmd.parse("{replicated}").to_shardy(rank=1)
    assert str(empty) == "#sdy.sharding<mesh<[]>, [{}]>"
    assert str(gspmd.HloSharding.from_shardy(empty)) == "{replicated}"


LOSSES = [
    ('<@mesh, [{"x", ?}]>', r'dimension 0 is \{"x", \?\}: GSPMD has no open dimensions'),
    ('<@mesh, [{}, {"x"}p1]>', r'dimension 1 is \{"x"\}p1: GSPMD has no open .* no priorities'),
    ('<@mesh, [{}], unreduced=max{"x"}>', "unreduced by max; GSPMD's are sums"),
    ('<@mesh, [{"z"}]>', "there is no mesh axis 'z'; the axes are 'x', 'y'"),
    ('<@mesh, [{"y":(3)2}]>', r'"y":\(3\)2 is no part of mesh axis .y. of size 8'),
    ('<@mesh, [{"y":(1)4}, {"y":(2)2}]>', "shard one tensor, but overlap"),
]


@pytest.mark.parametrize(("text", "message"), LOSSES)
def test_what_gspmd_does_not_say(text, message):
    with pytest.raises(ValueError, match=message):
        gspmd.HloSharding.from_shardy(shardy.parse(text), MESH)


THREAD = [
    "{devices=[2,4]0,1,2,3,4,5,6,7}",
    "{devices=[4,2]0,4,1,5,2,6,3,7}",
    "{devices=[1,4,2]0,4,1,5,2,6,3,7 last_tile_dim_replicate}",
    "{devices=[8,1]0,4,1,5,2,6,3,7}",
    "{replicated}",
]


def test_a_program_of_version_1_becomes_one_of_shardy_and_comes_back():
    """The conversion that https://github.com/pytorch/xla/issues/9348 asks for."""
    mesh = gspmd.common_mesh(THREAD)
    assert shardy.LogicalMesh.from_mesh(mesh).body() == '<["x"=2, "y"=4]>'
    found = [replace(gspmd.parse(text).to_shardy(mesh, 2), mesh="mesh") for text in THREAD]
    assert [str(each) for each in found] == [
        '#sdy.sharding<@mesh, [{"x"}, {"y"}]>',
        '#sdy.sharding<@mesh, [{"y"}, {"x"}]>',
        '#sdy.sharding<@mesh, [{}, {"y"}]>',
        '#sdy.sharding<@mesh, [{"y", "x"}, {}]>',
        "#sdy.sharding<@mesh, [{}, {}]>",
    ]
    back = [gspmd.HloSharding.from_shardy(each, mesh).to_v1() for each in found]
    assert [str(each) for each in back] == THREAD


def test_closed_shardings_can_be_said():
    sharding = shardy.parse('<@mesh, [{"x", ?}p1, {?}], replicated={"y"}>').closed()
    assert str(sharding) == '#sdy.sharding<@mesh, [{"x"}, {}]>'
    assert str(gspmd.HloSharding.from_shardy(sharding, MESH)) == (
        "{devices=[2,1,8]<=[16] last_tile_dim_replicate}"
    )


def test_meshes_that_are_missing():
    sharding = shardy.parse('<@mesh, [{"x"}]>')
    with pytest.raises(ValueError, match="the sharding is on mesh @mesh; pass mesh="):
        shardy.to_mesh_dims(sharding)
    with pytest.raises(ValueError, match="no mesh @mesh; the meshes are @mesh_1; did you mean"):
        shardy.to_mesh_dims(sharding, {"mesh_1": MESH})
    with pytest.raises(TypeError, match="mesh @mesh is of type int"):
        shardy.to_mesh_dims(sharding, 3)
    with pytest.raises(ValueError, match=r"is unreduced \(partial\) over \"x\""):
        shardy.to_mesh_dims(shardy.parse('<@mesh, [{}], unreduced={"x"}>'), MESH)
