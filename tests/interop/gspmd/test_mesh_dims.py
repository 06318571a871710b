"""From a mesh and dims to HLO's shardings and back."""

from __future__ import annotations

import re

import pytest

import distir_ext as dx
from distir_ext.interop import gspmd

from ..shardings import SHAPES, all_dims, blocks, meshes, tiles

HloSharding = gspmd.HloSharding


@pytest.mark.parametrize("shape", SHAPES)
def test_every_sharding_comes_back(shape):
    for mesh in meshes(shape):
        for dims in all_dims(mesh.axis_names):
            sharding = HloSharding.from_mesh_dims(mesh, dims)
            assert sharding.to_mesh_dims(mesh, 2) == (mesh, dims)
            assert gspmd.parse(str(sharding)) == sharding
            assert sharding.to_v1().canonical() == sharding
            named = sharding.to_named(mesh, 2)
            assert gspmd.parse(str(named)) == named
            assert named.to_mesh_dims() == (mesh, dims)
            assert named.canonical() == sharding.canonical()
            assert HloSharding.from_shardy(sharding.to_shardy(mesh, 2)) == sharding
            if sharding.kind == "tiled":
                # The meaning, as the compiler has it, is that of the text.
                assert tiles(sharding) == blocks(mesh, dims)
                own_mesh, own_dims = sharding.to_mesh_dims()
                assert blocks(own_mesh, own_dims) == tiles(sharding)
                assert HloSharding.from_mesh_dims(own_mesh, own_dims) == sharding


def test_other_ranks():
    mesh = dx.Mesh((2, 3), ("a", "b"))
    for rank in (1, 3, 4):
        for dims in all_dims(mesh.axis_names, rank):
            assert HloSharding.from_mesh_dims(mesh, dims).to_mesh_dims(mesh, rank) == (mesh, dims)


SUB_AXES = [
    ("{devices=[2,4]<=[8]}", ("tp:(1)2", ("tp:(2)2", "dp"))),
    ("{devices=[4,2]<=[8]}", ("tp", "dp")),
    ("{devices=[4,1,2]<=[2,2,2]T(2,1,0) last_tile_dim_replicate}", (("dp", "tp:(2)2"), None)),
    ("{devices=[2,1,4]<=[2,2,2]T(1,0,2) last_tile_dim_replicate}", ("tp:(2)2", None)),
]


@pytest.mark.parametrize(("text", "dims"), SUB_AXES)
def test_parts_of_axes_are_axes_of_a_split_mesh(text, dims):
    mesh = dx.Mesh((4, 2), ("tp", "dp"))
    split, found = gspmd.parse(text).to_mesh_dims(mesh)
    assert found == dims
    assert split.device_ids == mesh.device_ids
    assert blocks(split, found) == tiles(gspmd.parse(text))
    assert HloSharding.from_mesh_dims(split, found) == gspmd.parse(text)
    # Parts may be stated on the whole mesh, too, as dx.dims says them.
    assert HloSharding.from_mesh_dims(mesh, dims) == gspmd.parse(text)


def test_parts_of_an_axis_that_is_no_power_of_two():
    mesh = dx.Mesh(a=12)
    sharding = gspmd.parse("{devices=[2,3,2]<=[2,2,3]T(1,2,0) last_tile_dim_replicate}")
    assert sharding.to_mesh_dims(mesh) == (
        dx.Mesh((2, 2, 3), ("a:(1)2", "a:(2)2", "a:(4)3")),
        ("a:(2)2", "a:(4)3"),
    )


def test_what_lies_along_no_axes():
    """XLA's own import of this into Shardy ends the process."""
    sharding = gspmd.parse("{devices=[2,3]<=[2,3]T(1,0)}")
    mesh, dims = sharding.to_mesh_dims()
    assert blocks(mesh, dims) == tiles(sharding)
    assert mesh == dx.Mesh((2, 3), ("x", "y"), (0, 3, 1, 4, 2, 5))
    with pytest.raises(ValueError, match="does not lie along the axes of Mesh"):
        sharding.to_mesh_dims(dx.Mesh(x=2, y=3))


