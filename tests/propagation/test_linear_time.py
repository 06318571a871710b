"""Propagation, legalisation and lowering take time proportional to the program."""

import time

import pytest
import tvm
from tvm import relax

import distir_ext as dx

LAYERS, TIMES_MORE = 30, 16
# Room for caches that the larger program outgrows on a loaded machine: linear time is 16, quadratic
# time 256, and the smallest growth worth finding, n ** 1.5, is 64.
MOST = 40.0


def perceptron(layers, as_calls):
    builder = relax.BlockBuilder()
    tensor = relax.TensorType((64, 64), "float32")
    params = [relax.Var("x", tensor)]
    for i in range(layers):
        params += [relax.Var(f"up{i}", tensor), relax.Var(f"down{i}", tensor)]

    def layer(x, up, down):
        a = builder.emit(relax.op.matmul(x, up))
        b = builder.emit(relax.op.nn.gelu(a))
        c = builder.emit(relax.op.matmul(b, down))
        return builder.emit(relax.op.add(x, c))

    if as_calls:
        inner = [relax.Var(name, tensor) for name in ("x", "up", "down")]
        with builder.function("layer", inner, private=True):
            builder.emit_func_output(layer(*inner))
    with builder.function("main", params):
        x = params[0]
        for i in range(layers):
            weights = params[2 * i + 1 : 2 * i + 3]
            if as_calls:
                x = builder.emit(relax.Call(builder.get().get_global_var("layer"), [x, *weights]))
            else:
                x = layer(x, *weights)
        builder.emit_func_output(x)
    plan = {"x": ("dp", None), r"up\d+": (None, "tp"), r"down\d+": ("tp", None)}
    return dx.annotate(builder.get(), dx.Mesh((2, 2), ("dp", "tp")), plan)


def best_times(mod):
    """CPU seconds of each pass: the best of several runs, so that load counts little."""
    passes = [
        dx.transform.PropagateSharding(),
        dx.transform.LegalizeRedistribute(),
        dx.transform.LowerDistIR(),
    ]
    times = []
    for each in passes:
        best = float("inf")
        for _ in range(5):
            begin = time.thread_time()
            result = each(mod)
            best = min(best, time.thread_time() - begin)
        times.append(best)
        mod = result
    return times


@pytest.mark.parametrize("as_calls", [False, True], ids=["inline", "calls"])
def test_time_is_linear_in_the_number_of_layers(as_calls):
    small = best_times(perceptron(LAYERS, as_calls))
    large = best_times(perceptron(LAYERS * TIMES_MORE, as_calls))
    names = ("propagate", "legalize", "lower")
    ratios = {name: more / less for name, more, less in zip(names, large, small, strict=True)}
    assert all(ratio < MOST for ratio in ratios.values()), ratios


def test_call_graph_that_unfolds_to_a_million_calls_ends():
    # Each function calls the one below twice: 2 ** 20 calls if they were written out.
    depth = 20
    builder = relax.BlockBuilder()
    tensor = relax.TensorType((8, 8), "float32")
    for level in range(depth + 1):
        x = relax.Var("x", tensor)
        with builder.function(f"f{level}", [x], private=True):
            if level == 0:
                y = builder.emit(relax.op.exp(x))
            else:
                below = builder.get().get_global_var(f"f{level - 1}")
                y = builder.emit(relax.Call(below, [builder.emit(relax.Call(below, [x]))]))
            builder.emit_func_output(y)
    x = relax.Var("x", tensor)
    with builder.function("main", [x]):
        top = builder.get().get_global_var(f"f{depth}")
        builder.emit_func_output(builder.emit(relax.Call(top, [x])))
    mod = dx.annotate(builder.get(), dx.Mesh((2,), ("a",)), {"x": ("a", None)})
    result = dx.transform.PropagateSharding()(mod)
    assert len(result.get_global_vars()) == depth + 2
    assert all(
        isinstance(func.ret_ty, relax.distributed.DTensorType)
        for func in result.functions.values()
        if isinstance(func, relax.Function)
    )
    assert isinstance(result, tvm.IRModule)
