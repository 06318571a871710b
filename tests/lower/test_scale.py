"""Size of lowered programs and time of lowering, for many devices and stages."""

from __future__ import annotations

import time

import pytest
import tvm_ffi
from tests.native.library import call
from tvm import relax
from tvm.relax import op

import distir_ext as dx
from distir_ext.communication.collectives import sent_by_plan
from distir_ext.native.collective_records import names

PASSES = ("PropagateSharding", "PadShards", "LegalizeRedistribute", "OptimizeCollectives")


def lowered(mod):
    for name in (*PASSES, "LowerDistIR"):
        mod = getattr(dx.transform, name)()(mod)
    return mod


def chain(meshes, all_dims, shape=(64, 64)):
    """A tensor that is on one mesh after the other, with a weight on each."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    weights = [relax.Var(f"w{i}", relax.TensorType(shape, "float32")) for i in range(len(meshes))]
    with builder.function("main", [x, *weights], {"num_input": 1}):
        value = x
        for mesh, dims, weight in zip(meshes, all_dims, weights, strict=True):
            value = builder.emit(
                op.distributed.annotate_sharding(value, mesh.device_mesh, mesh.placement(*dims))
            )
            value = builder.emit(op.add(value, weight))
        builder.emit_func_output(value)
    mod = builder.get()
    mod.update_global_info("mesh", [mesh.device_mesh for mesh in meshes])
    return mod


def calls_of(mod, name):
    return [
        binding.value
        for function in mod.functions.values()
        if isinstance(function, relax.Function)
        for block in function.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
        and getattr(binding.value.op, "name", None) == f"relax.ccl.{name}"
    ]


def rows_to_columns(count):
    meshes = [
        dx.Mesh((count,), ("a",), device_ids=list(range(i * count, (i + 1) * count)))
        for i in range(2)
    ]
    return lowered(chain(meshes, [("a", None), (None, "a")], (2 * count, 2 * count)))


def test_plan_does_not_list_pairs_of_devices():
    for count in (8, 512):
        (send,) = calls_of(rows_to_columns(count), "send")
        assert len(str(send.attrs["plan"])) < 200


def test_text_of_the_signature_names_a_mesh_once():
    mesh = dx.Mesh((64,), ("a",))
    sizes = []
    for count in (10, 20):
        builder = relax.BlockBuilder()
        params = [relax.Var(f"w{i:02}", relax.TensorType((64,), "float32")) for i in range(count)]
        with builder.function("main", params):
            value = params[0]
            for each in params[1:]:
                value = builder.emit(op.add(value, each))
            builder.emit_func_output(value)
        mod = lowered(dx.annotate(builder.get(), mesh, {r"w\d+": ("a",)}))
        sizes.append(len(str(mod.attrs["distir.signature"])))
    assert sizes[1] - sizes[0] < 10 * 150


def test_collectives_share_their_groups():
    builder = relax.BlockBuilder()
    tensor = relax.TensorType((8, 8), "float32")
    x, *weights = (relax.Var(name, tensor) for name in ("x", "up0", "down0", "up1", "down1"))
    with builder.function("main", [x, *weights]):
        value = x
        for weight in weights:
            value = builder.emit(op.nn.relu(op.matmul(value, weight)))
        builder.emit_func_output(value)
    mesh = dx.Mesh((2, 4), ("a", "b"))
    plan = {r"up\d": (None, "b"), r"down\d": ("b", None)}
    first, second = calls_of(lowered(dx.annotate(builder.get(), mesh, plan)), "all_reduce")
    assert first.attrs["groups"].same_as(second.attrs["groups"])


def times_equality(make, size, name):
    """Time of one pass on a module, in units of TVM's comparison of the module with itself.

    Comparing is linear, and what a large module does to caches and to the heap it does to both.
    """
    mod = make(size)
    for each in PASSES:
        if each == name:
            break
        mod = getattr(dx.transform, each)()(mod)
    passes, equality = [], []
    for _ in range(3):
        passes.append(timed(getattr(dx.transform, name)(), mod))
        equality.append(timed(tvm_ffi.structural_equal, mod, mod))
    return min(passes) / min(equality)


def timed(work, *args):
    begin = time.thread_time()
    work(*args)
    return time.thread_time() - begin


def stages(count):
    meshes = [dx.Mesh((1,), ("a",), device_ids=[i]) for i in range(count)]
    return chain(meshes, [(None, None)] * count)


def moves(count):
    """Between shardings of a mesh of so many devices."""
    mesh = dx.Mesh((count // 8, 8), ("a", "b"))
    dims = [("a", "b"), ("b", "a"), (None, ("a", "b")), (None, None), ("a", None), ("b", None)]
    return chain([mesh] * len(dims), dims, (4 * count, 4 * count))


# A quadratic pass on 12 times as many takes 12 times as many comparisons, a linear one as many; up
# to 2 were measured.
TIMES_MORE, MOST = 12, 5.0


@pytest.mark.parametrize("name", ["PropagateSharding", "PadShards", "LowerDistIR"])
@pytest.mark.parametrize(("make", "size"), [(stages, 48), (moves, 256)])
def test_time_is_linear_in_stages_and_devices(make, size, name):
    small, large = times_equality(make, size, name), times_equality(make, TIMES_MORE * size, name)
    assert large < MOST * small


def test_time_of_a_transfer_is_linear_in_its_devices():
    """Quadratic were 144 times as much; caches make it up to 30."""
    small, large = (min(timed(rows_to_columns, n) for _ in range(3)) for n in (128, 12 * 128))
    assert large < 60 * small


def test_one_device_reads_its_part_of_a_large_plan_at_once():
    """Device 0 sends a piece to each of 4,096 others; all pieces are 16 million."""
    plan = str(calls_of(rows_to_columns(4096), "send")[0].attrs["plan"])
    begin = time.thread_time()
    _, sends, receives = call("TransferPart", plan, 0)
    assert time.thread_time() - begin < 1
    assert (len(sends), len(receives)) == (4096, 0)
    assert sorted(piece[0] for piece in sends) == list(range(4096, 8192))


def test_traffic_of_a_large_plan_is_said_without_its_pieces():
    """For all 16 million pieces this would take seconds."""
    plan = str(calls_of(rows_to_columns(4096), "send")[0].attrs["plan"])
    begin = time.thread_time()
    traffic = sent_by_plan(names.transfer, plan, None, 64)
    assert time.thread_time() - begin < 1
    assert traffic == (8192, 64)
