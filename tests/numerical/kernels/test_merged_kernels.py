"""Kernels that differ in where they begin to read are compiled once, and compute what they did."""

import numpy as np
import pytest
import tvm
from tests.targets import QUICK
from tvm import relax
from tvm.script.parser import relax as R

import distir_ext as dx
from distir_ext.compile.kernels.cpu import equal_kernels

MESH = dx.Mesh((3,), ("x",))


def kernels_of(mod):
    """The executable of a module, and the names of its kernels behind MergeKernels."""
    seen = []

    @tvm.instrument.pass_instrument
    class Kernels:
        def run_after_pass(self, mod, info):
            if info.name == "MergeKernels":
                functions = mod.functions_items()
                seen.extend(v.name_hint for v, f in functions if isinstance(f, tvm.tirx.PrimFunc))

    with tvm.transform.PassContext(instruments=[Kernels()]):
        return dx.build(mod, QUICK), seen


def scan(steps, dtype):
    """A scan: the state of a step follows from the one before; numbers are added to it."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((5, steps, 6), dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            state = builder.emit(relax.op.zeros((5, 6), dtype))
            states = []
            for step in range(steps):
                part = relax.op.strided_slice(x, [1, 2], [step, 0], [step + 1, 6])
                part = builder.emit(relax.op.squeeze(builder.emit(part), [1]))
                added = relax.op.add(part, relax.const(step % 7, dtype))
                tripled = relax.op.multiply(builder.emit(added), relax.const(3, dtype))
                state = builder.emit(relax.op.subtract(builder.emit(tripled), state))
                states.append(state)
            result = builder.emit_output(relax.op.stack(states, 1))
        builder.emit_func_output(result)
    return dx.annotate(builder.get(), MESH, {"x": (None, None, "x")})


def expected(x):
    state, states = np.zeros_like(x[:, 0]), []
    for step in range(x.shape[1]):
        state = (x[:, step] + np.asarray(step % 7, x.dtype)) * np.asarray(3, x.dtype) - state
        states.append(state)
    return np.stack(states, 1)


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "int8", "float16"])
def test_a_scan(session_of, dtype):
    steps = 13
    executable, kernels = kernels_of(scan(steps, dtype))
    assert len(kernels) < steps
    x = np.random.default_rng(0).integers(-2, 3, (5, steps, 6)).astype(dtype)
    model = session_of(MESH.shape).load(executable)
    np.testing.assert_array_equal(model["main"](x).numpy(), expected(x))


def test_two_functions_and_several_beginnings(session_of):
    """Slices of two dimensions, whose beginnings differ in one of them, in both or in none."""
    builder = relax.BlockBuilder()
    begins = [(1, 1), (1, 2), (2, 1), (3, 3), (5, 4), (1, 4)]
    for name in ("main", "other"):
        x = relax.Var("x", R.Tensor((9, 8), "float32"))
        with builder.function(name, [x]):
            with builder.dataflow():
                parts = [
                    builder.emit(relax.op.strided_slice(x, [0, 1], begin, [b + 3 for b in begin]))
                    for begin in begins
                ]
                if name == "other":
                    parts = [builder.emit(relax.op.negative(each)) for each in parts]
                result = builder.emit_output(relax.Tuple(parts))
            builder.emit_func_output(result)
    mod = dx.annotate(builder.get(), MESH, {"x": ("x", None)}, func="main")
    executable, kernels = kernels_of(mod)
    assert len(kernels) < 2 * len(begins)
    model = session_of(MESH.shape).load(executable)
    x = np.random.default_rng(0).normal(size=(9, 8)).astype("float32")
    for name, sign in (("main", 1), ("other", -1)):
        for (row, column), part in zip(begins, model[name](x), strict=True):
            np.testing.assert_array_equal(
                part.numpy(), sign * x[row : row + 3, column : column + 3]
            )


def test_more_steps_are_no_more_kernels():
    counts = [len(kernels_of(scan(steps, "float32"))[1]) for steps in (3, 16, 24)]
    assert equal_kernels.FEWEST > 3
    assert counts[1] == counts[2] <= counts[0]
