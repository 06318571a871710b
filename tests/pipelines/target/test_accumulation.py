"""Kernels of small floats add in float32: their TIR, and what it computes."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
import tvm
from tests.numerical.operators import CASES
from tvm import relax, tirx, topi
from tvm.relax import op

from distir_ext.compile import cpu, gpu
from distir_ext.compile.kernels.legalizations import accumulation
from distir_ext.native.machine import cpu_target

SMALL = ("float16", "bfloat16")

# Numbers in a sum.
COUNT = 8192


def module(make, *shapes, dtype="float16"):
    dtypes = [dtype] * len(shapes) if isinstance(dtype, str) else dtype
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"x{i}", relax.TensorType(shape, each))
        for i, (shape, each) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(make(*params)))
        builder.emit_func_output(result)
    return builder.get()


def legalized(mod):
    """Kernels before any schedule."""
    passes = [accumulation.widen_scans(), relax.backend.DispatchSortScan()]
    passes += [relax.transform.LegalizeOps(accumulation.legalizations())]
    with tvm.target.Target("llvm"):
        return tvm.transform.Sequential(passes)(mod)


SIZES = r"\((?:[^()]|\([^()]*\))*\)"
SMALL_BUFFER = re.compile(rf'(\w+)(?:: | = )T\.\w+\({SIZES}, "(?:float16|bfloat16)"')
STORE = re.compile(r"\s*((\w+)\[.*?\]) = (.*)")


def small_accumulators(function):
    """Places of small floats that a kernel computes from what was there, unless it is a maximum."""
    text = str(function)
    small = set(SMALL_BUFFER.findall(text))
    stores = filter(None, map(STORE.fullmatch, text.splitlines()))
    return {
        place
        for place, name, value in (store.groups() for store in stores)
        if name in small and place in value and not value.startswith(("T.max(", "T.min("))
    }


def accumulators(mod):
    return {
        f"{name.name_hint}: {buffer}"
        for name, function in mod.functions_items()
        if isinstance(function, tirx.PrimFunc)
        for buffer in small_accumulators(function)
    }


def small_case(case, dtype):
    """The call of a case of the table, with small floats where it has float32."""
    dtypes = [dtype if each.dtype == "float32" else each.dtype for each in case.operands]
    return module(case.apply, *(each.shape for each in case.operands), dtype=dtypes)


# What TVM has no kernels for, with any type.
WITHOUT_KERNELS = {"relax.nn.attention_var_len", "relax.nn.pixel_shuffle"}


def test_no_operator_adds_in_a_small_float():
    """Some cases of those that have a legalisation here, one of the others."""
    ours = accumulation.legalizations()
    for name, cases in CASES.items():
        if name not in WITHOUT_KERNELS:
            for case in cases[:3] if name in ours else cases[:1]:
                assert not accumulators(legalized(small_case(case, "float16"))), case


def test_what_tvm_makes_adds_in_small_floats():
    """The control of the test before."""
    mod = module(lambda x, y: op.matmul(x, y), (8, 8), (8, 8))
    assert accumulators(relax.transform.LegalizeOps()(mod))
    assert not accumulators(legalized(mod))


def test_a_kernel_of_the_user_stays_as_it_is():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 8), "float16"))
    with builder.function("main", [x]):
        result = builder.emit(builder.call_te(topi.sum, x, [1]))
        builder.emit_func_output(result)
    mod = builder.get()
    assert accumulators(legalized(mod)) == accumulators(mod) != set()


def test_a_product_is_one_kernel_with_what_follows_it():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 8), "float16"))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(op.matmul(x, x))
            result = builder.emit_output(builder.emit(op.nn.silu(product)))
        builder.emit_func_output(result)
    passes = [relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps()]
    fused = tvm.transform.Sequential([*passes, relax.transform.FuseTIR()])(legalized(builder.get()))
    assert {name.name_hint for name in fused.get_global_vars()} == {
        "fused_matmul_cast_silu",
        "main",
    }


def of_gpus(target):
    """The kernels of GPUs, without schedules, run on the CPU."""
    return gpu.pipeline(target)


def of_cpus(target):
    return cpu.pipeline(target, blas=False)


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def normalized(x, axis):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + 1e-5)


def attention(q, k, v):
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1]))
    return (scores @ v).transpose(0, 2, 1, 3)


def patches(x, w):
    return np.einsum("nchw,ochw->no", x, w)[:, :, None, None]


PLACES = relax.const(np.zeros((COUNT, 1), "int64"))

# Operator, shapes, the same in NumPy. All add COUNT numbers.
SUMS = {
    "matmul": (op.matmul, [(4, COUNT), (COUNT, 4)], np.matmul),
    "einsum": (
        lambda x, y: op.einsum((x, y), "ik,jk->ij"),
        [(4, COUNT), (4, COUNT)],
        lambda x, y: x @ y.T,
    ),
    "conv2d": (op.nn.conv2d, [(2, COUNT // 16, 4, 4), (3, COUNT // 16, 4, 4)], patches),
    "sum": (lambda x: op.sum(x, [1]), [(8, COUNT)], lambda x: x.sum(1)),
    "mean": (lambda x: op.mean(x, [1]), [(8, COUNT)], lambda x: x.mean(1)),
    "variance": (lambda x: op.variance(x, [1]), [(8, COUNT)], lambda x: x.var(1)),
    "cumsum": (lambda x: op.cumsum(x, 1), [(4, COUNT)], lambda x: x.cumsum(1)),
    "softmax": (op.nn.softmax, [(8, COUNT)], softmax),
    "layer_norm": (
        lambda x, g, b: op.nn.layer_norm(x, g, b, [-1]),
        [(4, COUNT), (COUNT,), (COUNT,)],
        lambda x, g, b: normalized(x, -1) * g + b,
    ),
    "rms_norm": (
        lambda x, g: op.nn.rms_norm(x, g, [-1]),
        [(4, COUNT), (COUNT,)],
        lambda x, g: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * g,
    ),
    "attention": (op.nn.attention, [(1, 2, 2, 8), *[(1, COUNT, 2, 8)] * 2], attention),
    "avg_pool2d": (
        lambda x: op.nn.avg_pool2d(x, (64, 128), (64, 128)),
        [(2, 3, 64, 128)],
        lambda x: x.mean((2, 3), keepdims=True),
    ),
    "scatter_nd": (
        lambda x, y: op.scatter_nd(x, PLACES, y, "add"),
        [(2, 3), (COUNT, 3)],
        lambda x, y: np.stack([x[0] + y.sum(0), x[1]]),
    ),
}


@pytest.mark.parametrize("pipeline", [of_gpus, of_cpus])
@pytest.mark.parametrize("dtype", SMALL)
def test_the_error_is_that_of_rounding_the_result(dtype, pipeline):
    """At most a tenth more, in the norm, than what rounding the exact result has."""
    rng = np.random.default_rng(0)
    storage = np.dtype(getattr(ml_dtypes, dtype, dtype))
    builder_mod, inputs, wanted = tvm.IRModule(), {}, {}
    for name, (make, shapes, exact) in SUMS.items():
        main = module(make, *shapes, dtype=dtype)["main"].with_attr("global_symbol", name)
        builder_mod[name] = main
        inputs[name] = [rng.standard_normal(shape).astype(storage) for shape in shapes]
        wanted[name] = exact(*(x.astype("float64") for x in inputs[name]))
    target = cpu_target.host_target()
    executable = tvm.compile(builder_mod, target, relax_pipeline=pipeline(target))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    for name, arrays in inputs.items():
        found = machine[name](*map(tvm.runtime.tensor, arrays)).numpy().astype("float64")
        error = np.linalg.norm(found - wanted[name])
        rounding = np.linalg.norm(wanted[name].astype(storage).astype("float64") - wanted[name])
        size = np.linalg.norm(wanted[name])
        assert error <= 1.1 * rounding + 1e-6 * size, (name, error / size, rounding / size)
        assert error <= size * 2.0 ** (-8 if dtype == "bfloat16" else -11), name
