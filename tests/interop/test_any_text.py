"""Any text is a sharding or one error; any sharding is printed and read as the same."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distir_ext as dx
from distir_ext.interop import gspmd, shardy

HLO_WORDS = [
    *(
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        ",",
        "=",
        "<=",
        ":",
        "?",
        " ",
        "'a'",
        "'b'",
        "0",
        "1",
        "2",
        "4",
    ),
    *("devices=[", "last_tile_dims={", "replicated", "manual", "unreduced", "unknown", "maximal"),
    *("mesh['a'=2,'b'=2]", "device=", "T(1,0)", "shard_as ", "metadata={", "/*", "*/", "//", '"'),
    *("{devices=[2,2]<=[4]", "{mesh['a'=2,'b'=2], [{'a'}, ", "device_ids=(", "\\", "\ud800"),
]
SDY_WORDS = [
    *("<", ">", "{", "}", "[", "]", "(", ")", ",", "=", ":", "?", "p1", " ", '"', "\\22", "@", "0"),
    *('"x"', '"y":(1)2', "@mesh", 'mesh<["x"=2]>', "replicated=", "unreduced=", "max", "//", "/*"),
    *('<@mesh, [{"x"}, ', "device_ids=[", "#sdy.sharding", "#sdy.mesh", "\ud800", "ä"),
]
SYSTEMS = [
    (gspmd.parse, HLO_WORDS),
    (shardy.parse, SDY_WORDS),
    (shardy.parse_mesh, SDY_WORDS),
    (shardy.parse_per_value, SDY_WORDS),
]


def read(parse, text):
    """Returns the parsed value and the error; one of them is None."""
    try:
        return parse(text), None
    except gspmd.FormatError as error:
        return None, error


@pytest.mark.parametrize(("parse", "words"), SYSTEMS)
def test_any_words_are_a_value_or_one_error(parse, words, sample):
    texts = st.lists(st.sampled_from(words), max_size=12).map("".join) | st.text(max_size=20)

    @settings(max_examples=sample(200, 1_000, 5_000, 5_000))
    @given(texts)
    def check(text):
        found, error = read(parse, text)
        if error is not None:
            assert error.text == text
            assert 0 <= error.position <= len(text)
            assert error.expected in str(error)
            str(error).encode()  # can be printed
        elif not isinstance(found, tuple):
            assert parse(str(found)) == found

    check()


NAMES = ["x", "y", "a b", "it's", 'q"', "\\", "ä"]


@st.composite
def shardings(draw, with_manual=False):
    """Shardings on a mesh that is written in, of which every part may be an axis of its own."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    sizes = [draw(st.sampled_from([1, 2, 3, 4, 6])) for _ in names]
    size = math.prod(sizes)
    ids = draw(st.none() | st.permutations(range(size)) if size < 20 else st.none())
    mesh = shardy.LogicalMesh(tuple(zip(names, sizes, strict=True)), tuple(ids or ()))
    refs = []
    for name, extent in mesh.axes:
        cut = draw(st.sampled_from([n for n in range(1, extent) if extent % n == 0] or [1]))
        parts = [(1, cut), (cut, extent // cut)] if cut > 1 else [(1, None)]
        refs += [shardy.AxisRef(name, *part) for part in parts]
    groups = [[] for _ in range(6)]
    for ref in draw(st.permutations(refs)):
        groups[draw(st.integers(0, 5))].append(ref)
    rank = draw(st.integers(1, 2))
    dims = tuple(shardy.DimSharding(tuple(axes)) for axes in groups[:rank])
    return shardy.Sharding(
        mesh,
        dims,
        replicated=tuple(groups[2]),
        unreduced=tuple(groups[3]),
        manual=tuple(groups[4]) if with_manual else (),
    ).on(mesh)


@given(shardings())
def test_shardy_round_trip(sharding):
    assert shardy.parse(str(sharding)) == sharding
    if not sharding.unreduced:
        mesh, dims = shardy.to_mesh_dims(sharding)
        if mesh.size > 1:
            again = shardy.from_mesh_dims(mesh, dims)
            hlo = gspmd.HloSharding
            assert hlo.from_shardy(again) == hlo.from_shardy(sharding.closed())


@given(shardings(with_manual=True))
def test_gspmd_round_trip(sharding):
    named = gspmd.HloSharding("named", named=sharding)
    assert gspmd.parse(str(named)) == named
    canonical = named.canonical()
    assert gspmd.parse(str(canonical)) == canonical
    assert canonical.to_v1().canonical() == canonical
    assert canonical.canonical() == canonical
    if canonical.kind == "tiled":
        again = canonical.to_shardy(sharding.mesh.to_mesh())
        assert gspmd.HloSharding.from_shardy(again) == canonical
        # Axes of size 1 are not seen by GSPMD; what is replicated need not be said.
        assert again == without_small_axes(sharding)


def without_small_axes(sharding):
    def kept(refs):
        return tuple(ref for ref in refs if ref.size or sharding.mesh.sizes[ref.name] > 1)

    return shardy.Sharding(
        sharding.mesh,
        tuple(shardy.DimSharding(kept(dim.axes)) for dim in sharding.dims),
        unreduced=kept(sharding.unreduced),
        manual=kept(sharding.manual),
    )


@given(st.data())
def test_any_mesh_takes_a_sharding_or_says_why_not(data):
    size = data.draw(st.sampled_from([4, 6, 8, 12]))
    order = tuple(data.draw(st.permutations(range(size)) | st.just(range(size))))
    rows = data.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    sharding = gspmd.HloSharding("tiled", (rows, size // rows), order)
    own_mesh, own_dims = sharding.to_mesh_dims()
    assert gspmd.HloSharding.from_mesh_dims(own_mesh, own_dims) == sharding.canonical()
    shape = data.draw(st.sampled_from([(2, size // 2), (size,), (size // 2, 2)]))
    mesh = dx.Mesh(shape, ("x", "y")[: len(shape)])
    with contextlib.suppress(ValueError):
        found, dims = sharding.to_mesh_dims(mesh)
        assert gspmd.HloSharding.from_mesh_dims(found, dims) == sharding.canonical()
