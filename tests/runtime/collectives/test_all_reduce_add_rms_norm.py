"""distir.runtime.all_reduce_add_rms_norm against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi

from distir_ext.params.host_array import host_array
from distir_ext.workers.base import WorkerError

EPSILON = 1e-5
GROUPS = "[[0,1],[2,3]]"
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def run(runner, xs, residuals, weight, groups=GROUPS, out_shape=None):
    """The sums and norms of all workers."""
    kept, arguments = [], []
    for x, residual in zip(xs, residuals, strict=True):
        inputs = []
        for value in (x, residual, weight):
            kept.append(host_array(value))
            inputs.append(kept[-1].shard([0] * value.ndim, value.shape))
        shapes = [tvm_ffi.Shape(out_shape or x.shape)] * 2
        arguments.append(
            ["all_reduce_add_rms_norm", *inputs, groups, EPSILON, shapes, x.dtype.name]
        )
    idle = runner.workers.num_workers - len(xs)
    functions = ["distir.test.run_builtin"] * len(xs) + [None] * idle
    results = runner.workers.run("test", functions, arguments + [[]] * idle)
    return [[out.numpy() for out in outs] for outs in results[: len(xs)]]


def norm(total, weight):
    """In float32, rounded once."""
    wide = total.astype(np.float32)
    mean = np.mean(wide.astype(np.float64) ** 2, axis=-1, keepdims=True)
    return (wide / np.sqrt(mean + EPSILON) * weight.astype(np.float32)).astype(total.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5,), (3, 1), (2, 7, 33), (4, 4100), (0, 8)])
def test_is_the_norm_of_the_sum(runner_of, dtype, shape):
    rng = np.random.default_rng(3)

    def random(shape):
        return rng.standard_normal(shape).astype(DTYPES[dtype])

    xs = [random(shape) for _ in range(4)]
    residuals = [random(shape)] * 4
    weight = random(shape[-1:])
    results = run(runner_of(4), xs, residuals, weight)
    for rank, (total, normed) in enumerate(results):
        first = rank // 2 * 2
        wide = xs[first].astype(np.float32) + xs[first + 1].astype(np.float32)
        reduced = wide.astype(DTYPES[dtype])
        rounded = reduced.astype(np.float32) + residuals[0].astype(np.float32)
        expected = rounded.astype(DTYPES[dtype])
        np.testing.assert_array_equal(total.view("uint8"), expected.view("uint8"))
        step = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
        wanted = norm(expected, weight).astype(np.float32)
        np.testing.assert_allclose(normed.astype(np.float32), wanted, rtol=step, atol=1e-6)
        np.testing.assert_array_equal(normed.view("uint8"), results[first][1].view("uint8"))


@pytest.mark.parametrize(
    ("residual", "weight", "message"),
    [
        ((4, 3), (4,), "out has shape"),
        ((3, 4), (3,), "weight is float32 of shape .*, the last dimension of x is 4 float32"),
    ],
)
def test_wrong_shapes_are_errors(fresh_threads, residual, weight, message):
    xs = [np.ones((3, 4), "float32")] * 4
    residuals = [np.ones(residual, "float32")] * 4
    with pytest.raises(WorkerError, match=f"all_reduce_add_rms_norm.*{message}"):
        run(fresh_threads(4), xs, residuals, np.ones(weight, "float32"))
