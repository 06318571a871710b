"""Counts of operations and bytes, compared with closed forms and with interpreted kernels."""

import numpy as np
import pytest
import tvm_ffi
from tests.analysis.interpreter import Counts
from tests.analysis.programs import CPU, GPU, function, on, on_two
from tests.numerical.operators import CASES
from tvm import relax
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import distir_ext as dx
from distir_ext.analysis.programs.planned_program import plan, resolve_target
from distir_ext.analysis.programs.steps import read_steps


def only_program(mod, device=GPU):
    (program,) = dx.analysis.estimate(mod, on(device)).programs
    return program


def kernels_of(mod):
    """Every kernel of a module's program as it is fused for GPUs."""
    lowered = dx.transform.LowerCCL()(dx.lower(mod))
    planned = plan(lowered, resolve_target("cuda")).kernels
    steps = read_steps(planned, on().as_data())["main"].body.flat()
    return [(planned[step.callee], step) for step in steps if step.kind == "kernel"]


def statistics(emit, x):
    centred = emit(op.subtract(x, emit(op.mean(x, 1, keepdims=True))))
    return op.divide(op.nn.softmax(centred), op.add(op.exp(x), relax.const(1.0, "float32")))


def take_and_slice(emit, x):
    rows = emit(op.take(x, relax.const(np.array([0, 2, 2], "int64")), axis=0))
    return op.nn.gelu(emit(op.strided_slice(rows, [1], [1], [5])))


def branches_of_padding(emit, x):
    return op.nn.silu(emit(op.nn.pad(x, [1, 1, 0, 2])))


