"""Convolutions as they are built for CPUs, with every kind of dimension sharded."""

import ml_dtypes
import numpy as np
import pytest
from tests.runtime.test_convolution import expected
from tests.target.test_dispatch_convolution import convolution

import distir_ext as dx


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_sharded_and_built(dtype):
    """Batch, channels, groups and rows sharded, as built, equal sums over the kernel."""
    generator = np.random.default_rng(0)
    numpy_dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    options = {"padding": (1, 1), "groups": 2}
    if dtype == "int8":
        options["out_dtype"] = "int32"
    plans = [("x", None, None, None), (None, "x", None, None), (None, None, "x", None)]
    for plan in plans:
        data = generator.integers(-9, 9, (4, 8, 10, 12)).astype(numpy_dtype)
        weight = generator.integers(-9, 9, (12, 4, 3, 3)).astype(numpy_dtype)
        mod = convolution(data.shape, weight.shape, dtype, **options)
        mod = dx.annotate(mod, dx.Mesh(x=2), {"x": plan})
        executable = dx.build(mod)
        assert "distir.runtime.convolution" in executable.as_text()
        with dx.Session(2) as session:
            found = session.load(executable)["main"](data, weight).numpy()
        ones = np.ones(2, int)
        wanted = expected(
            data.astype("float64"), weight.astype("float64"), ones, ones, ones, ones, 2
        )
        scale = {"float16": 1e-3, "bfloat16": 8e-3}.get(dtype, 1e-6) * np.abs(wanted).max()
        assert np.abs(found.astype("float64") - wanted).max() <= scale