@pytest.mark.parametrize(
    ("text", "shape"), [("{devices=[2,6]<=[6,2]T(1,0)}", (4, 3)), ("{devices=[3,4]<=[12]}", (4, 3))]
)
def test_what_a_mesh_does_not_fit(text, shape):
    sharding = gspmd.parse(text)
    assert blocks(*sharding.to_mesh_dims()) == tiles(sharding)
    with pytest.raises(ValueError, match=re.escape(f"{text} does not lie along the axes of Mesh")):
        sharding.to_mesh_dims(dx.Mesh(shape, ("a", "b")))


def test_other_devices():
    with pytest.raises(ValueError, match=r"has 4 devices \(0, 1, 2, 3\), the mesh has 6 \(0, 1,"):
        gspmd.parse("{devices=[4]<=[4]}").to_mesh_dims(dx.Mesh(a=6))
    shifted = dx.Mesh((2, 2), ("a", "b"), range(4, 8))
    sharding = HloSharding.from_mesh_dims(shifted, ("b", None))
    assert str(sharding) == "{devices=[2,1,2]4,6,5,7 last_tile_dim_replicate}"
    assert sharding.to_mesh_dims(shifted) == (shifted, ("b", None))
    assert sharding.to_mesh_dims()[0].device_ids == (4, 5, 6, 7)


def test_words():
    mesh = dx.Mesh(a=2, b=2)
    assert gspmd.parse("{replicated}").to_mesh_dims(mesh) == (mesh, None)
    assert gspmd.parse("{replicated}").to_mesh_dims(mesh, 2) == (mesh, (None, None))
    assert gspmd.parse("{unknown}").to_mesh_dims(mesh, 2) == (mesh, (..., ...))
    one = dx.Mesh((1,), ("device",), (3,))
    assert gspmd.parse("{maximal device=3}").to_mesh_dims(mesh, 1) == (one, (None,))
    assert str(HloSharding.from_mesh_dims(one, (None, None))) == "{maximal device=3}"
    for text in ("{replicated}", "{unknown}", "{mesh[], replicated}"):
        with pytest.raises(ValueError, match=re.escape(f"{text} names no devices; pass mesh=")):
            gspmd.parse(text).to_mesh_dims(rank=2)
    with pytest.raises(ValueError, match=r"pass rank="):
        gspmd.parse("{replicated}").to_shardy(mesh)


def test_named_shardings_keep_their_mesh():
    sharding = gspmd.parse("{mesh['a'=2,'b'=4], [{'b':(2)2}, {'a', ?}]}")
    assert sharding.to_mesh_dims() == (
        dx.Mesh((2, 2, 2), ("a", "b:(1)2", "b:(2)2")),
        ("b:(2)2", ("a", ...)),
    )
    other = dx.Mesh((8,), ("c",))
    closed = gspmd.parse("{mesh['a'=2,'b'=4], [{'a'}, {}]}")
    split = dx.Mesh((2, 4), ("c:(1)2", "c:(2)4"))
    assert closed.to_mesh_dims(other) == (split, ("c:(1)2", None))
    assert gspmd.parse("{mesh['a'=2,'b'=4], replicated}").to_mesh_dims(rank=1)[1] == (None,)
    with pytest.raises(ValueError, match="has 2 dimensions, and the tensor has 3"):
        closed.to_mesh_dims(rank=3)


