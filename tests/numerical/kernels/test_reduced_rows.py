"""Kernels on CPUs that reduce leading dimensions, alone and fused."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op

import distir_ext as dx
from distir_ext.compile.kernels.cpu.cpu_kernels import schedule_kernels

AXES = [((512, 256), 0), ((256, 256), 0), ((37, 129), 0), ((4, 64, 96), 1), ((8, 48, 33), 0)]
OPERATORS = {
    "softmax": lambda x, axis: op.nn.softmax(x, axis=axis),
    "log_softmax": lambda x, axis: op.nn.log_softmax(x, axis=axis),
    "sum": lambda x, axis: op.sum(x, axis=axis),
    "mean": lambda x, axis: op.mean(x, axis=axis, keepdims=True),
    "max": lambda x, axis: op.max(x, axis=axis),
    "argmax": lambda x, axis: op.argmax(x, axis=axis),
    "norm": lambda x, axis: op.divide(x, op.sum(x, axis=axis, keepdims=True)),
}


def expected(operator, x, axis):
    x = x.astype("float64")
    power = np.exp(x - x.max(axis, keepdims=True))
    return {
        "softmax": lambda: power / power.sum(axis, keepdims=True),
        "log_softmax": lambda: np.log(power / power.sum(axis, keepdims=True)),
        "sum": lambda: x.sum(axis),
        "mean": lambda: x.mean(axis, keepdims=True),
        "max": lambda: x.max(axis),
        "argmax": lambda: x.argmax(axis),
        "norm": lambda: x / x.sum(axis, keepdims=True),
    }[operator]()


def program(shape, axis, operator, symbolic=()):
    sizes = [tirx.Var(f"n{i}", "int64") if i in symbolic else n for i, n in enumerate(shape)]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(sizes, "float32"))
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            positive = builder.emit(op.add(op.abs(x), relax.const(0.5)))
            result = builder.emit_output(OPERATORS[operator](positive, axis))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize(("number", "operator"), list(enumerate(OPERATORS)))
@pytest.mark.parametrize("symbolic", [(), (0,), (1,), (0, 1)])
def test_numbers(number, operator, symbolic, sample):
    few = [AXES[(number + len(symbolic)) % len(AXES)]]
    for shape, axis in sample(few, AXES, AXES):
        mod = program(shape, axis, operator, symbolic)
        mod = dx.annotate(mod, dx.Mesh(a=2), {"x": None})
        x = np.random.default_rng(0).standard_normal(shape, "float32")
        with dx.Session(2) as session:
            found = session.load(dx.build(mod))(x).numpy()
        wanted = expected(operator, np.abs(x) + np.float32(0.5), axis)
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


def iterations(function):
    """Counts the executions of a kernel's stores."""
    total = 0

    def visit(statement, times):
        nonlocal total
        if isinstance(statement, tirx.For):
            visit(statement.body, times * int(statement.extent))
        elif isinstance(statement, tirx.SeqStmt):
            for each in statement.seq:
                visit(each, times)
        elif hasattr(statement, "block"):
            for each in (statement.block.init, statement.block.body):
                if each is not None:
                    visit(each, times)
        elif isinstance(statement, tirx.BufferStore):
            total += times
        else:
            for name in ("body", "then_case", "else_case"):
                inner = getattr(statement, name, None)
                if inner is not None:
                    visit(inner, times)

    visit(function.body, 1)
    return total


@pytest.mark.parametrize(("shape", "axis"), AXES)
@pytest.mark.parametrize("operator", ["softmax", "norm", "log_softmax"])
def test_nothing_is_computed_again(shape, axis, operator):
    mod = relax.transform.LegalizeOps()(program(shape, axis, operator))
    mod = relax.transform.AnnotateTIROpPattern()(mod)
    mod = relax.transform.FuseTIR()(relax.transform.FuseOps()(mod))
    before = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    after = [f for f in schedule_kernels(mod).functions.values() if isinstance(f, tirx.PrimFunc)]
    assert any("is_scheduled" in str(f.attrs) for f in after)
    assert sum(map(iterations, after)) <= 1.2 * sum(map(iterations, before))


