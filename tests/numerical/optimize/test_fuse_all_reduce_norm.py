"""Numbers of what `fuse_all_reduce_norm` has changed."""

import numpy as np
from tests.numerical.optimize.checks import assert_keeps_numbers
from tests.optimize.programs import NormOfReduced

import distir_ext as dx

NAME = "fuse_all_reduce_norm"


def test_numbers_stay():
    rng = np.random.default_rng(0)
    shapes = ((8, 16), (16,), (8, 32), (32, 16))
    r, g, x, w = inputs = [rng.standard_normal(s, "float32") for s in shapes]
    c = r + x @ w
    d = c / np.sqrt(np.mean(c * c, axis=1, keepdims=True) + 0.0078125) * g
    assert_keeps_numbers(
        NormOfReduced, dx.Mesh((4,), ("tp",)), [c, d], inputs, NAME, tolerance=1e-4
    )
