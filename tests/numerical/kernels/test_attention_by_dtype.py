"""Attention of float64 in float64, and an error of integers, as ``dx.build`` computes it."""

import numpy as np
import pytest
import tvm
from tests.targets import QUICK
from tvm import relax
from tvm.relax.op import nn

import distir_ext as dx


def built(dtype):
    types = [relax.TensorType((1, 5, 2, 4), dtype)] * 3
    params = [relax.Var(name, type_) for name, type_ in zip("qkv", types, strict=True)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(nn.attention(*params))
        builder.emit_func_output(result)
    mod = dx.annotate(builder.get(), dx.Mesh((1,), ("dp",)), {"q": (None,) * 4})
    return dx.build(mod, QUICK)


def test_float64_is_not_rounded():
    arrays = np.random.default_rng(0).standard_normal((3, 1, 5, 2, 4))
    machine = relax.VirtualMachine(built("float64"), tvm.cpu())
    got = machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()
    q, k, v = (each.transpose(0, 2, 1, 3) for each in arrays)
    weights = np.exp(q @ k.transpose(0, 1, 3, 2) / 2)
    wanted = (weights / weights.sum(-1, keepdims=True)) @ v
    np.testing.assert_allclose(got, wanted.transpose(0, 2, 1, 3), 1e-12)


def test_integers_are_refused():
    with pytest.raises(TypeError, match=r"R.nn.attention of int8 has no kernel; cast its"):
        built("int8")
