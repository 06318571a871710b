"""The axes that groups of devices, and pairs of them, lie along."""

import itertools
import math

import numpy as np
import pytest

import distir_ext as dx
from distir_ext.mesh.groups import axes_of_groups, axes_of_pairs

MESHES = [
    dx.Mesh(x=3, y=2),
    dx.Mesh(x=2, y=2, z=2),
    dx.Mesh(x=2, y=1, z=3),
    dx.Mesh((2, 3), ("x", "y"), device_ids=[5, 3, 1, 4, 2, 0]),
]


def groups_along(mesh, axes):
    ids = np.array(mesh.device_ids).reshape(mesh.shape)
    numbers = [mesh.axis_names.index(name) for name in axes]
    rows = np.moveaxis(ids, numbers, range(len(numbers)))
    count = math.prod(mesh.shape[number] for number in numbers)
    return rows.reshape(count, -1).T.tolist()


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_axes_in_any_order_are_found_again(mesh):
    sizes = dict(zip(mesh.axis_names, mesh.shape, strict=True))
    for count in range(len(mesh.shape) + 1):
        for axes in itertools.permutations(mesh.axis_names, count):
            found = axes_of_groups(mesh, groups_along(mesh, axes)[::-1])
            assert found == tuple(name for name in axes if sizes[name] > 1)


@pytest.mark.parametrize(
    "groups",
    [
        [[0, 1], [2, 3]],  # not all devices
        [[0, 3], [1, 2], [4, 5]],
        [[0, 1], [2, 3], [5, 4]],
        [[0, 1, 2], [3, 4, 5]],  # along no axis
        [[0, 6]],
        [[]],
        [],
    ],
)
def test_other_groups_lie_along_no_axes(groups):
    assert axes_of_groups(dx.Mesh(x=3, y=2), groups) is None


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_pairs_along_axes_are_found_again(mesh):
    for count in range(1, len(mesh.shape) + 1):
        for axes in itertools.combinations(mesh.axis_names, count):
            groups = groups_along(mesh, axes)
            numbers = [(n, (n + 1) % len(groups[0])) for n in range(len(groups[0]))]
            pairs = [[group[a], group[b]] for group in groups for a, b in numbers]
            found = axes_of_pairs(mesh, pairs, mesh.axis_names)
            sent = {
                (group[a], group[b]) for group in groups_along(mesh, found[0]) for a, b in found[1]
            }
            assert sent == {tuple(pair) for pair in pairs}


def test_as_few_axes_as_do():
    mesh = dx.Mesh(x=2, y=2)
    assert axes_of_pairs(mesh, [[0, 1], [2, 3]], ["x", "y"]) == (("y",), [(0, 1)])
    assert axes_of_pairs(mesh, [[0, 1]], ["x", "y"]) == (("x", "y"), [(0, 1)])
    assert axes_of_pairs(mesh, [[0, 0], [1, 1], [2, 2], [3, 3]], ["y"]) == ((), [(0, 0)])
    assert axes_of_pairs(mesh, [[0, 1]], ["y"]) is None  # not the same for all of x
    assert axes_of_pairs(mesh, [[0, 2], [1, 3]], ["y"]) is None
    assert axes_of_pairs(mesh, [[0, 4]], ["x", "y"]) is None
