"""Shardings of arrays, compared with the parts that workers hold."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import distir_ext as dx
from distir_ext.signature.sharding import sharding_of_shards

MESH = dx.Mesh((3, 2), ("dp", "tp"), device_ids=(5, 4, 3, 2, 1, 0))
ROWS = np.arange(7 * 10, dtype="float32").reshape(7, 10)

PLACED = [
    ("dp", "tp"),
    (None, "dp"),
    (("dp", "tp"), None),
    (None, ("tp", "dp")),
    (None, None),
]


def doubled(shape, dims):
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.add(x, x)))
    return dx.build(dx.annotate(builder.get(), MESH, {"x": dims}))


@pytest.fixture(scope="module")
def session():
    with dx.Session(MESH) as session:
        yield session


@pytest.mark.parametrize("dims", PLACED, ids=repr)
def test_indices_are_those_of_the_shards(session, dims):
    result = session.load(doubled(ROWS.shape, dims))(ROWS)
    whole, sharding = result.numpy(), result.sharding
    assert (sharding.mesh, sharding.dims, sharding.shape) == (MESH, dims, whole.shape)
    assert sharding.indices.keys() == result.shards.keys() == set(MESH.device_ids)
    assert dx.visualize(result).sharding == sharding
    covered = np.zeros(whole.shape, int)
    for device, index in sharding.indices.items():
        held = result.shards[device].numpy()
        part = whole[index]
        assert held.shape == sharding.shard_shape
        np.testing.assert_array_equal(held[tuple(slice(size) for size in part.shape)], part)
        covered[index] += 1
    axes = [name for each in dims for name in ([each] if isinstance(each, str) else each or [])]
    copies = {(): 6, ("dp",): 2}.get(tuple(axes), 1)
    assert (covered == copies).all()


def test_a_device_can_hold_padding_alone(session):
    result = session.load(doubled((7, 1), (("dp", "tp"), None)))(ROWS[:, :1])
    assert result.sharding.indices[0] == (slice(7, 7), slice(0, 1))
    assert result.sharding.shard_shape == (2, 1)


def test_only_devices_that_hold_a_part_are_listed():
    first, second = dx.Mesh((2,), ("tp",)), dx.Mesh((2,), ("tp",), device_ids=(2, 3))
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        y = builder.emit(relax.op.nn.relu(x), name_hint="y")
        builder.emit_func_output(builder.emit(relax.op.add(y, y), name_hint="z"))
    plan = {"x": (first, ("tp", None)), "z": (second, ("tp", None))}
    with dx.Session(4) as session:
        result = session.load(dx.build(dx.annotate(builder.get(), first, plan)))(
            np.ones((4, 4), "float32")
        )
    assert result.sharding.mesh == second
    assert set(result.sharding.indices) == {2, 3}


def test_devices_without_a_shard_have_no_indices(session):
    result = session.load(doubled((6, 4), (None, "tp")))(ROWS[:6, :4])
    some = {device: result.shards[device] for device in (0, 1)}
    sharding = sharding_of_shards(result.sharding.spec, (6, 4), some)
    assert sharding.devices == (1, 0)  # in the order of the mesh
    assert sharding.indices == {device: result.sharding.indices[device] for device in (1, 0)}
    with pytest.raises(ValueError, match="device 3 is not one of those that hold the array: 0, 1"):
        dx.visualize(sharding, devices=3)


def test_notebooks_show_models_and_results(session):
    model = session.load(doubled(ROWS.shape, ("dp", "tp")))
    for shown in (model._repr_html_(), model["main"]._repr_html_()):
        assert "main, on 6 devices: 0..5" in shown
        assert "float32[7, 10] (&#x27;dp&#x27;, &#x27;tp&#x27;)" in shown
    result = model(ROWS)
    assert "device 0: [6:7, 5:10]" in result._repr_html_()
    assert "ShardedArray float32[7, 10]" in result._repr_html_()
