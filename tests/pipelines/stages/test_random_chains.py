"""Random chains, sharded and cut at random, on stage meshes of any shapes, in microbatches."""

import itertools
import math
import random

import numpy as np
import pytest
from tests.stages.programs import chain, chain_result, chain_values

import distir_ext as dx

WIDTHS = (3, 4, 6, 8, 10, 12)
SIZES = (1, 2, 3)


def random_meshes(rng, names, count):
    """Meshes one behind the other; some stages share the mesh of another."""
    meshes, first = [], 0
    for _ in range(count):
        if meshes and rng.random() < 0.2:
            meshes.append(rng.choice(meshes))
            continue
        shape = tuple(rng.choice(SIZES) for _ in names)
        devices = range(first, first + math.prod(shape))
        meshes.append(dx.Mesh(shape, names, device_ids=devices))
        first = devices.stop
    return meshes, first


def random_dims(rng, mesh, shape):
    dims = [None] * len(shape)
    for axis, size in zip(mesh.axis_names, mesh.shape, strict=True):
        dim = rng.randrange(len(shape))
        if rng.random() < 0.6 and dims[dim] is None and size <= shape[dim]:
            dims[dim] = axis
    return tuple(dims)


@pytest.mark.parametrize("seed", range(16))
def test_a_random_chain_computes_the_same(seed):
    rng = random.Random(seed)
    widths = [rng.choice(WIDTHS) for _ in range(rng.randint(3, 7))]
    layers = len(widths) - 1
    names = ("tp", "dp")[: rng.randint(1, 2)]
    meshes, num_devices = random_meshes(rng, names, rng.randint(1, min(4, 2 * layers)))
    rows, microbatches = rng.choice([3, 4, 6]), rng.randint(1, 3)
    base = rng.choice(meshes)
    plan = {f"w{i}": random_dims(rng, base, widths[i : i + 2]) for i in range(layers)}
    plan["x"] = random_dims(rng, base, (rows, widths[0]))
    mod = dx.annotate(chain(widths, rows), base, plan)
    slack = rng.choice([0.0, 0.05, 0.5])
    mod = dx.transform.AssignStages(meshes, slack=slack, operations=1e6)(mod)
    x, weights = chain_values(widths, rows * microbatches, seed)
    with dx.Session(num_devices) as session:
        main = session.load(dx.build(mod), weights)["main"]
        in_turn = [mesh for mesh, _ in itertools.groupby(meshes)]
        is_interleaved = len(in_turn) > len(set(map(id, in_turn)))
        kinds = ["interleaved"] if is_interleaved else ["gpipe", "1f1b"]
        y = main.pipeline(microbatches, schedule=rng.choice(kinds))(x)
        np.testing.assert_allclose(y.numpy(), chain_result(x, weights), rtol=1e-4, atol=1e-5)
        wrong = dict(weights, w0=weights["w0"] + 1)
        assert not np.allclose(y.numpy(), chain_result(x, wrong), rtol=1e-4, atol=1e-5)
