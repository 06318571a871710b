"""Programs whose devices have several stages of a pipeline."""

import numpy as np
import pytest
from tests.lower.virtual_stage_programs import There, lowered, programs
from tests.meshes import meshes
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx


def run(mod, num_workers, *inputs, params=None):
    with dx.Session(num_workers) as session:
        return session.load(dx.build(mod), params=params)["main"](*inputs)


def expected_there(x, v, w):
    h = x @ v
    return (np.tanh(h) @ w + h) @ v.T, h


def test_calls_run_the_virtual_stages():
    rng = np.random.default_rng(0)
    x, v, w = (rng.standard_normal(shape, "float32") / 2 for shape in [(4, 8), (8, 8), (8, 8)])
    for actual, expected in zip(
        run(There, 3, x, params={"v": v, "w": w}), expected_there(x, v, w), strict=True
    ):
        np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-4, atol=1e-5)


@I.ir_module
class Sizes:
    """Symbolic sizes of a parameter, a match_cast and a shard, all used in the second stage."""

    I.module_global_infos(meshes((2,), (2,)))

    @R.function
    def main(x: R.Tensor(("n", 6), "float32"), y: R.Tensor(("m",), "float32")):
        R.func_attr({"distir.interleaved": [0, 2]})
        n, m = T.int64(), T.int64()
        k = T.int64()
        y0 = R.dist.annotate_sharding(y, "mesh[0]", "R")
        few = R.unique(y0)
        u = R.match_cast(few, R.Tensor((k,), "float32"))
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        a = R.exp(x0)
        a1 = R.dist.annotate_sharding(a, "mesh[1]", "S[0]")
        b = R.reshape(a1, R.shape([n, 2, 3]))
        b0 = R.dist.annotate_sharding(b, "mesh[0]", "S[0]")
        c = R.reshape(b0, R.shape([n * 6]))
        d = R.broadcast_to(R.sum(u), R.shape([m, k]))
        return (c, d)


def test_symbolic_sizes_are_passed_on():
    result = lowered(Sizes)
    second = result["main_stage2"]
    shapes = [param for param in second.params if isinstance(param.ty, relax.ShapeType)]
    assert shapes
    x = np.arange(24, dtype="float32").reshape(4, 6) / 9
    y = np.array([3, 1, 3, 2, 1], "float32")
    c, d = run(Sizes, 4, x, y)
    np.testing.assert_allclose(c.numpy(), np.exp(x).ravel(), rtol=1e-5)
    np.testing.assert_allclose(d.numpy(), np.full((5, 3), 6.0))


@I.ir_module
class Branching:
    """A branch in the second virtual stage that uses values of the first."""

    I.module_global_infos(meshes((1,), (1,)))

    @R.function
    def main(x: R.Tensor((4, 4), "float32"), flag: R.Tensor((), "bool")):
        R.func_attr({"distir.interleaved": [0, 1]})
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "R")
        flag0 = R.dist.annotate_sharding(flag, "mesh[0]", "R")
        a = R.exp(x0)
        a1 = R.dist.annotate_sharding(a, "mesh[1]", "R")
        b = R.negative(a1)
        b0 = R.dist.annotate_sharding(b, "mesh[0]", "R")
        if flag0:
            l0 = R.add(b0, a)
            c = R.multiply(l0, x0)
        else:
            c = R.subtract(b0, a)
        return c


@pytest.mark.parametrize("flag", [False, True])
def test_branches_use_what_was_passed_on(flag):
    assert len(programs(lowered(Branching))) == 3
    x = np.random.default_rng(0).standard_normal((4, 4), "float32")
    expected = np.zeros_like(x) if flag else -2 * np.exp(x)
    np.testing.assert_allclose(run(Branching, 2, x, np.array(flag)).numpy(), expected, rtol=1e-6)


@I.ir_module
class Overlapping:
    """Mesh 1 is a part of mesh 0; devices 2 and 3 have both sides of each transfer."""

    I.module_global_infos(
        {"mesh": [R.device_mesh((2, 2), I.Range(0, 4)), R.device_mesh((2,), I.Range(2, 4))]}
    )

    @R.function
    def main(x: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 16), "float32")):
        R.func_attr({"distir.interleaved": [0, 2]})
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0], S[1]")
        a = R.nn.relu(x0)
        a1 = R.dist.annotate_sharding(a, "mesh[1]", "S[0]")
        w1 = R.dist.annotate_sharding(w, "mesh[1]", "R")
        b = R.matmul(a1, w1)
        b0 = R.dist.annotate_sharding(b, "mesh[0]", "R, S[0]")
        c = R.add(b0, x0)
        return (c, b)


def test_meshes_that_overlap():
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, "float32") for shape in [(8, 16), (16, 16)])
    c, b = run(Overlapping, 4, x, w)
    expected = np.maximum(x, 0) @ w
    np.testing.assert_allclose(b.numpy(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(c.numpy(), expected + x, rtol=1e-4, atol=1e-4)
