"""All shardings of small meshes, which the tests of every format go through."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np

import distir_ext as dx
from distir_ext.signature.sharding import sharding_of

SHAPES = [(2, 4), (3, 2), (2, 2, 2), (4, 3, 2)]
AXES = ("dp", "tp", "ep")


def meshes(shape):
    """A mesh with devices in order, and one with a random order of other ids."""
    names = AXES[: len(shape)]
    shuffled = list(range(math.prod(shape)))
    random.Random(7).shuffle(shuffled)
    return dx.Mesh(shape, names), dx.Mesh(shape, names, shuffled)


def all_dims(names, rank=2):
    """Every way to put some of the axes on the dimensions of a tensor, in every order."""
    for count in range(len(names) + 1):
        for order in itertools.permutations(names, count):
            for cuts in itertools.combinations_with_replacement(range(count + 1), rank - 1):
                ends = (0, *cuts, count)
                lists = [order[begin:end] for begin, end in itertools.pairwise(ends)]
                yield tuple(each if len(each) > 1 else each[0] if each else None for each in lists)


def blocks(mesh, dims):
    """By device, which part of each dimension it has, as the compiler says it."""
    return dict(sharding_of((24,) * len(dims), "float32", mesh, dims).blocks)


def tiles(sharding):
    """Tile of each device in a tiled sharding of HLO, by the format's definition."""
    array = np.array(sharding.device_list).reshape(sharding.tile_dims)
    rank = len(sharding.data_dims)
    return {int(device): place[:rank] for place, device in np.ndenumerate(array)}
