"""Layouts say of every device which block it holds."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.native.library import call

from .model import cells, mesh_of, meshes, num_shards, sharding_of, shardings, shards

SHAPES = [(1,), (4,), (6,), (3, 2), (2, 4), (2, 2, 2, 2), (2, 3, 5)]


def layout_of(mesh, sharding):
    plan = json.loads(
        call("TransferPlan", *mesh, sharding, *mesh, sharding, [0] * len(sharding[0]), ())
    )
    assert plan["source"] == plan["target"]
    return plan["source"]


@given(meshes(SHAPES).flatmap(lambda m: st.tuples(st.just(m), shardings(m[0]))))
def test_block_of_a_device_is_its_shard(case):
    mesh, sharding = case
    layout = layout_of(mesh, sharding)
    devices = [first + i * step for first, n, step in layout["devices"] for i in range(n)]
    assert devices == list(mesh[1])
    dims = sharding[0]
    tensor = cells(tuple(2 * num_shards(axes) for axes in dims))
    held = shards(mesh, dims, tensor)
    for position, device in enumerate(devices):
        part = tensor
        for dim, digits in enumerate(layout["dims"]):
            index = 0
            for stride, size in digits:
                index = index * size + position // stride % size
            part = np.split(part, num_shards(dims[dim]), axis=dim)[index]
        np.testing.assert_array_equal(part, held[device])


def test_text_does_not_grow_with_devices_in_order():
    sharding = sharding_of(((0, 1, 4096),), ())
    assert layout_of(mesh_of(4096), sharding) == {
        "devices": [[0, 4096, 1]],
        "dims": [[[1, 4096]], []],
    }
