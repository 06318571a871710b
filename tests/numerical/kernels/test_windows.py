"""Convolutional networks sharded along what their windows slide over, and what that sends."""

import math

import numpy as np
import pytest
import tvm
from tests.targets import QUICK
from tvm import relax
from tvm.relax import op
from tvm.relax.op import nn
from tvm.relax.op.distributed import annotate_sharding

import distir_ext as dx
from distir_ext.testing.phases import verify

BATCH, CHANNELS, SIZE = 2, 8, 32
KERNELS = ((8, 3, 3, 3), (8, 8, 5, 5), (8, 8, 4, 4), (4, 8, 1, 1))
MESHES = {
    (2,): (None, None, "a0", None),
    (4,): (None, None, "a0", None),
    (2, 2): (None, None, "a0", "a1"),
}


def network(x, *kernels):
    """Convolutions with windows of 3, 5 (in strides of 2) and 1, pooling, one transposed."""
    x = nn.relu(nn.conv2d(x, kernels[0], padding=1))
    x = nn.relu(nn.conv2d(x, kernels[1], padding=2, strides=2))
    x = nn.max_pool2d(x, 3, 1, 1)
    x = nn.avg_pool2d(x, 2, 2)
    x = nn.conv2d_transpose(x, kernels[2], strides=2, padding=1)
    return nn.conv2d(x, kernels[3])


def module(mesh=None, placement=()):
    builder = relax.BlockBuilder()
    shapes = ((BATCH, 3, SIZE, SIZE), *KERNELS)
    params = [
        relax.Var(f"x{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            x = params[0]
            if mesh is not None:
                x = builder.emit(annotate_sharding(x, mesh.device_mesh, mesh.placement(*placement)))
            result = builder.emit_output(builder.normalize(network(x, *params[1:])))
        builder.emit_func_output(result)
    mod = builder.get()
    if mesh is not None:
        mod.update_global_info("mesh", [mesh.device_mesh])
    return mod


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    image = rng.standard_normal((BATCH, 3, SIZE, SIZE))
    kernels = [rng.standard_normal(s) / math.sqrt(math.prod(s[1:])) for s in KERNELS]
    return [array.astype("float32") for array in (image, *kernels)]


@pytest.fixture(scope="module")
def expected(arrays):
    machine = relax.VirtualMachine(tvm.compile(module(), QUICK), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_network_on_shards_of_an_image(shape, arrays, expected):
    mesh = dx.Mesh(shape, tuple(f"a{i}" for i in range(len(shape))))
    propagated = dx.transform.PropagateSharding()(module(mesh, MESHES[shape]))
    sharded = [f"S[{2 + i}]" for i in range(len(shape))]
    assert repr(propagated["main"].ret_ty.placement).strip('"') == ", ".join(sharded)
    verify(dx.transform.LegalizeRedistribute()(propagated), "legalized")
    with dx.Session(mesh) as session:
        got = session.load(dx.build(propagated, QUICK))["main"](*arrays).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_only_halos_are_sent():
    mesh = dx.Mesh((4,), ("a0",))
    lowered = dx.lower(module(mesh, MESHES[(4,)]))
    found = dx.analysis.collectives(lowered)
    assert {each.kind for each in found} == {"segment_exchange"}
    row = BATCH * SIZE * 4  # bytes of one row of one channel
    # Rows of an inner shard that its neighbours look at; 16 and 8 columns after strides of 2.
    halos = [
        2 * 3 * row,  # a window of 3
        3 * CHANNELS * row,  # a window of 5 in strides of 2: two rows before, one behind
        2 * CHANNELS * row // 2,
        2 * CHANNELS * row // 4,  # a transposed window of 4 in strides of 2
    ]
    assert sorted(each.bytes_per_device * each.count for each in found) == sorted(halos)


@pytest.mark.parametrize("batch", [4, "n"])
def test_batch_and_rows_on_axes_of_a_mesh_in_either_order(batch):
    size = tvm.tirx.Var("n", "int64") if batch == "n" else batch
    for names in (("x", "y"), ("y", "x")):
        mesh = dx.Mesh((2, 2), names)
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((size, 3, 8, 6), "float32"))
        w = relax.Var("w", relax.TensorType((2, 3, 3, 3), "float32"))
        with builder.function("main", [x, w]):
            with builder.dataflow():
                placement = mesh.placement("x", None, "y", None)
                sharded = builder.emit(annotate_sharding(x, mesh.device_mesh, placement))
                result = builder.emit_output(nn.conv2d(sharded, w, padding=1))
            builder.emit_func_output(result)
        mod = builder.get()
        mod.update_global_info("mesh", [mesh.device_mesh])
        rng = np.random.default_rng(0)
        data = rng.standard_normal((4, 3, 8, 6)).astype("float32")
        kernel = rng.standard_normal((2, 3, 3, 3)).astype("float32")
        with dx.Session(mesh) as session:
            got = session.load(dx.build(mod, QUICK))["main"](data, kernel).numpy()
        padded = np.pad(data, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        wanted = np.einsum("nchwij,ocij->nohw", windows, kernel)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_split_moves_once_what_its_parts_lack():
    # As of queries, keys and values that are one product, sharded over columns.
    mesh = dx.Mesh((4,), ("x",))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((16, 96), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            placement = mesh.placement(None, "x")
            sharded = builder.emit(annotate_sharding(x, mesh.device_mesh, placement))
            parts = builder.emit(op.split(sharded, 3, 1))
            q, k, v = (builder.emit(parts[i]) for i in range(3))
            scores = builder.emit(op.add(op.multiply(q, k), v))
            # What the parts are used for has them sharded; the split alone would not.
            scores = builder.emit_output(annotate_sharding(scores, mesh.device_mesh, placement))
        builder.emit_func_output(scores)
    mod = builder.get()
    mod.update_global_info("mesh", [mesh.device_mesh])
    (found,) = dx.analysis.collectives(dx.lower(mod))
    assert found.kind == "segment_exchange"
    assert found.bytes_per_device <= 16 * 96 * 4 // 4  # no more than the device's shard
    array = np.random.default_rng(0).standard_normal((16, 96)).astype("float32")
    with dx.Session(mesh) as session:
        got = session.load(dx.build(mod, QUICK))["main"](array).numpy()
    q, k, v = np.split(array, 3, axis=1)
    np.testing.assert_allclose(got, q * k + v, rtol=1e-5, atol=1e-6)
