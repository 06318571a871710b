"""Copies of programs between host and GPU run on the worker's stream."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tests.gpu.conftest import HOST
from tvm import relax, te
from tvm.relax.global_info import VDevice
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx
from distir_ext import WorkerError
from distir_ext.native.executables import executable_module
from distir_ext.params.host_array import host_array

X = np.arange(6, dtype="float32").reshape(2, 3)

COPIES = {
    "a condition": ("vm.builtin.read_if_cond", [np.array(True)], lambda out: out is True),
    "a shape": ("vm.builtin.tensor_to_shape", [np.array([3, 4])], lambda out: list(out) == [3, 4]),
    "to the host": ("vm.builtin.to_device", [X, 1, 0, "global"], lambda out: is_x(out, "cpu:0")),
    "to the device": ("vm.builtin.to_device", [X, 2, 0, "global"], lambda out: is_x(out, "cuda:1")),
}


def is_x(tensor, device):
    host = tvm_ffi.get_global_func("distir.runtime.copy_to_host")
    found = host(tensor).numpy() if device != "cpu:0" else tensor.numpy()
    return str(tensor.device) == device and (found == X).all()


@pytest.mark.parametrize(("name", "values", "is_right"), COPIES.values(), ids=COPIES)
def test_copies_of_the_virtual_machine_are_on_the_workers_stream(
    fresh_runner, target, name, values, is_right
):
    """Of rank 1, which calls its GPU device 0, too."""
    if HOST is None:
        pytest.skip("it counts what the stand-in is asked for")
    runner = fresh_runner(2)
    with_machine(runner.workers, target)
    function = tvm_ffi.get_global_func(name)
    value, *others = values
    shard = host_array(np.asarray(value)).shard([0] * np.ndim(value), np.shape(value))
    what = ("legacy stream", "allocation", "free")
    found = []

    def run(tensor):
        for each in what:
            HOST.cuda_on_host_count(each.encode())
        out = function(tensor, *others)
        found.append([HOST.cuda_on_host_count(each.encode()) for each in what])
        return out

    _, out = runner.workers.run("copy", [None, tvm_ffi.convert(run)], [[], [shard]])
    assert found == [[0, 0, 0]]
    assert is_right(out), out


def with_machine(workers, target):
    """Loads a program: functions of the virtual machine are replaced with the first one."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.negative(x)))
    mod = dx.annotate(builder.get(), dx.Mesh((2,), ("d",)), {"x": ("d",)})
    machine = tvm_ffi.get_global_func("distir.runtime.load_virtual_machine")
    module = executable_module(dx.build(mod, target=target))
    workers.run("load", [machine] * 2, [[module, None]] * 2)


def test_another_gpu_of_a_worker_is_refused(fresh_runner, target):
    runner = fresh_runner(2)
    with_machine(runner.workers, target)
    copy = tvm_ffi.get_global_func("vm.builtin.to_device")
    shard = host_array(X).shard([0, 0], X.shape)
    with pytest.raises(WorkerError, match="each worker has one, which programs call device 0"):
        runner.workers.run("copy", [copy, None], [[shard, 2, 1, "global"], []])


@I.ir_module
class Branches:
    @R.function
    def main(x: R.Tensor((4, 4), "float32"), c: R.Tensor((), "bool")) -> R.Tensor(
        (4, 4), "float32"
    ):
        if c:  # noqa: SIM108
            y = R.add(x, x)
        else:
            y = R.negative(x)
        return y


def test_branches_on_the_device(target, need):
    need(2)
    mesh = dx.Mesh((2,), ("d",))
    exe = dx.build(dx.annotate(Branches, mesh, {"x": ("d", None)}), target=target)
    x = np.arange(16, dtype="float32").reshape(4, 4)
    with dx.Session(mesh, ccl="nccl") as session:
        main = session.load(exe)["main"]
        for chosen, expected in ((True, 2 * x), (False, -x)):
            np.testing.assert_array_equal(main(x, np.array(chosen)).numpy(), expected)


