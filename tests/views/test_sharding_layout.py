"""Blocks that pictures of shardings show, against NumPy's slicing."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import distir_ext as dx
from distir_ext.mesh.device_text import device_text
from distir_ext.views.drawing.sharding_layout import lay_out

ALL = (1000, 1000, 1000)


def layout_of(shape, mesh, dims, marked=(), most=ALL):
    return lay_out(dx.visualize(shape, mesh, dims).sharding, "", marked, most)


def cells_of(layout):
    return [cell for grid in layout.grids if grid for row in grid.cells for cell in row if cell]


def held(shape, mesh, dims):
    """By device a mask of the elements that it holds: what NumPy's reshape of the mesh says."""
    ids = np.array(mesh.device_ids).reshape(mesh.shape)
    masks = {}
    for place in itertools.product(*map(range, mesh.shape)):
        mask = np.ones(shape, bool)
        for dim, names in enumerate(dims):
            axes = [mesh.axis_names.index(name) for name in names]
            sizes = [mesh.shape[axis] for axis in axes]
            part = np.ravel_multi_index([place[axis] for axis in axes], sizes) if axes else 0
            count = int(np.prod(sizes))
            step = -(-shape[dim] // count)
            inside = np.zeros(shape[dim], bool)
            inside[part * step : (part + 1) * step] = True
            mask &= inside.reshape([-1 if d == dim else 1 for d in range(len(shape))])
        masks[int(ids[place])] = mask
    return masks


@st.composite
def cases(draw):
    sizes = draw(st.sampled_from([(2,), (3, 2), (2, 2, 2), (4, 2), (5,), (1, 3)]))
    names = ("dp", "tp", "pp")[: len(sizes)]
    ids = draw(st.permutations(range(10, 10 + int(np.prod(sizes)))))
    mesh = dx.Mesh(sizes, names, ids)
    ndim = draw(st.integers(0, 4))
    dims = [[] for _ in range(ndim)]
    for name in draw(st.permutations(names)):
        at = draw(st.integers(-1, ndim - 1))
        if at >= 0:
            dims[at].append(name)
    counts = [int(np.prod([mesh.shape[names.index(n)] for n in each])) for each in dims]
    shape = tuple(draw(st.integers(count, count + 6)) for count in counts)
    return shape, mesh, tuple(map(tuple, dims))


@given(cases())
def test_blocks_are_those_that_numpy_cuts(case):
    shape, mesh, dims = case
    masks = held(shape, mesh, dims)
    cells = cells_of(layout_of(*case))
    for cell in cells:
        index = tuple(slice(*map(int, text.split(":"))) for text in cell.ranges)
        mask = np.zeros(shape, bool)
        mask[index] = True
        for device in cell.devices:
            np.testing.assert_array_equal(masks[device], mask)
        assert cell.empty == (not mask.any())
        assert cell.label == device_text(cell.devices, 12)
    assert Counter(device for cell in cells for device in cell.devices) == Counter(mesh.device_ids)


@given(cases())
def test_ranges_and_padding_beside_a_grid_are_those_of_its_blocks(case):
    layout = layout_of(*case)
    shard = dx.visualize(*case).sharding.shard_shape
    for grid in layout.grids:
        for side, across in ((layout.rows, False), (layout.columns, True)):
            for number, part in enumerate(side.parts if side else ()):
                line = [row[number] for row in grid.cells] if across else grid.cells[number]
                assert {cell.ranges[side.dim] for cell in line} == {part.range}
                begin, end = int(part.begin), int(part.end)
                assert end - begin + part.padding == shard[side.dim]
                assert part.padded == pytest.approx(part.padding / shard[side.dim])


def test_neighbours_have_different_colors():
    layout = layout_of((64, 64, 4), dx.Mesh(a=16, b=16, c=2), ("a", "b", "c"))
    for grid in layout.grids:
        for row, below in itertools.pairwise(grid.cells):
            assert all(one.color != other.color for one, other in zip(row, below, strict=True))
            assert all(one.color != other.color for one, other in itertools.pairwise(row))


def test_of_many_blocks_the_first_and_the_last_are_shown_and_the_rest_is_counted():
    mesh = dx.Mesh(dp=64, tp=8)
    layout = layout_of((128, 8), mesh, ("dp", "tp"), most=(5, 4, 1))
    assert [part and part.number for part in layout.rows.parts] == [0, 1, 2, None, 63]
    assert [part and part.number for part in layout.columns.parts] == [0, 1, None, 7]
    assert layout.notes[1:] == (
        "dimension 0: 4 of 64 blocks are drawn",
        "dimension 1: 3 of 8 blocks are drawn",
    )
    (grid,) = layout.grids
    assert [cell and cell.label for cell in grid.cells[2]] == ["16", "17", None, "23"]
    assert grid.cells[3] == (None, None, None, None)


def test_a_gap_stands_for_more_than_one_block():
    layout = layout_of((9,), dx.Mesh(x=9), ("x",), marked=[4], most=(5, 5, 1))
    assert [part and part.number for part in layout.columns.parts] == [0, 1, 2, 3, 4, None, 8]


def test_blocks_of_marked_devices_are_shown():
    mesh = dx.Mesh(dp=64, tp=8)
    layout = layout_of((128, 8), mesh, ("dp", "tp"), marked=[8 * 40 + 6], most=(5, 4, 1))
    assert [part and part.number for part in layout.rows.parts] == [0, 1, 2, None, 40, None, 63]
    assert [cell.label for cell in cells_of(layout) if cell.marked] == ["326"]


def test_beyond_two_sharded_dimensions_there_are_grids():
    mesh = dx.Mesh(a=2, b=2, c=2, d=2)
    layout = layout_of((4, 6, 8, 10), mesh, ("a", "b", "c", "d"))
    titles = [grid.title for grid in layout.grids]
    assert titles == [f"dim 0: {a}, dim 1: {b}" for a in ("0:2", "2:4") for b in ("0:3", "3:6")]
    assert (layout.rows.dim, layout.columns.dim) == (2, 3)
    few = layout_of((4, 6, 8, 10), mesh, ("a", "b", "c", "d"), most=(9, 9, 2))
    assert [grid and grid.title for grid in few.grids][1:] == [None, titles[3]]
    assert "2 of 4 grids are drawn" in few.notes


def test_dimensions_that_are_not_sharded_are_left_out_and_said():
    layout = layout_of((4, 6, 8, 10), dx.Mesh(a=2, b=2), ("a", None, None, "b"))
    assert (layout.rows.dim, layout.columns.dim) == (0, 3)
    assert "not sharded and not drawn: dimensions 1 (6), 2 (8)" in layout.notes


def test_axes_say_what_they_do():
    mesh = dx.Mesh(dp=2, tp=4, one=1)
    layout = layout_of((16, 8), mesh, (("tp", "dp"), None))
    assert layout.rows.title == "dim 0: 16 over tp, dp (4 x 2)"
    assert layout.axes == (
        ("dp = 2", "shards dim 0"),
        ("tp = 4", "shards dim 0"),
        ("one = 1", "has one device"),
    )
    assert layout_of((16, 8), mesh, None).axes[1] == ("tp = 4", "replicates")


@pytest.mark.parametrize(
    ("devices", "most", "text"),
    [
        ([], 0, ""),
        ([3], 0, "3"),
        ([0, 2], 0, "0, 2"),
        ([0, 1], 0, "0, 1"),
        ([0, 1, 2], 0, "0..2"),
        (range(512), 12, "0..511"),
        (range(0, 512, 8), 12, "0 … 504 (64)"),
        (range(0, 512, 8), 18, "0, 8 … 504 (64)"),
        ([*range(9), *range(20, 90)], 8, "0 … 89 (79)"),
    ],
)
def test_device_lists(devices, most, text):
    assert device_text(list(devices), most) == text
