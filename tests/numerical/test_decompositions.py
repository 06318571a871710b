"""Decompositions beyond the operators' cases: hard values, symbolic sizes."""

import numpy as np
import pytest
import tvm
from tests.decompose.programs import MESH, program
from tests.targets import QUICK
from tvm.relax import op
from tvm.relax.op import nn

import distir_ext as dx


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "softmax"])
def test_symbolic_axis(name):
    n = tvm.tirx.Var("n", "int64")
    apply = {
        "layer_norm": lambda x, w: nn.layer_norm(x, w, w, [-1]),
        "rms_norm": lambda x, w: nn.rms_norm(x, w, [-1]),
        "softmax": lambda x, w: nn.softmax(op.multiply(x, w), -1),
    }[name]
    mod = program([(4, n), (n,)], [(None, "x"), ("x",)], apply, ("float32", "float32"))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype("float32") for shape in ((4, 24), (24,))]
    with dx.Session(MESH) as session:
        got = session.load(dx.build(mod, QUICK))["main"](*arrays).numpy()
    np.testing.assert_allclose(got, in_float64(name, *arrays), rtol=1e-5, atol=1e-6)


def in_float64(name, x, w):
    x, w = x.astype("float64"), w.astype("float64")
    if name == "softmax":
        powers = np.exp(x * w - (x * w).max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)
    if name == "rms_norm":
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w + w


@pytest.mark.parametrize("name", ["layer_norm", "group_norm", "instance_norm"])
def test_norms_of_values_far_from_zero_are_as_accurate_as_on_one_device(name):
    shape = (2, 4, 64)
    apply = {
        "layer_norm": lambda x, w: nn.layer_norm(x, w, w, [-1]),
        "group_norm": lambda x, w: nn.group_norm(x, w, w, 4, 1, [2]),
        "instance_norm": lambda x, w: nn.instance_norm(x, w, w, 1, [2]),
    }[name]
    weights = (64,) if name == "layer_norm" else (4,)
    sharded = ("x",) if name == "layer_norm" else (None,)
    mod = program([shape, weights], [(None, None, "x"), sharded], apply, ("float32", "float32"))
    rng = np.random.default_rng(0)
    x = (1000 + rng.standard_normal(shape)).astype("float32")
    w = np.ones(weights, "float32")
    with dx.Session(MESH) as session:
        got = session.load(dx.build(mod, QUICK))["main"](x, w).numpy()
    wanted = in_float64("layer_norm", x, np.ones(64))
    # A mean near 1000 is rounded to 2^-24 * 1000 = 6e-5; of the squares, it would be to 0.06.
    assert np.abs(got - wanted).max() < 3e-4