def test_a_copy_to_the_gpu_of_the_worker(target, need):
    """``R.to_vdevice`` names the first GPU; each worker has another one."""
    need(2)
    gpu = VDevice(tvm.target.Target(target), 0, "global")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 2), "float32"))
    with builder.function("main", [x]):
        doubled = builder.emit(relax.op.add(x, x))
        builder.emit_func_output(
            builder.emit(relax.op.negative(builder.emit(relax.op.to_vdevice(doubled, gpu))))
        )
    mod = builder.get()
    mod.update_global_info("vdevice", [gpu])
    mesh = dx.Mesh((2,), ("d",))
    exe = dx.build(dx.annotate(mod, mesh, {"x": ("d", None)}), target=target)
    assert "vm.builtin.to_device" in exe.as_text()
    value = np.arange(8, dtype="float32").reshape(4, 2)
    with dx.Session(mesh, ccl="nccl") as session:
        main = session.load(exe)["main"]
        if HOST is not None:
            HOST.cuda_on_host_count(b"legacy stream")
        actual = main(value).numpy()
        if HOST is not None:
            assert HOST.cuda_on_host_count(b"legacy stream") == 0
    np.testing.assert_array_equal(actual, -2 * value)


TABLE = np.arange(12, dtype="float32").reshape(3, 4)
ORDER = np.array([2, 0, 1], "int64")


def with_constants():
    """Constants that kernels read, one of which is a result, too."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    table, order = (relax.const(each, str(each.dtype)) for each in (TABLE, ORDER))
    with builder.function("main", [x]):
        rows = builder.emit(relax.op.take(table, order, axis=0))
        product = builder.emit(relax.op.matmul(x, relax.op.permute_dims(rows)))
        builder.emit_func_output(
            builder.emit(relax.Tuple([product, builder.call_te(first_rows, table, x), table]))
        )
    return builder.get()


def first_rows(table, x):
    shape = (x.shape[0], table.shape[1])
    return te.compute(shape, lambda i, j: table[i % 3, j] + x[i, j], name="first_rows")


@pytest.mark.parametrize("is_exported", [False, True], ids=["executable", "library"])
def test_constants_of_programs(target, worker_kind, open_session, tmp_path, is_exported):
    """They are copied when a program is loaded, on the workers' streams, and are right."""
    mesh = dx.Mesh((2,), ("d",))
    exe = dx.build(dx.annotate(with_constants(), mesh, {"x": ("d", None)}), target=target)
    assert "distir.constant.1" in exe.as_text()
    if is_exported:
        exe.export_library(str(tmp_path / "program.so"))
        exe = str(tmp_path / "program.so")
    x = np.arange(16, dtype="float32").reshape(4, 4)
    with open_session(2) as session:
        counts_here = HOST is not None and worker_kind == "threads"
        if counts_here:
            HOST.cuda_on_host_count(b"legacy stream")
        main = session.load(exe)["main"]
        for _ in range(2):
            product, rows, table = (each.numpy() for each in main(x))
            np.testing.assert_allclose(product, x @ TABLE[ORDER].T, rtol=1e-6)
            np.testing.assert_array_equal(rows, TABLE[[0, 1, 2, 0]] + x)
            np.testing.assert_array_equal(table, TABLE)
        if counts_here:
            assert HOST.cuda_on_host_count(b"legacy stream") == 0


def test_constants_without_workers(target):
    """A machine that one makes by hand copies them when they are first used."""
    mesh = dx.Mesh((1,), ("d",))
    exe = dx.build(dx.annotate(with_constants(), mesh, {"x": ("d", None)}), target=target)
    machine = relax.VirtualMachine(exe, [tvm.cuda(0), tvm.cpu()])
    x = np.arange(16, dtype="float32").reshape(4, 4)
    for _ in range(2):
        product, _, table = machine["main"](tvm.runtime.tensor(x, tvm.cuda(0)))
        np.testing.assert_allclose(product.numpy(), x @ TABLE[ORDER].T, rtol=1e-6)
        assert str(table.device) == "cuda:0"
