"""Imported models on CPU workers, against ONNX's reference evaluator."""

import numpy as np
import pytest
from hypothesis import given, settings
from onnx import TensorProto, helper, numpy_helper

import distir_ext as dx

from . import models
from .strategies import SIZES, shardings

MODELS = {
    "tensor parallel": models.tensor_parallel_mlp,
    "tensor parallel, 3 devices, odd sizes": lambda: models.tensor_parallel_mlp(
        3, batch=5, width=7, hidden=11, out=5
    ),
    "two axes, negative axes, groups": models.two_axes_mlp,
    "conv, batch on 3 devices": models.batch_sharded_conv_net,
    "conv, 5 channels on 2 devices": models.channel_sharded_conv_net,
    "stages alone": models.staged_mlp,
    "stages back and forth": lambda: models.staged_mlp((0, 1, 1, 0)),
    "stages with tensor parallelism": lambda: models.staged_mlp(named=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_result(name):
    model = MODELS[name]()
    found = models.run(dx.interop.onnx.from_onnx(model), models.inputs_of(model))
    for ours, theirs in zip(found, models.reference(model), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_devices_are_those_of_the_file():
    imported = dx.interop.onnx.from_onnx(models.batch_sharded_conv_net())
    assert imported.mesh == dx.Mesh((3,), ("x",), device_ids=(2, 0, 1))


def test_stages_run_as_a_pipeline():
    model = models.staged_mlp(named=True)
    imported = dx.interop.onnx.from_onnx(model)
    assert [mesh.device_ids for mesh in dx.meshes(imported.mod)] == [(0, 1), (2, 3)]
    x = models.array(15, 6)
    exe = dx.build(imported.mod)
    with dx.Session(imported.mesh) as session:
        main = session.load(exe, params=imported.params)["main"]
        y = main.pipeline(microbatches=3)(x)
        whole = np.concatenate([main(x[i : i + 5]).numpy() for i in (0, 5, 10)])
        np.testing.assert_allclose(np.asarray(y), whole, rtol=1e-6)


def test_random_shardings(sample):
    @settings(max_examples=sample(3, 25, 300))
    @given(shardings())
    def check(stated):
        model = models.mlp(**SIZES)
        six = model.add_device_configuration("six", num_devices=6)
        for each in stated:
            models.state(model, six, *each)
        (y,) = models.run(dx.interop.onnx.from_onnx(model), models.inputs_of(model))
        np.testing.assert_allclose(y, models.reference(model)[0], rtol=1e-5, atol=1e-5)

    check()


def test_indices_that_are_negative_or_too_large():
    """Constants count from the end; what is given at run time reads nothing outside."""
    constant = numpy_helper.from_array(np.array([-1, 1]), "places")
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["c"], value=constant),
            helper.make_node("Gather", ["x", "c"], ["y"], axis=1),
            helper.make_node("Gather", ["x", "i"], ["z"], axis=1),
            helper.make_node("GatherElements", ["x", "e"], ["w"], axis=1),
        ],
        "lookups",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8]),
            helper.make_tensor_value_info("i", TensorProto.INT64, [3]),
            helper.make_tensor_value_info("e", TensorProto.INT64, [4, 2]),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yzw"],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    mod = dx.interop.onnx.from_onnx(model).mod
    x = np.arange(32, dtype="float32").reshape(4, 8)
    i, e = np.array([-1, 0, -8]), np.array([[-1, 0]] * 4)
    for dims in (("a", None), (None, "a")):
        exe = dx.build(dx.annotate(mod, dx.Mesh(a=2), {"x": dims}))
        with dx.Session(2) as session:
            model = session.load(exe)
            found = [each.numpy() for each in model(x, i, e)]
            outside = model(x, np.array([8, 10**9, -9]), e)[1].numpy()
        np.testing.assert_array_equal(found[0], x[:, [-1, 1]])
        np.testing.assert_array_equal(found[1], x[:, i])
        np.testing.assert_array_equal(found[2], np.take_along_axis(x, e, 1))
        np.testing.assert_array_equal(outside, x[:, [7, 7, 0]])
