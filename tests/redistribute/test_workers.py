"""Redistributions on CPU workers: what comes out is what went in, bit by bit."""

import math

import numpy as np
import pytest
import tvm
from tests.targets import QUICK

import distir_ext as dx
from distir_ext.testing import verify

from .model import all_shardings
from .programs import redistributions, sampled_pairs

FOUR, EIGHT = (0, 1, 2, 3), tuple(range(8))
X, Y = (0, 1, 2), (1, 1, 2)
ACROSS = [  # pairs of sides on different device sets
    (((2,), (0, 1), ((X,), ())), ((2,), (2, 3), ((), (X,)))),
    (((2, 2), FOUR, ((X,), (Y,))), ((2,), (2, 3), ((X,), ()))),
    (((2,), (2, 3), ((X,), ())), ((2, 2), FOUR, ((), (Y, X)))),
    (((2, 2), FOUR, ((), ())), ((2,), (1, 2), ((X,), ()))),
    (((1,), (3,), ((), ())), ((2, 2), FOUR, ((X, Y), ()))),
    (((2, 2), FOUR, ((X, Y), ())), ((1,), (0,), ((), ()))),
    (((2, 2), (0, 2, 4, 6), ((X,), (Y,))), ((2, 2), (1, 3, 5, 7), ((Y,), (X,)))),
    (((4,), FOUR, (((0, 1, 4),), ())), ((3,), (1, 5, 6), ((), ()))),
]


def stages(mod):
    """The module after each pass, verified."""
    mod = dx.transform.PropagateSharding()(mod)
    verify(mod, "propagated")
    legal = dx.transform.LegalizeRedistribute()(mod)
    verify(legal, "legalized")
    lowered = dx.transform.LowerDistIR()(legal)
    verify(lowered, "lowered")
    return mod, legal, lowered


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


def test_legalized_twice_is_legalized_once():
    mod = redistributions(sampled_pairs((2, 2), 2, 20), (4, 8))
    once = dx.transform.LegalizeRedistribute()(mod)
    tvm.ir.assert_structural_equal(dx.transform.LegalizeRedistribute()(once), once)


def test_every_stage_prints_and_parses():
    for pairs in (sampled_pairs((2, 2, 2), 2, 40, seed=2), sampled_pairs((4,), 2, 40), ACROSS):
        mod, legal, lowered = stages(redistributions(pairs, (24, 24)))
        for stage in (mod, legal, lowered, dx.transform.LowerCCL()(lowered)):
            tvm.ir.assert_structural_equal(tvm.script.from_source(stage.script()), stage)
