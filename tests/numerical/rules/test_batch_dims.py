"""Products of stacks of matrices, written on separate batch dimensions."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tests.propagation.stacked_products import (
    MESH,
    Attention,
    Chain,
    Einsum,
    MergedAttention,
    Symbolic,
    UsedMerged,
    annotated,
)
from tests.targets import QUICK
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


@I.ir_module
class AcrossTheBatch:
    """A softmax over what is merged keeps it so, and what has it by itself."""

    @R.function
    def main(
        a: R.Tensor((2, 4, 3, 3), "float32"),
        b: R.Tensor((2, 4, 3, 3), "float32"),
        c: R.Tensor((8, 3, 3), "float32"),
    ) -> R.Tuple(R.Tensor((8, 3, 3), "float32"), R.Tensor((8, 3, 3), "float32")):
        a1 = R.reshape(a, (8, 3, 3))
        b1 = R.reshape(b, (8, 3, 3))
        d = R.matmul(a1, b1)
        return (R.nn.softmax(d, axis=0), R.add(R.nn.relu(d), c))


@I.ir_module
class Branches:
    @R.function
    def main(
        flag: R.Tensor((), "bool"),
        a: R.Tensor((2, 4, 3, 3), "float32"),
        b: R.Tensor((2, 4, 3, 3), "float32"),
    ) -> R.Tensor((2, 4, 3, 3), "float32"):
        a1 = R.reshape(a, (8, 3, 3))
        if flag:
            b1 = R.reshape(b, (8, 3, 3))
            c1 = R.matmul(a1, b1)
            r = R.reshape(c1, (2, 4, 3, 3))
        else:
            b2 = R.reshape(b, (8, 3, 3))
            b3 = R.reshape(a, (8, 3, 3))
            c2 = R.matmul(b3, b2)
            r = R.reshape(c2, (2, 4, 3, 3))
        return r


def arguments(mod):
    generator = np.random.default_rng(5)
    values = []
    for param in mod["main"].params:
        shape = [int(d) if isinstance(d, tvm.tirx.IntImm) else 3 for d in param.ty.shape.values]
        values.append(generator.standard_normal(shape).astype(str(param.ty.dtype)))
    return values


def arrays(result):
    fields = result if isinstance(result, (list, tuple, tvm.ir.Array)) else [result]
    return [np.array(field.numpy()) for field in fields]


def unpartitioned(mod, values):
    with tvm.transform.PassContext(disabled_pass=["StaticPlanBlockMemory"]):
        machine = relax.VirtualMachine(tvm.compile(mod, QUICK), tvm.cpu())
    return arrays(machine["main"](*map(tvm.runtime.tensor, values)))


@pytest.mark.parametrize(
    "mod",
    [
        Attention,
        Einsum,
        Symbolic,
        UsedMerged,
        Chain,
        Branches,
        MergedAttention,
        AcrossTheBatch,
    ],
    ids=lambda mod: "",
)
def test_results_are_those_of_the_original(mod):
    values = arguments(mod)
    expected = unpartitioned(mod, values)
    with dx.Session(MESH) as session:
        actual = arrays(session.load(dx.build(annotated(mod), QUICK))["main"](*values))
    assert len(actual) == len(expected)
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