PROGRAMS = {
    "product and epilogue": lambda emit, x: op.nn.relu(
        emit(op.matmul(x, emit(op.permute_dims(x))))
    ),
    "statistics": statistics,
    "lookups": take_and_slice,
    "norm": lambda emit, x: op.nn.layer_norm(
        x, relax.const(np.ones(6, "float32")), relax.const(np.zeros(6, "float32")), axes=[1]
    ),
    "scan of pairs": lambda emit, x: op.maximum(emit(op.max(x, 0)), emit(op.min(x, 0))),
    "powers": lambda emit, x: op.power(emit(op.sqrt(emit(op.abs(x)))), emit(op.tanh(x))),
    "rounding": lambda emit, x: op.floor(emit(op.round(x))),
    "integers": lambda emit, x: op.add(emit(op.astype(x, "int32")), relax.const(1, "int32")),
    "one function twice": lambda emit, x: op.add(emit(op.exp(x)), emit(op.exp(emit(op.exp(x))))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_counts_are_those_of_running_the_loops(name):
    mod = on_two(function({"x": (4, 6)}, PROGRAMS[name]), {"x": ("tp", None)})
    found = kernels_of(mod)
    assert found
    for kernel, step in found:
        counts = Counts().run(kernel)
        assert step.flops.get("float32", 0) == counts.flops, step.callee
        assert step.transcendentals == counts.transcendentals, step.callee
        assert not step.unknown


def test_bytes_are_the_places_that_kernels_touch():
    """Every load of these kernels reads an element of its own, or all of the operand."""
    mod = on_two(
        function({"x": (4, 6)}, lambda emit, x: op.strided_slice(emit(op.exp(x)), [1], [1], [3])),
        {"x": ("tp", None)},
    )
    for kernel, step in kernels_of(mod):
        counts = Counts().run(kernel)
        places = {buffer.name: len(found) for buffer, found in counts.read.items()}
        sizes = [4 * places.get(param.name, 0) for param in kernel.params]
        assert step.bytes_read == sum(sizes)


def test_a_wrong_count_is_seen():
    mod = on_two(function({"x": (4, 6)}, PROGRAMS["statistics"]), {"x": ("tp", None)})
    kernel, step = kernels_of(mod)[0]
    counts = Counts().run(kernel)
    assert step.flops["float32"] + 1 != counts.flops


@pytest.mark.parametrize("device", [GPU, CPU], ids=["gpu", "cpu"])
def test_a_product_is_two_operations_for_each_pair(device):
    mod = function({"x": (6, 10), "w": (10, 8)}, lambda emit, x, w: op.matmul(x, w))
    for plan_, local in (({"w": (None, "tp")}, 4), ({"w": (None, None)}, 8)):
        program = only_program(on_two(mod, plan_), device)
        assert program.cost.flops == 2 * 6 * 10 * local
        assert program.cost.bytes_read == 4 * (6 * 10 + 10 * local)
        assert program.cost.bytes_written == 4 * 6 * local


def test_attention_is_two_products_and_a_softmax():
    def attention(emit, q, k, v):
        scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 2, 1]))))
        return op.matmul(emit(op.nn.softmax(scores)), v)

    heads, queries, keys, size = 4, 3, 5, 8
    shapes = {"q": (heads, queries, size), "k": (heads, keys, size), "v": (heads, keys, size)}
    mod = on_two(function(shapes, attention), dict.fromkeys(shapes, ("tp", None, None)))
    program = only_program(mod)
    products = 2 * 2 * (heads // 2) * queries * keys * size
    # The maximum, the difference, the sum and the quotient; the exponential is counted apart.
    softmax = 4 * (heads // 2) * queries * keys
    assert program.by_operator()["relax.matmul"].flops == products
    assert program.by_operator()["relax.nn.softmax"].flops == softmax
    assert program.cost.flops == products + softmax
    assert program.cost.transcendentals == (heads // 2) * queries * keys


def test_a_convolution_is_a_product_for_each_window():
    batch, channels, out, side, window = 2, 3, 4, 6, 3
    mod = function(
        {"x": (batch, channels, side, side), "w": (out, channels, window, window)},
        lambda emit, x, w: op.nn.conv2d(x, w, padding=1),
    )
    program = only_program(on_two(mod, {"x": ("tp", None, None, None)}))
    results = batch // 2 * out * side * side
    assert program.cost.flops == 2 * results * channels * window * window


@pytest.mark.parametrize("device", [GPU, CPU], ids=["gpu", "cpu"])
def test_fusion_loses_no_operation(device):
    mod = on_two(function({"x": (4, 6)}, PROGRAMS["statistics"]), {"x": ("tp", None)})
    program = only_program(mod, device)
    operators = sum(each.cost.flops * each.count for each in program.operators)
    assert operators == program.cost.flops > 0
    # What operators write and read again stays inside of kernels.
    written = sum(each.cost.bytes_accessed * each.count for each in program.operators)
    assert written > program.cost.bytes_accessed


EVERY = [op for op in CASES if op not in ("relax.nn.pixel_shuffle", "relax.nn.attention_var_len")]
"""All but those for which TVM 0.27 has no kernel."""


@pytest.mark.parametrize("part", range(4))
def test_kernels_of_every_operator_compute_what_the_operator_does(part):
    rates = dict.fromkeys(("float64", "float16"), 1e9)
    device = dx.Device("test", rates, 1e9, 1e9, 0.0)
    mesh = dx.Mesh(tp=2)
    for name in EVERY[part::16]:
        case = CASES[name][0]
        shapes = {f"x{i}": each.shape for i, each in enumerate(case.operands)}
        if not shapes:
            continue
        dtypes = [each.dtype for each in case.operands]
        mod = function(shapes, lambda emit, *x, of=case: emit(of.apply(*x)), dtype=dtypes)
        plan_ = {
            param: tuple("tp" if i == 0 and size % 2 == 0 else None for i, size in enumerate(shape))
            for param, shape in shapes.items()
        }
        program = only_program(dx.annotate(mod, mesh, plan_), device)
        whole = sum(each.cost.flops * each.count for each in program.operators)
        assert whole == program.cost.flops, name


def test_operations_count_for_the_type_that_is_stored():
    mod = function({"x": (4, 6), "w": (6, 8)}, lambda emit, x, w: op.matmul(x, w), dtype="float16")
    device = dx.Device("test", {"float16": 4e9, "float32": 1e9}, 1e9, 1e30, 0.0)
    program = only_program(on_two(mod, {"w": (None, "tp")}), device)
    assert program.cost.seconds == pytest.approx(2 * 4 * 6 * 4 / 4e9)


@I.ir_module
class Triangle:
    @T.prim_func(private=True, s_tir=True)
    def lower(x: T.Buffer((4, 4), "float32"), y: T.Buffer((4, 4), "float32")):
        for i in range(4):
            for j in range(i + 1):
                with T.sblock("y"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    y[vi, vj] = x[vi, vj] * T.float32(2) + T.float32(1)

    @R.function
    def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
        cls = Triangle
        with R.dataflow():
            y = R.call_tir(cls.lower, (x,), out_ty=R.Tensor((4, 4), "float32"))
            R.output(y)
        return y


def test_loops_that_depend_on_each_other_are_counted():
    program = only_program(dx.annotate(Triangle, dx.Mesh(tp=2), {"x": (None, None)}))
    assert program.cost.flops == 2 * (1 + 2 + 3 + 4)
    assert program.cost.bytes_read == 4 * (1 + 2 + 3 + 4)


def test_what_cannot_be_counted_is_said():
    tvm_ffi.register_global_func("test.analysis.opaque", lambda *_: None, override=True)
    packed = relax.ExternFunc("test.analysis.opaque")
    mod = function(
        {"x": (4, 4)},
        lambda emit, x: op.call_dps_packed(packed, (x,), relax.TensorType((4, 4), "float32")),
    )
    found = dx.analysis.estimate(dx.annotate(mod, dx.Mesh(tp=2), {"x": (None, None)}), on())
    assert not found.exact
    assert "test.analysis.opaque" in str(found)


def test_a_kernel_takes_as_long_as_what_bounds_it():
    shapes = {"x": (8, 64), "w": (64, 64)}
    mod = function(shapes, lambda emit, x, w: op.exp(emit(op.matmul(x, w))))
    mod = on_two(mod, {"w": (None, None)})
    flops, moved = 2 * 8 * 64 * 64, 4 * (8 * 64 + 64 * 64 + 8 * 64)
    for rate, bandwidth, launch, bound, seconds in (
        (1e6, 1e12, 0.0, "compute", flops / 1e6),
        (1e15, 1e6, 0.0, "memory", moved / 1e6),
        (1e15, 1e15, 1e-3, "launch", 1e-3),
    ):
        device = dx.Device("test", {"float32": rate}, 1e9, bandwidth, launch)
        (kernel,) = only_program(mod, device).kernels
        assert kernel.bound == bound
        assert kernel.cost.seconds == pytest.approx(seconds)


def test_jax_counts_the_same():
    """Products, sums of two and convolutions; JAX counts comparisons, and n - 1 for a sum of n."""
    jax = pytest.importorskip("jax")

    def theirs(function_, *shapes):
        arguments = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
        found = jax.jit(function_).lower(*arguments).cost_analysis()
        return found["flops"], found["bytes accessed"]

    whole = {"x": (None, None)}
    product = only_program(
        on_two(function({"x": (6, 10), "w": (10, 8)}, lambda emit, x, w: op.matmul(x, w)), whole)
    )
    assert (product.cost.flops, product.cost.bytes_accessed) == theirs(
        jax.numpy.matmul, (6, 10), (10, 8)
    )
    total = only_program(
        on_two(function({"x": (6, 10), "y": (6, 10)}, lambda emit, x, y: op.add(x, y)), whole)
    )
    assert (total.cost.flops, total.cost.bytes_accessed) == theirs(jax.numpy.add, (6, 10), (6, 10))
