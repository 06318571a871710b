"""Lists of axis references against enumeration: canonical form, prefixes, cuts, complements."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.native.library import call

from .model import (
    SHAPES,
    all_axis_lists,
    all_refs,
    axis_lists,
    axis_parts,
    digits,
    disjoint,
    equally_often,
    merged,
    mesh_of,
    num_shards,
    prefixes,
    shard_indices,
)

shapes = st.sampled_from(SHAPES)
two_lists = shapes.flatmap(lambda s: st.tuples(st.just(s), axis_lists(s), axis_lists(s)))


@given(shapes.flatmap(lambda s: st.tuples(st.just(s), axis_lists(s))))
def test_canonical_list_indexes_the_same_shards_and_cannot_be_merged_further(case):
    shape, axes = case
    canonical = call("Canonical", axes)
    assert shard_indices(mesh_of(*shape), canonical) == shard_indices(mesh_of(*shape), axes)
    assert canonical == merged(axes)
    assert call("Canonical", canonical) == canonical
    assert call("NumShards", canonical) == num_shards(axes)


def test_canonical_list_has_no_references_of_size_one():
    assert call("Canonical", [[0, 1, 2], [1, 1, 1], [0, 2, 1], [0, 2, 2]]) == ((0, 1, 4),)
    assert call("Canonical", [[0, 1, 1]]) == ()


@pytest.mark.parametrize("shape", [(4,), (8,), (12,), (2, 4), (2, 2, 2), (6, 2)])
def test_canonical_forms_are_equal_exactly_if_the_shards_are(shape):
    by_meaning: dict[tuple[int, ...], set] = {}
    by_form: dict[tuple, set] = {}
    for axes in all_axis_lists(shape):
        meaning, form = shard_indices(mesh_of(*shape), axes), call("Canonical", axes)
        by_meaning.setdefault(meaning, set()).add(form)
        by_form.setdefault(form, set()).add(meaning)
    assert len(by_meaning) > 3
    assert all(len(forms) == 1 for forms in by_meaning.values())
    assert all(len(meanings) == 1 for meanings in by_form.values())


@pytest.mark.parametrize("extent", [4, 6, 12, 24, 30, 36])
def test_references_overlap_unless_they_are_parts_of_one_split_of_the_axis(extent):
    mesh = mesh_of(extent)
    for a, b in itertools.product(all_refs((extent,)), repeat=2):
        overlap = call("Overlaps", [a], [b])
        assert overlap != disjoint(mesh, a, b), (a, b)
        assert overlap or equally_often(mesh, a, b), (a, b)


def test_overlap_of_lists_is_overlap_of_any_members():
    assert call("Overlaps", [[0, 1, 2], [1, 1, 2]], [[0, 2, 2], [1, 1, 4]])
    assert not call("Overlaps", [[0, 1, 2], [1, 1, 2]], [[0, 2, 2], [1, 2, 2]])
    assert not call("Overlaps", [], [[0, 1, 2]])
    assert not call("Overlaps", [[0, 1, 1]], [[0, 1, 2]])


@given(two_lists)
def test_common_prefix_is_the_longest_that_both_have(case):
    _, a, b = case
    shared = set(prefixes(merged(a))) & set(prefixes(merged(b)))
    assert call("CommonPrefix", a, b) == max(shared, key=num_shards)


def test_common_prefix_splits_references():
    assert call("CommonPrefix", [[0, 1, 4]], [[0, 1, 2], [1, 1, 3]]) == ((0, 1, 2),)
    assert call("CommonPrefix", [[0, 1, 4]], [[0, 1, 6]]) == ((0, 1, 2),)
    assert call("CommonPrefix", [[0, 1, 4], [1, 1, 2]], [[0, 1, 2], [0, 2, 2], [1, 1, 2]]) == (
        (0, 1, 4),
        (1, 1, 2),
    )


@given(two_lists)
def test_prefix_is_what_enumeration_says(case):
    _, a, b = case
    assert call("IsPrefix", a, b) == (merged(a) in prefixes(merged(b)))


@given(shapes.flatmap(axis_lists))
def test_prefix_and_rest_make_the_whole(axes):
    for prefix in prefixes(merged(axes)):
        assert call("IsPrefix", prefix, axes)
        rest = call("RemovePrefix", axes, prefix)
        assert rest == merged(rest)
        assert merged(prefix + rest) == merged(axes)


def test_removing_what_is_no_prefix_names_both_lists():
    with pytest.raises(
        ValueError, match=r"'y:\(1\)2' is not a prefix of the axes \('x:\(1\)4', 'y:\(1\)2'\)"
    ):
        call("RemovePrefix", [[0, 1, 4], [1, 1, 2]], [[1, 1, 2]])


@given(two_lists)
def test_prefix_disjoint_from_is_the_longest_prefix_that_overlaps_nothing(case):
    shape, axes, taken = case
    mesh = mesh_of(*shape)
    free = [
        prefix
        for prefix in prefixes(merged(axes))
        if all(disjoint(mesh, a, b) for a in prefix for b in taken)
    ]
    assert call("PrefixDisjointFrom", axes, taken) == max(free, key=num_shards)


@given(shapes.flatmap(lambda s: st.tuples(st.just(s), axis_lists(s))))
def test_complement_and_list_together_tell_all_devices_apart(case):
    shape, used = case
    mesh = mesh_of(*shape)
    rest = call("Complement", *mesh, used)
    together = shard_indices(mesh, (*used, *rest))
    assert num_shards((*used, *rest)) == len(mesh[1])
    assert sorted(together) == list(range(len(mesh[1])))
    assert rest == merged(rest)
    assert list(rest) == sorted(rest)


def check_complement_of_overlapping(shape, used):
    rest = call("Complement", *mesh_of(*shape), used)
    assert rest == merged(rest)
    assert list(rest) == sorted(rest)
    for free in rest:
        assert not call("Overlaps", [free], used)
    # Nothing is left over: each reference that is disjoint from all overlaps some of the rest.
    for ref in all_refs(shape):
        if not call("Overlaps", [ref], used):
            assert call("Overlaps", [ref], rest)


@given(two_lists)
def test_complement_of_overlapping_references_is_all_that_is_disjoint_from_them(case):
    shape, a, b = case
    check_complement_of_overlapping(shape, a + b)


@pytest.mark.parametrize("extent", [8, 12, 30])
def test_complement_of_any_two_references_is_all_that_is_disjoint_from_them(extent):
    for used in itertools.product(all_refs((extent,)), repeat=2):
        check_complement_of_overlapping((extent,), used)


def entry(names):
    """The entry of a plan for one dimension, as Python prints it."""
    return repr(tuple(names) if len(names) > 1 else names[0] if names else None)


@given(shapes.flatmap(lambda s: st.tuples(st.just(s), axis_parts(s))))
def test_text_names_axes_by_letter_and_sub_axes_by_extent(case):
    shape, parts = case
    mesh = mesh_of(*shape)
    names = "xyzw"
    texts = [f"{names[axis]}:({pre_size}){size}" for axis, pre_size, size in parts]
    assert call("AxesToString", parts) == entry(texts)
    short = [
        names[axis] if size == shape[axis] else text
        for (axis, _, size), text in zip(parts, texts, strict=True)
    ]
    assert call("AxesToStringOn", *mesh, parts) == entry(short)


def test_axes_after_the_fourth_are_named_by_number():
    assert call("AxesToStringOn", *mesh_of(2, 2, 2, 2, 2), [[4, 1, 2], [3, 1, 2]]) == "('a4', 'w')"


def test_digits_of_the_model_follow_the_definition():
    # Axis of 8 as (2, 2, 2), middle part: 0 0 1 1 0 0 1 1.
    assert np.array_equal(digits(mesh_of(8), (0, 2, 2)), [0, 0, 1, 1, 0, 0, 1, 1])
    assert shard_indices(mesh_of(2, 4), ((1, 1, 2),)) == (0, 0, 1, 1, 0, 0, 1, 1)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ([[0, 1]], r"an axis reference is \[axis, pre_size, size\], not 2 numbers"),
        ([[0, 0, 2]], r"axis reference \[0, 0, 2\] does not have positive sizes"),
        ([[0, 1, -2]], r"axis reference \[0, 1, -2\] does not have positive sizes"),
        ([[0, 2**40, 2**40]], r"does not have positive sizes that fit an axis"),
        ([[2**40, 1, 2]], r"1099511627776 is no number of an axis or a dimension"),
    ],
)
def test_malformed_reference_is_an_error_that_shows_it(axes, message):
    with pytest.raises(ValueError, match=message):
        call("Canonical", axes)
