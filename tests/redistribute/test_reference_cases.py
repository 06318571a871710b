"""Redistributions from papers and other systems, compared with those systems' sequences.

The sequences are those of Shardy's conversion of reshards to collectives: slices, one permutation,
all-to-alls, all-gathers. A plan is never slower under the same cost model.
"""

import math

import pytest
import tvm_ffi

from .model import UNIFORM, Planner, StepChecker

SIZES = [2.0**12, 2.0**21, 2.0**30]

# Mesh axes of size 2 unless given; x1 and x2 are the halves x:(1)2 and x:(2)2 of an axis of 4.
CASES = {
    "one axis to another dimension": ({}, "xz|y", [("all_to_all", "z", "x|yz")]),
    "two axes to one dimension": (
        {},
        "y|x|-",
        [("all_to_all", "x", "y|-|x"), ("all_to_all", "y", "-|-|xy")],
    ),
    "three axes to one dimension": (
        {},
        "y|xz|-",
        [("permute", "", "x|yz|-"), ("all_to_all", "x", "-|yz|x"), ("all_to_all", "yz", "-|-|xyz")],
    ),
    "slice, then move": ({}, "-|x|-", [("slice", "", "-|xyz|-"), ("all_to_all", "xyz", "-|-|xyz")]),
    "slice elsewhere, permute, move": (
        {},
        "-|x",
        [("slice", "", "yz|x"), ("permute", "", "xy|z"), ("all_to_all", "z", "xyz|-")],
    ),
    "slice one dimension, gather another": (
        {},
        "x|-",
        [("slice", "", "x|y"), ("all_gather", "x", "-|y")],
    ),
    "an axis by half of another": (
        {"x": 4, "z": 4},
        "z|x",
        [("permute", "", "z|y,x2"), ("all_gather", "x2", "z|y")],
    ),
    "axes of different sizes change places": (
        {"x": 4},
        "x|y",
        [("permute", "", "y,x2|x1"), ("all_to_all", "x2", "y|x")],
    ),
    "the minor axis stays, others go": (
        {},
        "yxz|-",
        [("permute", "", "zxy|-"), ("all_to_all", "y", "zx|y"), ("all_gather", "x", "z|y")],
    ),
    "axes of 2 and 3 change places": (
        {"y": 3},
        "x|y",
        [("all_to_all", "x", "-|yx"), ("permute", "", "-|xy"), ("all_to_all", "y", "y|x")],
    ),
    "4 shards to 6": (
        {"x": 4, "y": 6},
        "x|-",
        [("slice", "", "x,y:3|-"), ("permute", "", "y,x1|-"), ("all_gather", "x1", "y|-")],
    ),
    "order within a dimension": (
        {},
        "yz|-",
        [("permute", "", "zy|-"), ("all_to_all", "y", "z|y"), ("all_gather", "z", "-|y")],
    ),
    "major axes change places": (
        {},
        "xy|-",
        [("permute", "", "yx|-"), ("all_to_all", "x", "y|x"), ("all_to_all", "y", "-|xy")],
    ),
}


class Mesh:
    """Reads shardings as text on a mesh with the axes x, y, z."""

    def __init__(self, sizes):
        self.sizes = {"x": 2, "y": 2, "z": 2, **sizes}
        self.shape = tuple(self.sizes.values())

    def ref(self, text):
        """One axis, or a part of it."""
        axis, size = "xyz".index(text[0]), self.sizes[text[0]]
        if ":" in text:
            return axis, 1, int(text[2:])
        return (axis, int(text[1]), 2) if len(text) > 1 else (axis, 1, size)

    def axes(self, text):
        """The references of a dimension; between commas where one is a part."""
        parts = text.split(",") if "," in text or text[1:2].isdigit() else text.strip("-")
        return tuple(self.ref(part) for part in parts)

    def sharding(self, text):
        """All dimensions."""
        return tuple(self.axes(dim) for dim in text.split("|")), ()

    def seconds(self, source, sequence, size):
        """Cost of a sequence of collectives, in seconds."""
        ids = list(range(math.prod(self.shape)))
        now, total = self.sharding(source), 0.0
        for kind, moved, result in sequence:
            after = self.sharding(result)
            if kind == "permute":
                ends = (self.shape, ids, [*now, "none"], self.shape, ids, [*after, "none"])
                exchange = tvm_ffi.get_global_func("distir.test.ExchangeCost")
                total += float(exchange(UNIFORM, *ends, size)[0])
            elif kind != "slice":
                group = range(math.prod(ref[2] for ref in self.axes(moved)))
                local = size / math.prod(ref[2] for axes in now[0] for ref in axes)
                total += tvm_ffi.get_global_func("distir.test.CollectiveSeconds")(
                    UNIFORM, kind, [list(group)], local
                )
            now = after
        return total


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_no_plan_is_slower_than_the_known_sequence(name, size):
    sizes, source, sequence = CASES[name]
    mesh = Mesh(sizes)
    ends = mesh.sharding(source), mesh.sharding(sequence[-1][2])
    extent = math.prod(mesh.shape)
    rank = len(ends[0][0])
    steps, seconds, _ = Planner(mesh.shape, [extent] * rank, size, UNIFORM)(*ends)
    if extent**rank < 1e6:
        StepChecker(mesh.shape, rank).check(*ends, steps)
    assert seconds <= mesh.seconds(source, sequence, size) * (1 + 1e-9)


def test_where_the_known_sequence_is_not_the_fastest():
    # [xy|-] to [-|yx]: permute and all-to-all move 7/16 more of a block than two all-to-alls.
    mesh = Mesh({})
    sequence = [("permute", "", "yx|-"), ("all_to_all", "yx", "-|yx")]
    size = 2.0**30
    ends = mesh.sharding("xy|-"), mesh.sharding("-|yx")
    _, seconds, _ = Planner(mesh.shape, [8, 8], size, UNIFORM)(*ends)
    assert seconds < 0.6 * mesh.seconds("xy|-", sequence, size)
