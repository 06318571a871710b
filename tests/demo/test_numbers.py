"""Tests of the comparison of demonstration results, and of demonstration weights."""

from __future__ import annotations

import numpy as np
import pytest

from distir_ext.demo.case import normal_weights
from distir_ext.demo.run import relative_rmse


def test_relative_rmse():
    expected = np.array([3.0, 4.0], dtype="float32")
    assert relative_rmse(expected, expected) == 0
    assert relative_rmse(expected * np.float32(1.5), expected) == pytest.approx(0.5)
    assert relative_rmse(np.ones(2), np.zeros(2)) == np.inf
    assert relative_rmse(np.zeros(2), np.zeros(2)) == 0
    assert np.isnan(relative_rmse(np.array([np.nan, 1]), np.ones(2)))


@pytest.mark.parametrize("other", [np.ones((2, 1), "float32"), np.ones(2, "float64")])
def test_results_of_another_shape_or_type_are_refused(other):
    with pytest.raises(ValueError, match="the partitioned program returns"):
        relative_rmse(other, np.ones(2, "float32"))


def test_weights_keep_the_variance():
    weights = normal_weights({"w": (512, 256), "scale": (512,)}, np.random.default_rng(0))
    assert weights["w"].dtype == np.float32
    assert np.std(weights["w"]) == pytest.approx(1 / 16, rel=0.02)
    assert np.mean(weights["scale"]) == pytest.approx(1, abs=0.02)
