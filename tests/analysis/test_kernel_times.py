"""Kernels that are timed one by one, and simulations that use their times."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tvm_ffi
from tvm import relax

import distir_ext as dx
from distir_ext.analysis import KernelTimes, simulate, time_kernels
from distir_ext.analysis.measured import kernel_timing
from distir_ext.analysis.programs.planned import planned_programs
from distir_ext.analysis.sweeps.figures import ProgramCosts

CPU = dx.Device("CPU", {"float32": 1e11}, 16e9, 1e10, 1e-6, target="llvm")
CLUSTER = dx.Cluster.uniform(device=CPU)


def network(mesh, build=None, dtype="float32", rows=16):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, 64), dtype))
    weights = [relax.Var(f"w{i}", relax.TensorType((64, 64), dtype)) for i in range(2)]
    with builder.function("main", [x, *weights], {"num_input": 1}):
        with builder.dataflow():
            hidden = builder.emit(relax.op.matmul(x, weights[0]))
            hidden = builder.emit((build or relax.op.nn.softmax)(hidden))
            result = builder.emit_output(relax.op.matmul(hidden, weights[1]))
        builder.emit_func_output(result)
    return dx.annotate(builder.get(), mesh, {"w0": (None, "tp"), "w1": ("tp", None)})


def test_a_function_is_timed():
    calls = []

    def sleep(seconds):
        calls.append(seconds)
        time.sleep(seconds)

    seconds_of = tvm_ffi.get_global_func("distir.runtime.time_calls")
    found = seconds_of([tvm_ffi.convert(sleep)] * 2, [[0.002], [0.004]], 0.05)
    assert 0.002 <= found[0] < 0.004 <= found[1] < 0.02
    assert calls == [0.002, 0.004] * (len(calls) // 2)
    assert len(calls) >= 10
    with pytest.raises(ValueError, match="there are 1 functions, and arguments of 2"):
        seconds_of([tvm_ffi.convert(sleep)], [[0.0], [0.0]], 1e-9)


def test_threads_are_timed_at_the_same_time():
    """Two threads wait for each other within what is timed."""
    meet = threading.Barrier(2, timeout=30)
    seconds_of = tvm_ffi.get_global_func("distir.runtime.time_calls")

    def work():
        seconds_of([tvm_ffi.convert(lambda: meet.wait() and None)], [[]], 1e-9)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not meet.broken


def test_kernels_have_times_and_simulations_take_them():
    mod = network(dx.Mesh(tp=2))
    times = time_kernels(mod, CLUSTER, 2)
    assert times.skipped == {}
    assert {"einsum"} < set(times.callees.values())
    assert all(0 < seconds < 0.1 for seconds in times.seconds.values())

    bound = simulate(mod, CLUSTER)
    stated = KernelTimes(dict.fromkeys(times.seconds, 0.25), times.callees, {})
    found = simulate(mod, CLUSTER, kernels=stated)
    kernels = [each for each in found.operations if each.kind == "kernel"]
    assert [each.seconds for each in kernels] == [0.25 + CPU.launch] * len(kernels)
    assert [each.seconds for each in found.operations if each.kind != "kernel"] == [
        each.seconds for each in bound.operations if each.kind != "kernel"
    ]
    assert simulate(mod, CLUSTER, kernels=KernelTimes({}, {}, {})).seconds == bound.seconds


def test_a_kernel_is_told_by_what_it_computes_on_which_shapes():
    mesh = dx.Mesh(tp=2)
    softmax = time_kernels(network(mesh), CLUSTER)
    again = time_kernels(network(mesh), CLUSTER)
    other = time_kernels(network(mesh, relax.op.tanh), CLUSTER)
    larger = time_kernels(network(mesh, rows=32), CLUSTER)
    assert set(softmax.seconds) == set(again.seconds)
    einsums = {key for key, callee in softmax.callees.items() if callee == "einsum"}
    assert set(softmax.seconds) & set(other.seconds) == einsums
    assert not set(softmax.seconds) & set(larger.seconds)
    joined = softmax | larger
    assert set(joined.seconds) == set(softmax.seconds) | set(larger.seconds)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_types(dtype):
    times = time_kernels(network(dx.Mesh(tp=2), dtype=dtype), CLUSTER)
    assert times.skipped == {}
    assert times.seconds


def test_workers_that_compute_at_once_share_cores():
    """Four workers on one core: of SPMD programs all compute at once, of four stages one does."""
    mod = network(dx.Mesh(tp=4))
    times = replace(time_kernels(mod, CLUSTER), workers_per_core=4.0)
    alone = simulate(mod, CLUSTER, kernels=replace(times, workers_per_core=1.0))
    shared = simulate(mod, CLUSTER, kernels=times)
    for one, four in zip(alone.operations, shared.operations, strict=True):
        launch = CPU.launch if one.kind == "kernel" else one.seconds
        assert four.seconds - launch == pytest.approx(4 * (one.seconds - launch), rel=1e-9)

    # Of two stages the first has one product, and the second a softmax and a product.
    mesh = dx.Mesh(pp=2, tp=1)
    stages = dx.transform.AssignStages(mesh, "pp")(network(mesh))
    times = time_kernels(stages, CLUSTER)
    own = replace(times, seconds=dict.fromkeys(times.seconds, 1e-3))
    shared = replace(own, workers_per_core=2.0)
    for microbatches, expected in ((1, 1.0), (64, 1.5)):
        found = [
            simulate(stages, CLUSTER, kernels=each, microbatches=microbatches).seconds
            for each in (own, shared)
        ]
        assert found[1] / found[0] == pytest.approx(expected, rel=0.02)


def test_times_for_other_numbers_of_workers_are_not_joined():
    mod = network(dx.Mesh(tp=2))
    cores = len(os.sched_getaffinity(0))
    few, many = (time_kernels(mod, CLUSTER, n) for n in (cores, 4 * cores))
    assert (few.workers_per_core, many.workers_per_core) == (1.0, 4.0)
    with pytest.raises(ValueError, match="different numbers of workers: 1 and 4 per core"):
        _ = few | many


def test_integers_that_may_be_zero_are_not_divided_by():
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((8, 8), "int32")) for name in "xy")
    with builder.function("main", [x, y]):
        builder.emit_func_output(builder.emit(relax.op.floor_divide(x, y)))
    mod = dx.annotate(builder.get(), dx.Mesh(tp=2), {"x": ("tp", None)})
    times = time_kernels(mod, CLUSTER)
    assert times.seconds == {}
    assert set(times.skipped.values()) == {"it divides by integers, which may be 0"}


def test_what_cannot_be_timed_is_an_error():
    mod = network(dx.Mesh(tp=2))
    with pytest.raises(ValueError, match=r"timed on this host's CPU; .* 'H100'"):
        time_kernels(mod, dx.Cluster.preset("H100"))
    with pytest.raises(ValueError, match="at least 1 worker, not 0"):
        time_kernels(mod, CLUSTER, 0)


def test_a_step_takes_time_once_per_call():
    slow = dx.Cluster.uniform(
        device=dx.Device("CPU", {"float32": 1e11}, 16e9, 1e10, 1e-6, "llvm", step=0.5)
    )
    mod = network(dx.Mesh(tp=2))
    before, after = (simulate(mod, each, microbatches=3) for each in (CLUSTER, slow))
    assert after.seconds == pytest.approx(before.seconds + 3 * 0.5, rel=1e-12)
    with pytest.raises(ValueError, match="a step of device 'CPU' takes at least 0 seconds, not -1"):
        replace(CPU, step=-1)
    configured = ProgramCosts(slow)(mod, "main", 3)
    assert configured.seconds == pytest.approx(after.seconds, rel=1e-12)


def test_further_microbatches_take_the_time_of_a_queued_step():
    device = replace(CPU, step=0.5, queued_step=0.1)
    slow = dx.Cluster.uniform(device=device)
    mod = network(dx.Mesh(tp=2))
    before, after = (simulate(mod, each, microbatches=3) for each in (CLUSTER, slow))
    assert after.seconds == pytest.approx(before.seconds + 0.5 + 2 * 0.1, rel=1e-12)
    configured = ProgramCosts(slow)(mod, "main", 3)
    assert configured.seconds == pytest.approx(after.seconds, rel=1e-12)
    assert "step in a queue" in slow._repr_html_()
    with pytest.raises(
        ValueError, match="a queued step of device 'CPU' takes at least 0 seconds, not -1"
    ):
        replace(CPU, queued_step=-1)


def test_kernels_that_divide_by_numbers_are_timed():
    """Such as what lays the shards of several weights side by side, to gather them at once."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 6), "float32"))
    weights = [relax.Var(f"w{i}", relax.TensorType((6, 6), "float32")) for i in range(2)]
    with builder.function("main", [x, *weights]):
        with builder.dataflow():
            hidden = builder.emit(relax.op.matmul(x, weights[0]))
            result = builder.emit_output(relax.op.matmul(hidden, weights[1]))
        builder.emit_func_output(result)
    mod = dx.annotate(builder.get(), dx.Mesh(dp=2), {r"x|w\d": ("dp", None)})
    times = time_kernels(mod, CLUSTER)
    assert times.skipped == {}
    assert any("concatenate" in each for each in times.callees.values())


