"""Random shardings that a mesh can say."""

import math

import numpy as np
from hypothesis import strategies as st

# Tensors of the MLP with their ranks, and where they are read and made.
SIZES = {"batch": 6, "width": 7, "hidden": 12, "out": 6}
RANKS = {"x": 2, "up": 2, "rows": 2, "bias": 1, "hidden": 2, "active": 2, "down": 2, "y": 2}
TENSORS = [
    *(("fc1", tensor) for tensor in ("x", "up", "rows")),
    *(("add", tensor) for tensor in ("rows", "bias", "hidden")),
    *(("act", tensor) for tensor in ("hidden", "active")),
    *(("fc2", tensor) for tensor in ("active", "down", "y")),
]


@st.composite
def shardings(draw):
    """Tensors of the MLP on 6 devices in any order, along the axes of one mesh (2, 3)."""
    grid = np.reshape(draw(st.permutations(range(6))), (2, 3))
    found = []
    for at, tensor in draw(st.lists(st.sampled_from(TENSORS), min_size=1, unique=True)):
        axes = draw(st.permutations((0, 1)))[: draw(st.integers(0, 2))]
        dims = [draw(st.integers(0, RANKS[tensor] - 1)) for _ in axes]
        order = sorted(range(len(axes)), key=lambda i: dims[i])
        shards = {}
        for i in order:
            shards[dims[i]] = shards.get(dims[i], 1) * grid.shape[axes[i]]
        places = [axes[i] for i in order]
        rest = [place for place in (0, 1) if place not in places]
        groups = grid.transpose([*places, *rest]).reshape(math.prod(shards.values()), -1)
        found.append((at, tensor, shards, groups.tolist()))
    return found
