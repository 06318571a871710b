"""Numbers of what `schedule_collectives` has changed."""

import numpy as np
from tests.numerical.optimize.checks import assert_keeps_numbers
from tests.optimize.programs import Weights

import distir_ext as dx

NAME = "schedule_collectives"


def test_numbers():
    rng = np.random.default_rng(0)
    x, y, w1, w2 = (rng.standard_normal((8, 8), "float32") for _ in range(4))
    wanted = x @ w1 + np.maximum(y, 0) @ w2
    assert_keeps_numbers(Weights, dx.Mesh((4,), ("x",)), wanted, (x, y, w1, w2), NAME)