REFUSED = [
    ("{manual}", r"is manual over \"a\", \"b\", which an annotation cannot state"),
    ("{unreduced}", r"is unreduced \(partial\) over \"a\", \"b\""),
    ("{devices=[2,2]<=[4] last_tile_dims={manual}}", r"is manual over \"b\""),
    ("{devices=[2,2]<=[2,2]T(1,0) last_tile_dims={unreduced}}", r"unreduced \(partial\) over \"a"),
    ("{mesh['a'=2,'b'=2], [{'a'}], unreduced={'b'}}", r"is unreduced \(partial\) over \"b\""),
    ("{devices=[2,2]<=[4] last_tile_dims={maximal}}", "has a maximal subgroup"),
    ("{devices=[2,2]<=[4] shard_as 1}", "the sharding has shard_as 1: other values"),
    ("{{replicated}}", "one of a tuple"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_no_annotation_says(text, message):
    with pytest.raises(ValueError, match=message):
        gspmd.parse(text).to_mesh_dims(dx.Mesh(a=2, b=2), 1)


@pytest.mark.parametrize("dims", [(("a", ...), None), (..., None), (dx.Dim("a", priority=1), None)])
def test_open_dimensions_and_priorities_are_not_lost_silently(dims):
    with pytest.raises(ValueError, match=r"dimension 0 is .*GSPMD has no open dimensions"):
        HloSharding.from_mesh_dims(dx.Mesh(a=2, b=2), dims)


def test_dims_that_are_wrong():
    mesh = dx.Mesh(data=2, model=2)
    with pytest.raises(ValueError, match=r"no mesh axis 'modle'.*did you mean 'model'"):
        HloSharding.from_mesh_dims(mesh, ("modle", None))
    with pytest.raises(ValueError, match="overlap"):
        HloSharding.from_mesh_dims(mesh, ("model", "model"))
    with pytest.raises(TypeError, match="neither the name of a mesh axis"):
        HloSharding.from_mesh_dims(mesh, (3,))
    with pytest.raises(TypeError, match="the mesh of a sharding is of type str"):
        HloSharding.from_mesh_dims("mesh", (None,))


def test_subgroups_on_a_mesh():
    sharding = gspmd.parse(
        "{devices=[2,1,2,2]<=[2,2,2]T(1,2,0) last_tile_dims={manual, replicated}}"
    )
    named = sharding.to_named(dx.Mesh(a=2, b=2, c=2))
    assert str(named) == "{mesh['a'=2,'b'=2,'c'=2], [{'b'}, {}], manual={'c'}}"
    assert named.canonical() == sharding.canonical()


COMMON = [
    (["{devices=[8]<=[8]}"], (8,)),
    (["{devices=[4,2]<=[2,4]T(1,0)}"], (2, 4)),
    (["{devices=[2,1,4]<=[8] last_tile_dim_replicate}", "{devices=[4,2]<=[8]}"], (2, 2, 2)),
    (["{replicated}", "{devices=[3,4]<=[4,3]T(1,0)}", "{maximal device=2}"], (4, 3)),
    (["{{devices=[4]<=[4]}, {devices=[2,2]<=[4]}}"], (2, 2)),
    (["{devices=[1]<=[1]}"], (1,)),
    (["{devices=[2,2]4,6,5,7}"], (2, 2)),
    (["{mesh['a'=2,'b'=4], [{'a'}]}", "{devices=[8]<=[8]}"], (2, 4)),
]


@pytest.mark.parametrize(("texts", "shape"), COMMON)
def test_common_mesh(texts, shape):
    mesh = gspmd.common_mesh(texts)
    assert mesh.shape == shape
    assert mesh.axis_names == ("x", "y", "z")[: len(shape)]


def test_common_mesh_of_named_shardings():
    texts = ["{mesh['a'=2,'b'=4], [{'a'}]}", "{mesh['a'=2,'b'=4], [{}, {'b'}]}"]
    assert gspmd.common_mesh(texts) == dx.Mesh(a=2, b=4)


def test_a_common_mesh_whose_devices_are_in_another_order():
    texts = [
        "{devices=[2,3]<=[2,3]T(1,0)}",
        "{devices=[1,2,3]<=[2,3]T(1,0) last_tile_dim_replicate}",
    ]
    mesh = gspmd.common_mesh(texts)
    assert sorted(mesh.shape) == [2, 3]
    for text in texts:
        sharding = gspmd.parse(text)
        on, dims = sharding.to_mesh_dims(mesh)
        assert on == mesh
        assert gspmd.HloSharding.from_mesh_dims(mesh, dims).canonical() == sharding.canonical()


def test_there_is_no_common_mesh():
    with pytest.raises(ValueError, match=r"\{devices=\[4,3\]<=\[12\]\} cuts the devices otherwise"):
        gspmd.common_mesh(["{devices=[3,4]<=[12]}", "{devices=[4,3]<=[12]}"])
    other = "{devices=[2,3]0,3,1,5,2,4}"
    with pytest.raises(ValueError, match=r"0,3,1,5,2,4\} cuts the devices otherwise"):
        gspmd.common_mesh(["{devices=[2,3]<=[2,3]T(1,0)}", other])
    with pytest.raises(ValueError, match="has 4 devices"):
        gspmd.common_mesh(["{devices=[8]<=[8]}", "{devices=[4]<=[4]}"])
    with pytest.raises(ValueError, match="no sharding names the devices"):
        gspmd.common_mesh(["{replicated}"])
