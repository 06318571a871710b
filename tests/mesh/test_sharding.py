"""Shardings: canonical form, layouts, local shapes, validity, text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.native.library import call

from .model import (
    cells,
    divisors,
    merged,
    mesh_of,
    meshes,
    num_shards,
    same_shards,
    sharding_of,
    shardings,
    shards,
)

sharded_meshes = meshes().flatmap(lambda m: st.tuples(st.just(m), shardings(m[0], partial=True)))


@given(sharded_meshes)
def test_canonical_sharding_merges_each_list_and_sorts_the_partial_axes(case):
    mesh, (dims, partial, reduction) = case
    expected = (tuple(merged(axes) for axes in dims), merged(tuple(sorted(partial))), reduction)
    canonical = call("CanonicalSharding", (dims, partial, reduction))
    assert canonical == expected
    call("CheckSharding", *mesh, canonical)


def test_reduction_without_axes_is_dropped():
    assert call("CanonicalSharding", [[[]], [], "sum"]) == (((),), (), "none")


def test_replicated_has_no_axes():
    assert call("Replicated", 2) == (((), ()), (), "none")
    assert call("IsReplicated", call("Replicated", 2))
    assert call("IsReplicated", sharding_of())
    assert not call("IsReplicated", sharding_of((), ((0, 1, 2),)))
    assert not call("IsReplicated", [[[]], [[0, 1, 2]], "max"])


def cut(axes):
    """Splits each reference of a list in two if possible."""
    for axis, pre_size, size in axes:
        first = next(d for d in divisors(size) if d > 1)
        yield (axis, pre_size, first)
        if size > first:
            yield (axis, pre_size * first, size // first)


@st.composite
def two_shardings(draw):
    mesh = draw(meshes([(4,), (2, 2), (2, 4), (6,)]))
    a = draw(shardings(mesh[0], ndim=2))
    same = sharding_of(*(tuple(cut(axes)) for axes in a[0]))
    return mesh, a, draw(st.one_of(st.just(same), shardings(mesh[0], ndim=2)))


@given(two_shardings())
def test_same_layout_exactly_if_every_device_holds_the_same_block(case):
    mesh, a, b = case
    size = math.prod(mesh[0])
    tensor = cells((size, size))
    expected = same_shards(shards(mesh, a[0], tensor), shards(mesh, b[0], tensor))
    assert call("SameLayout", *mesh, a, b) == expected


@given(sharded_meshes)
def test_canonical_form_is_the_same_layout(case):
    mesh, sharding = case
    assert call("SameLayout", *mesh, sharding, call("CanonicalSharding", sharding))


def test_layouts_differ_by_rank_partial_axes_and_reduction():
    mesh = mesh_of(2, 4)
    plain = [[[]], [], "none"]
    halves = [[[]], [[1, 1, 2], [1, 2, 2]], "sum"]
    assert call("SameLayout", *mesh, halves, [[[]], [[1, 2, 2], [1, 1, 2]], "sum"])
    assert call("SameLayout", *mesh, halves, [[[]], [[1, 1, 4]], "sum"])
    assert not call("SameLayout", *mesh, halves, [[[]], [[1, 1, 4]], "max"])
    assert not call("SameLayout", *mesh, halves, [[[]], [[1, 1, 2]], "sum"])
    assert not call("SameLayout", *mesh, halves, plain)
    assert not call("SameLayout", *mesh, plain, [[[], []], [], "none"])


@given(sharded_meshes, st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_local_shape_is_the_shape_of_every_shard(case, sizes):
    mesh, sharding = case
    dims = sharding[0]
    shape = tuple(k * num_shards(axes) for k, axes in zip(sizes, dims, strict=False))
    local = call("LocalShape", shape, sharding)
    assert {part.shape for part in shards(mesh, dims, cells(shape)).values()} == {local}


def test_dimension_that_does_not_divide_is_named():
    with pytest.raises(ValueError, match="dimension 1 of size 10 does not divide into 4 shards"):
        call("LocalShape", (8, 10), sharding_of((), ((0, 1, 4),)))


def test_local_shape_needs_a_sharding_of_the_same_rank():
    with pytest.raises(ValueError, match="sharding of 2 dimensions does not fit a tensor of 1"):
        call("LocalShape", (8,), sharding_of((), ()))


@given(sharded_meshes)
def test_drawn_shardings_are_valid(case):
    mesh, sharding = case
    call("CheckSharding", *mesh, sharding)


@pytest.mark.parametrize(
    ("sharding", "message"),
    [
        (
            sharding_of((), ((2, 1, 2),)),
            r"^tensor dimension 1: there is no axis 2 in the mesh \(x=2, y=4\) of devices 0\.\.7$",
        ),
        (sharding_of(((-1, 1, 2),)), "tensor dimension 0: there is no axis -1 in the mesh"),
        (
            sharding_of((), ((1, 1, 3),)),
            r"^tensor dimension 1: axis reference 'y:\(1\)3' is not a part of mesh axis 'y' of "
            r"size 4$",
        ),
        (sharding_of(((1, 4, 2),)), r"'y:\(4\)2' is not a part of mesh axis 'y' of size 4"),
        (sharding_of(((1, 3, 2),)), r"'y:\(3\)2' is not a part of mesh axis 'y' of size 4"),
        (sharding_of(((1, 1, 1),)), r"'y:\(1\)1' is not a part of mesh axis 'y' of size 4"),
        (
            sharding_of(((1, 1, 4),), ((0, 1, 2), (1, 2, 2))),
            r"^tensor dimension 1: axis reference 'y:\(2\)2' overlaps 'y' of tensor dimension 0$",
        ),
        (
            sharding_of(((0, 1, 2), (0, 1, 2))),
            "^tensor dimension 0: axis reference 'x' overlaps 'x' of tensor dimension 0$",
        ),
        (
            (((), ((1, 1, 2),)), ((1, 1, 4),), "sum"),
            r"^the partial axes: axis reference 'y' overlaps 'y:\(1\)2' of tensor dimension 1$",
        ),
        (
            ((), ((0, 1, 2), (1, 1, 2)), "none"),
            r"^the partial axes \('x', 'y:\(1\)2'\) have no reduction$",
        ),
    ],
)
def test_invalid_sharding_is_an_error_that_names_reference_and_place(sharding, message):
    with pytest.raises(ValueError, match=message):
        call("CheckSharding", *mesh_of(2, 4), sharding)


def test_parts_that_do_not_nest_overlap():
    # Halves of an axis of 6, and odd or even: neither cuts the other's shards evenly.
    with pytest.raises(ValueError, match=r"'x:\(3\)2' overlaps 'x:\(1\)2'"):
        call("CheckSharding", *mesh_of(6), sharding_of(((0, 1, 2),), ((0, 3, 2),)))


def test_unknown_reduction_is_named():
    message = 'unknown reduction "avg"; known are none, sum, max, min, prod, mean'
    with pytest.raises(ValueError, match=message):
        call("IsReplicated", [[], [], "avg"])


def test_malformed_sharding_is_an_error():
    with pytest.raises(ValueError, match=r"a sharding is \[dims, partial, reduction\], not 1 ent"):
        call("IsReplicated", [[]])


@pytest.mark.parametrize("reduction", ["sum", "max", "min", "prod", "mean"])
def test_text_of_a_sharding(reduction):
    mesh = mesh_of(2, 4, 4, 2)
    sharding = (((0, 1, 2),), ((1, 1, 4), (2, 1, 2)), ()), ((3, 1, 2),), reduction
    text = f"('x', ('y', 'z:(1)2'), None), partial {reduction} over 'w'"
    assert call("ShardingToStringOn", *mesh, sharding) == text
    text = f"('x:(1)2', ('y:(1)4', 'z:(1)2'), None), partial {reduction} over 'w:(1)2'"
    assert call("ShardingToString", sharding) == text


def test_text_of_a_scalar_sharding():
    assert call("ShardingToString", sharding_of()) == "()"
