"""Fused kernels of many operators in a row, each of which writes its operand out several times."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.relax import op

import distir_ext as dx
from distir_ext.compile.kernels.cpu.cpu_kernels import schedule_kernels
from distir_ext.compile.kernels.cpu.float_functions import exp


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


OPERATORS = {
    "tanh": (op.tanh, np.tanh),
    "exp": (lambda x: op.exp(op.negative(x)), lambda x: np.exp(-x)),
    "silu": (op.nn.silu, lambda x: x * sigmoid(x)),
    "square": (lambda x: op.multiply(x, op.subtract(x, x)), lambda x: x * (x - x)),
    "tanh of two": (lambda x: op.tanh(op.add(x, op.sin(x))), lambda x: np.tanh(x + np.sin(x))),
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_numbers(operator):
    apply, expected = OPERATORS[operator]
    x = relax.Var("x", relax.TensorType((64, 256), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            value = x
            for _ in range(8):
                value = builder.emit(apply(value))
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    mod = dx.annotate(builder.get(), dx.Mesh(a=2), {"x": ("a", None)})
    given = np.random.default_rng(0).standard_normal((64, 256), "float32")
    with dx.Session(2) as session:
        found = session.load(dx.build(mod))(given).numpy()
    wanted = given.astype("float64")
    for _ in range(8):
        wanted = expected(wanted)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


def mapped(apply, x):
    return te.compute(x.shape, lambda i, j: apply(x[i, j]))


def scheduled(length, apply):
    x = te.placeholder((64, 256), "float32", name="x")
    value = x
    for _ in range(length):
        value = mapped(apply, value)
    kernel = te.create_prim_func([x, value])
    return schedule_kernels(tvm.IRModule({"main": kernel}))["main"].script()


def expressions(kernel):
    """Number of expressions that a kernel stores."""
    return kernel.count("with T.sblock(") - kernel.count("# with T.sblock(")


@pytest.mark.parametrize(("apply", "length"), [(exp, 2), (lambda x: x + x * x, 8)])
def test_a_kernel_grows_with_the_length_of_a_chain_and_not_faster(apply, length):
    one, all_of_them = (len(scheduled(n, apply)) for n in (1, length))
    assert all_of_them < 2 * length * one


def test_an_operand_that_llvm_gets_five_times_is_computed_once():
    assert expressions(scheduled(8, tirx.tanh)) > 1


def test_short_chains_are_one_expression():
    assert expressions(scheduled(3, tirx.sin)) == 1