def test_tensors_lie_where_they_lie_in_a_program(monkeypatch):
    """Weights apart from each other, also those of a function that is called twice."""
    operand = partial(kernel_timing._Operand, (64, 64), "float32")
    weights = [operand(f"w{i}", is_weight=True) for i in range(10)]
    value, result = operand("x"), operand(("storage", 0))
    calls = [
        kernel_timing._Call("name", "einsum", (value, each, "ab,bc->ac", result))
        for each in weights
    ]
    lists = kernel_timing._arguments([*calls, calls[0]])
    assert len({id(each[1]) for each in lists}) == 10
    assert {len({id(each[place]) for each in lists}) for place in (0, 3)} == {1}
    assert lists[0][1] is lists[10][1]
    assert lists[0][0] is not lists[0][3]
    assert np.all(np.isfinite(lists[0][1].numpy()))
    # Where they are more than can be held, some lie in the memory of others.
    monkeypatch.setattr(kernel_timing, "_MOST_BYTES", 5 * operand("w0").bytes)
    assert len({id(each[1]) for each in kernel_timing._arguments(calls)}) == 5


def test_calls_of_functions_are_multiplied_out():
    mesh = dx.Mesh(tp=2)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 64), "float32"))
    weights = [relax.Var(f"layers.{i}.w", relax.TensorType((64, 64), "float32")) for i in range(3)]
    with builder.function("main", [x, *weights], {"num_input": 1}):
        value = x
        for weight in weights:
            value = builder.emit(relax.op.tanh(builder.emit(relax.op.matmul(value, weight))))
        builder.emit_func_output(value)
    mod = dx.annotate(builder.get(), mesh, {r"layers.*": (None, "tp")})
    plain = time_kernels(mod, CLUSTER, 2)
    outlined = time_kernels(dx.transform.OutlineRepeats()(mod), CLUSTER, 2)
    assert sorted(outlined.callees.values()) == sorted(plain.callees.values())
    assert not outlined.skipped
    known = planned_programs(dx.transform.OutlineRepeats()(mod), CLUSTER, None).steps.program
    calls = kernel_timing._CallReader(known, kernel_timing.KernelNames(known)).calls()
    products = [each for each in calls if each.callee == "einsum"]
    assert len(products) == 3
    assert len({each.operands[1].memory for each in products}) == 3
    assert all(each.operands[1].is_weight for each in products)
