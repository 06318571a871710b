"""An executable whose weights have every dtype, and a session to load it in."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

import distir_ext as dx

DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
)


def executable(mesh, weights, plan, functions=("main",)):
    """Functions that take one input and return it, with weights of the given shapes and dtypes."""
    builder = relax.BlockBuilder()
    for name in functions:
        x = relax.Var("x", relax.TensorType((4,), "float32"))
        held = [relax.Var(key, relax.TensorType(*value)) for key, value in weights.items()]
        with builder.function(name, [x, *held], attrs={"num_input": 1}):
            builder.emit_func_output(builder.emit(relax.op.add(x, x)))
    mod = builder.finalize()
    for name in functions:
        mod = dx.annotate(mod, mesh, plan, func=name)
    return dx.build(mod)


def random_array(shape, dtype, seed=0):
    """Values with random bytes; 0 or 1 where they are bool."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    count = int(np.prod(shape)) * dtype.itemsize
    return rng.integers(0, 256, count, dtype="uint8").view(dtype).reshape(shape)


def held(model, name, function="main"):
    """By device the shard of a weight that its worker holds."""
    weight = model[function].held_weights()[name]
    return {device: shard.numpy() for device, shard in weight.shards.items()}


def assert_same_bytes(actual, expected):
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    assert actual.tobytes() == expected.tobytes()


@pytest.fixture(scope="session")
def mesh():
    return dx.Mesh((4,), ("tp",))


@pytest.fixture(scope="session")
def every_dtype(mesh):
    """Weights named by dtype, (8, 3), rows over the four devices; a scalar and an empty one."""
    weights = {dtype: ((8, 3), dtype) for dtype in DTYPES}
    exe = executable(mesh, weights, dict.fromkeys(DTYPES, ("tp", None)))
    values = {dtype: random_array((8, 3), dtype, seed) for seed, dtype in enumerate(DTYPES)}
    return exe, values


@pytest.fixture(scope="session")
def two_weights(mesh):
    """w (8, 6) by rows and v (6,) replicated, float32."""
    exe = executable(mesh, {"w": ((8, 6), "float32"), "v": ((6,), "float32")}, {"w": ("tp", None)})
    values = {"w": random_array((8, 6), "float32"), "v": random_array((6,), "float32", 1)}
    return exe, values


@pytest.fixture(scope="session")
def session(mesh):
    with dx.Session(mesh) as opened:
        yield opened


def as_tvm(values):
    return {name: tvm.runtime.tensor(value) for name, value in values.items()}