def test_one_number_of_all_elements():
    """Pieces of all elements are reduced in parallel, by vectors; NaN goes through."""
    cases = {
        "sum": (op.sum, np.sum),
        "mean": (lambda x: op.mean(x, keepdims=True), lambda x: np.mean(x, keepdims=True)),
        "max": (op.max, np.max),
        "min of squares": (lambda x: op.min(op.multiply(x, x)), lambda x: np.min(x * x)),
        "divided": (
            lambda x: op.divide(x, op.sum(op.abs(x), keepdims=True)),
            lambda x: x / abs(x).sum(),
        ),
        "argmax": (op.argmax, np.argmax),
    }
    for shape, dtype in (((128, 256), "float32"), ((123, 205), "int32"), ((29, 6, 151), "float32")):
        x = (np.random.default_rng(0).standard_normal(shape) * 100).astype(dtype)
        builder = relax.BlockBuilder()
        variable = relax.Var("x", relax.TensorType(shape, dtype))
        with builder.function("main", [variable]):
            with builder.dataflow():
                made = [builder.emit(make(variable)) for make, _ in cases.values()]
                results = builder.emit_output(relax.Tuple(made))
            builder.emit_func_output(results)
        mod = builder.get()
        kernel = relax.transform.LegalizeOps()(mod)["max"]
        assert "T.vectorized" in schedule_kernels(tvm.IRModule({"main": kernel})).script()
        exe = dx.build(dx.annotate(mod, dx.Mesh(a=1), {"x": None}))
        with dx.Session(1) as session:
            model = session.load(exe)
            for given in (x, np.where(x == x.max(), np.nan, x) if dtype == "float32" else x):
                exact = given.astype("float64") if dtype == "float32" else given
                found = model["main"](given.astype(dtype))
                for (name, (_, wanted)), each in zip(cases.items(), found, strict=True):
                    theirs = wanted(exact).astype(each.numpy().dtype)
                    np.testing.assert_allclose(each.numpy(), theirs, 2e-5, 1e-3, err_msg=name)


def test_rows_of_any_length_are_reduced_by_vectors():
    """Also over several dimensions, and where sixteen do not divide them."""
    cases = {
        "sum": (op.sum, np.sum),
        "mean": (op.mean, np.mean),
        "max": (op.max, np.max),
        "variance": (op.variance, np.var),
    }
    shapes = [((64, 1003), [1]), ((64, 1000), [1]), ((64, 16, 7, 7), [2, 3]), ((64, 99, 3), [1, 2])]
    for shape, axes in [*shapes, ((64, 1009), [1]), ((4, 8, 9, 30), [1, 3]), ((64, 34), [1])]:
        x = np.random.default_rng(0).standard_normal(shape, "float32")
        builder = relax.BlockBuilder()
        variable = relax.Var("x", relax.TensorType(shape, "float32"))
        with builder.function("main", [variable]):
            with builder.dataflow():
                made = [builder.emit(make(variable, axes)) for make, _ in cases.values()]
                results = builder.emit_output(relax.Tuple(made))
            builder.emit_func_output(results)
        mod = builder.get()
        if (shape, axes) in shapes:
            kernel = relax.transform.LegalizeOps()(mod)["sum"]
            scheduled = schedule_kernels(tvm.IRModule({"main": kernel})).script()
            assert "T.vectorized" in scheduled
        exe = dx.build(dx.annotate(mod, dx.Mesh(a=1), {"x": None}))
        with dx.Session(1) as session:
            model = session.load(exe)
            for given in (x, np.where(x == x.max(), np.nan, x)):
                for (name, (_, wanted)), found in zip(
                    cases.items(), model["main"](given), strict=True
                ):
                    right = wanted(given.astype("float64"), tuple(axes))
                    np.testing.assert_allclose(found.numpy(), right, 2e-5, 1e-5, err_msg=name)
