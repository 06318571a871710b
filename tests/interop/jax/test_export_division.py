"""Integers divided by 0 going out to JAX: quotient and remainder are 0, as in Relax and NumPy."""

import numpy as np
import pytest
from tvm import relax

import distir_ext as dx

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")

OPERATORS = ("divide", "floor_divide", "mod", "floor_mod")

A = np.array([7, -7, 0, -128, 5, -5, 3, 9], "int8")
B = np.array([0, 0, 0, -1, 2, 2, -2, 0], "int8")


def exported_and_built(dtype):
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((8,), dtype)) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            values = [builder.emit(getattr(relax.op, name)(x, y)) for name in OPERATORS]
            out = builder.emit_output(relax.Tuple(values))
        builder.emit_func_output(out)
    mesh = dx.Mesh(a=1)
    mod = dx.annotate(builder.get(), mesh, {"x": ("a",)})
    a, b = A.astype(dtype), B.astype(dtype)
    outside = jax.tree.leaves(jax.jit(dx.interop.jax.to_exported(mod).call)(a, b))
    with dx.Session(mesh) as session:
        inside = session.load(dx.build(mod))["main"](a, b)
    return outside, inside


def test_zero_as_divisor():
    for dtype in ("int8", "int32", "uint8"):
        for name, outside, inside in zip(OPERATORS, *exported_and_built(dtype), strict=True):
            message = f"{name} of {dtype}"
            np.testing.assert_array_equal(np.asarray(outside), np.asarray(inside), message)
            assert not np.asarray(outside)[B == 0].any(), message
