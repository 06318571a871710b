"""Weights that exporters have numbered get the names of their modules."""

import logging

import numpy as np
import onnx_ir as ir
import pytest

import distir_ext as dx

from . import models
from .models import array, node

SCOPES = "pkg.torch.onnx.name_scopes"


def numbered():
    """Three layers, each of which says its module in another way."""
    made = models.model(
        [
            node("MatMul", ["x", "onnx::MatMul_12"], ["a"], name="/model/layers.0/up_proj/MatMul"),
            node("Relu", ["a"], ["b"], name="/model/layers.0/Relu"),
            node("MatMul", ["b", "val_99"], ["c"], name="node_linear_1"),
            node("Add", ["c", "val_3"], ["d"], name="/model/layers.0/down_proj/Add"),
            node("Gemm", ["d", "17", "18"], ["y"], name="Gemm_4", doc_string="scope: M::/L::head"),
        ],
        {"x": [4, 6]},
        ["y"],
        {
            "onnx::MatMul_12": array(6, 8),
            "val_99": array(8, 6),
            "val_3": array(6),
            "17": array(6, 4),
            "18": array(4),
        },
    )
    linear = models.node_of(made, "node_linear_1")
    linear.metadata_props[SCOPES] = str(
        ["", "model.layers.0", "model.layers.0.down_proj", "linear"]
    )
    return made


RENAMED = {
    "onnx::MatMul_12": "model.layers.0.up_proj.weight",
    "val_99": "model.layers.0.down_proj.weight",
    "val_3": "model.layers.0.down_proj.bias",
    "17": "head.weight",
    "18": "head.bias",
}


def test_plans_by_path_match_and_the_numbers_are_right(caplog):
    model = numbered()
    with caplog.at_level(logging.INFO, "distir_ext.interop.onnx"):
        mod, _, params = dx.interop.onnx.from_onnx(model)
    assert "val_99 is called model.layers.0.down_proj.weight" in caplog.messages
    assert dx.interop.onnx.weight_names(model).renamed == RENAMED
    assert [str(each.name) for each in mod["main"].params][1:] == list(RENAMED.values())
    plan = {r".*up_proj\.weight": (None, "tp"), r".*\.down_proj\.weight": ("tp", None)}
    annotated = dx.annotate(mod, dx.Mesh(tp=2), plan)
    (x,) = models.inputs_of(model).values()
    (expected,) = models.reference(model)
    with dx.Session(2) as session:
        found = session.load(dx.build(annotated), params=params)(x).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert [each.kind for each in dx.analysis.collectives(dx.lower(annotated))] == ["all_reduce"]


def test_written_models_have_the_names_of_the_file():
    model = numbered()
    mod = dx.interop.onnx.from_onnx(model).mod
    annotated = dx.annotate(mod, dx.Mesh(tp=2), {r".*up_proj\.weight": (None, "tp")})
    propagated = dx.transform.PropagateSharding()(annotated)
    written = ir.to_proto(dx.interop.onnx.write(propagated, model, "found"))
    (configuration,) = dx.interop.onnx.read(written)
    tensors = {each.tensor for node_ in configuration.nodes for each in node_.tensors}
    assert "onnx::MatMul_12" in tensors
    assert not tensors & set(RENAMED.values())
    again = dx.interop.onnx.from_onnx(written, "found").mod
    assert "model.layers.0.up_proj.weight" in [str(each.name) for each in again["main"].params]


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (
            [
                node("MatMul", ["x", "val_1"], ["a"], name="/m/fc/MatMul"),
                node("MatMul", ["a", "val_2"], ["y"], name="/m/fc/MatMul_1"),
            ],
            {"val_1": "val_2 would be called m.fc.weight, too"},
        ),
        (
            [
                node("MatMul", ["x", "val_1"], ["a"], name="/m/one/MatMul"),
                node("MatMul", ["a", "val_1"], ["y"], name="/m/two/MatMul"),
            ],
            {"val_1": "several modules read it: m.one.weight, m.two.weight"},
        ),
        (
            [
                node("MatMul", ["x", "val_1"], ["m.fc.weight"], name="/m/fc/MatMul"),
                node("MatMul", ["m.fc.weight", "val_2"], ["y"], name="MatMul_3"),
            ],
            {"val_1": "another tensor is called m.fc.weight"},
        ),
    ],
)
def test_a_name_that_is_taken_is_given_to_none(nodes, why):
    weights = {"val_1": array(6, 6), "val_2": array(6, 6)}
    model = models.model(nodes, {"x": [4, 6]}, ["y"], weights)
    found = dx.interop.onnx.weight_names(model)
    assert not found.renamed
    assert found.kept.items() >= why.items()
    parameters = [str(each.name) for each in dx.interop.onnx.from_onnx(model).mod["main"].params]
    assert parameters == ["x", "val_1", "val_2"]


def test_names_of_users_stay():
    nodes = [
        node("MatMul", ["x", "w_1"], ["a"], name="/m/fc/MatMul"),
        node("Mul", ["a", "val_5"], ["y"], name="/m/scale/Mul"),
    ]
    model = models.model(nodes, {"x": [4, 6]}, ["y"], {"w_1": array(6, 6), "val_5": array(6)})
    assert dx.interop.onnx.weight_names(model) == dx.interop.onnx.WeightNames({}, {})
