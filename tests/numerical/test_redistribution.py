"""Redistributions on CPU workers keep all elements bit for bit."""

import math

import numpy as np
import pytest
from tests.redistribute.model import all_shardings
from tests.redistribute.module_stages import ACROSS, EIGHT, stages
from tests.redistribute.programs import redistributions, sampled_pairs
from tests.targets import QUICK

import distir_ext as dx


def run_all(pairs, tensor_shape, num_workers, dtype):
    mod = redistributions(pairs, tensor_shape, dtype)
    stages(mod)
    whole = np.arange(math.prod(tensor_shape)).reshape(tensor_shape).astype(dtype)
    with dx.Session(num_workers) as session:
        model = session.load(dx.build(mod, QUICK))
        for index, pair in enumerate(pairs):
            moved = model[f"f{index}"](whole).numpy()
            assert moved.dtype == whole.dtype
            np.testing.assert_array_equal(moved, whole, err_msg=str(pair))


@pytest.mark.parametrize(
    ("shape", "rank", "tensor_shape"),
    [
        ((2, 2), 1, (8,)),
        ((2, 2), 2, (4, 8)),
        ((2, 4), 2, (8, 16)),
        ((2, 2, 2), 2, (8, 8)),
        ((2, 2, 2), 3, (8, 8, 8)),
    ],
    ids=str,
)
def test_any_sharding_to_any_other_on_one_mesh(shape, rank, tensor_shape):
    pairs = sampled_pairs(shape, rank, 250)
    run_all(pairs, tensor_shape, math.prod(shape), "int32")


@pytest.mark.parametrize("dtype", ["float16", "float64", "uint8", "bool"])
def test_element_types(dtype):
    run_all(sampled_pairs((2, 2), 2, 12, seed=1), (4, 8), 4, dtype)


def test_between_device_sets():
    run_all(ACROSS, (4, 12), 8, "int32")


def test_uneven_tensors_between_random_meshes():
    """Extents that nothing divides: what is sharded is padded."""
    rng = np.random.default_rng(3)
    meshes = [
        ((3, 2), (0, 1, 2, 3, 4, 5)),
        ((2, 2, 2), EIGHT),
        ((2, 2), (2, 3, 6, 7)),
        ((3,), (7, 0, 4)),
    ]
    sides = [(shape, ids, dims) for shape, ids in meshes for dims, _ in all_shardings(shape, 2)]
    pairs = [tuple(sides[i] for i in rng.choice(len(sides), 2)) for _ in range(40)]
    run_all(pairs, (11, 13), 8, "int32")
