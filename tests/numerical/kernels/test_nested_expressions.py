"""Kernels of users with expressions within expressions: they build in a time that does not explode.

Each expression here is rewritten on its way to LLVM, to one that has an operand several times.
"""

import time

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import relax, te, tirx

import distir_ext as dx
from distir_ext.compile.kernel_values import tir_pipeline

DEPTH = 12

# Of this process, which other processes do not lengthen.
LONGEST = 2.0

SIZE = 40


def number(dtype):
    return ml_dtypes.finfo(dtype).dtype if hasattr(ml_dtypes, dtype) else np.dtype(dtype)


def rounded(value, dtype):
    return value.astype(number(dtype))


# dtype, step of the kernel, and the same of NumPy.
STEPS = {
    "sum of float8": ("float8_e4m3fn", lambda v, x: v + x, lambda v, x: v + x),
    "product of float8": ("float8_e5m2", lambda v, x: v * x, lambda v, x: v * x),
    "maximum of float8": ("float8_e4m3fn", tirx.max, np.maximum),
    "float8 of float64": (
        "float64",
        lambda v, x: v.astype("float8_e4m3fn").astype("float64") + x,
        lambda v, x: rounded(v, "float8_e4m3fn").astype("float64") + x,
    ),
    "maximum": ("float32", tirx.max, np.maximum),
    "minimum": ("float64", lambda v, x: tirx.min(x, v), np.minimum),
    "quotient": (
        "int32",
        lambda v, x: tirx.floordiv(v, x) + x,
        lambda v, x: np.floor_divide(v, x) + x,
    ),
    "remainder": (
        "uint8",
        lambda v, x: tirx.FloorMod(v, x) + x,
        lambda v, x: np.mod(v, x) + x,
    ),
    "equal": (
        "float32",
        lambda v, x: tirx.Select(tirx.EQ(v, x), x, x + 1.0),
        lambda v, x: np.where(v == x, x, x + 1),
    ),
    "different": (
        "float32",
        lambda v, x: tirx.NE(v, x).astype("float32"),
        lambda v, x: (v != x).astype("float32"),
    ),
    "less": (
        "float32",
        lambda v, x: tirx.Select(v < x, x, x - 1.0),
        lambda v, x: np.where(v < x, x, x - 1),
    ),
    "condition": (
        "float32",
        lambda v, x: tirx.if_then_else(tirx.EQ(v, x), x + 1.0, x),
        lambda v, x: np.where(v == x, x + 1, x),
    ),
}


def values(dtype, seed):
    generator = np.random.default_rng(seed)
    drawn = generator.integers(-2, 3, size=SIZE)
    if "float" not in dtype:
        return drawn.astype(dtype)
    drawn = drawn.astype("float64")
    drawn[generator.integers(SIZE)] = np.nan
    return drawn.astype(number(dtype))


def nest(dtype, step):
    """A kernel of operands ``x0`` to ``x12``; not by ``te``, which simplifies what it is given."""
    operands = [te.placeholder((SIZE,), dtype, name=f"x{i}") for i in range(DEPTH + 1)]
    out = te.compute((SIZE,), lambda i: sum((x[i] for x in operands[1:]), operands[0][i]))

    def store(node):
        loads = []
        tvm_ffi.structural_walk(node.value, (tvm.ir.expr.TensorLoad, loads.append))
        value, *rest = sorted(loads, key=lambda load: int(load.source.name[1:]))
        for load in rest:
            value = step(value, load)
        return tirx.BufferStore(node.buffer, value, node.indices)

    kernel = te.create_prim_func([*operands, out]).with_attr("global_symbol", "main")
    return tvm_ffi.structural_map(kernel, (tirx.BufferStore, store))


def test_nested_expressions_build_fast_and_are_those_of_numpy():
    for name, (dtype, step, expected_step) in STEPS.items():
        kernel = tvm.IRModule({"main": nest(dtype, step)})
        began = time.process_time()
        built = tvm.compile(kernel, "llvm", tir_pipeline=tir_pipeline(for_cpu=True))
        assert time.process_time() - began < LONGEST, name

        arrays = [values(dtype, seed) for seed in range(DEPTH + 1)]
        with np.errstate(all="ignore"):
            expected = arrays[0]
            for array in arrays[1:]:
                expected = expected_step(expected, array).astype(expected.dtype)
        result = tvm.runtime.empty((SIZE,), dtype)
        built["main"](*map(tvm.runtime.tensor, arrays), result)
        np.testing.assert_array_equal(
            result.numpy().astype("float64"), expected.astype("float64"), err_msg=name
        )


def test_what_a_condition_guards_is_not_read_without_it():
    x, y = (te.placeholder((SIZE,), "float8_e4m3fn", name=name) for name in "xy")

    def value_at(i):
        far = x[i + SIZE].asobject()  # behind the end
        far = far + far
        far = tirx.if_then_else(tirx.LT(far + far, y[i].asobject()), far, far + far)
        return tirx.if_then_else(y[i] > y[0], far + y[i].asobject(), y[i].asobject())

    out = te.compute((SIZE,), value_at, name="out")
    kernel = te.create_prim_func([x, y, out]).with_attr("global_symbol", "main")
    pipeline, *_ = tirx.get_tir_pipeline(tir_pipeline(for_cpu=True))
    target = tvm.target.Target("llvm")
    bind_target = tirx.transform.BindTarget(target.with_host(target))
    lowered = pipeline(bind_target(tvm.IRModule({"main": kernel})))["main"]

    guards, unguarded = [], []

    def without_branches(node):
        if isinstance(node, tirx.IfThenElse):
            guards.append(node)
            return tirx.Evaluate(node.condition)
        return node.args[0] if getattr(node.op, "name", "") == "tirx.if_then_else" else node

    def see(node):
        if f"{SIZE}" in str(node.indices):
            unguarded.append(node)

    kinds = (tirx.IfThenElse, tvm.ir.Call)
    bare = tvm_ffi.structural_map(lowered, (kinds, without_branches), order="pre")
    tvm_ffi.structural_walk(bare, (tvm.ir.expr.TensorLoad, see))
    assert guards
    assert not unguarded


def test_a_logarithm_that_is_compared_and_read():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64, 128), "float32"))
    with builder.function("main", [x], attrs={"num_input": 1}):
        with builder.dataflow():
            w = builder.emit(relax.op.log(x))
            is_low = builder.emit(relax.op.less(w, relax.const(0.5, "float32")))
            result = builder.emit_output(relax.op.where(is_low, relax.op.multiply(w, w), w))
        builder.emit_func_output(result)
    mesh = dx.Mesh(d=2)
    values = np.random.default_rng(0).uniform(0.5, 4, (64, 128)).astype("float32")
    with dx.Session(mesh) as session:
        mod = dx.annotate(builder.get(), mesh, {"x": ("d", None)})
        found = session.load(dx.build(mod))["main"](values).numpy()
    w = np.log(values)
    assert np.allclose(found, np.where(w < 0.5, w * w, w), rtol=1e-5, atol=1e-6)
