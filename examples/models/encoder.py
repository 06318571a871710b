"""A Transformer encoder layer written in ONNX, through the ONNX frontend."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tvm.relax.frontend import detach_params
from tvm.relax.frontend.onnx import from_onnx

from distir_ext.annotate import Plan
from models.case import BATCH, Array, Model, imported

SEQUENCE, HIDDEN, HEADS, FEED_FORWARD = 8, 64, 8, 128
HEAD_SIZE = HIDDEN // HEADS
OPSET = 17
SEED = 29

TENSOR: Plan = {
    "query|key|value|up": (None, "tp"),
    "up_bias": ("tp",),
    "out|down": ("tp", None),
}
SHARDED: Plan = {
    "query|key|value|out|up|down": ("fsdp", None),
    ".*_(scale|bias)": ("fsdp",),
}


def weights(generator: np.random.Generator) -> dict[str, Array]:
    """Matrices that keep the variance, scales near one and small biases."""
    square = dict.fromkeys(("query", "key", "value", "out"), (HIDDEN, HIDDEN))
    matrices = {**square, "up": (HIDDEN, FEED_FORWARD), "down": (FEED_FORWARD, HIDDEN)}
    vectors = {"up_bias": FEED_FORWARD}
    for name in ("norm1_scale", "norm1_bias", "norm2_scale", "norm2_bias"):
        vectors[name] = HIDDEN
    values = {n: generator.standard_normal(s) / np.sqrt(s[0]) for n, s in matrices.items()}
    for name, size in vectors.items():
        values[name] = name.endswith("scale") + 0.1 * generator.standard_normal(size)
    return {name: value.astype(np.float32) for name, value in values.items()}


def graph(values: dict[str, Array], batch: int) -> onnx.ModelProto:
    """Self-attention and a feed-forward layer, each added to its input and normalised."""
    nodes: list[onnx.NodeProto] = []
    shapes = {
        "divided": np.array([batch, SEQUENCE, HEADS, HEAD_SIZE]),
        "joined": np.array([batch, SEQUENCE, HIDDEN]),
    }

    def node(kind: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def heads(name: str, perm: list[int]) -> str:
        x = node("MatMul", ["x", name], f"{name}_rows")
        x = node("Reshape", [x, "divided"], f"{name}_divided")
        return node("Transpose", [x], f"{name}_heads", perm=perm)

    query, value = (heads(name, [0, 2, 1, 3]) for name in ("query", "value"))
    key = heads("key", [0, 2, 3, 1])
    scores = node("Mul", [node("MatMul", [query, key], "products"), "scale"], "scores")
    attended = node("MatMul", [node("Softmax", [scores], "shares", axis=-1), value], "attended")
    rows = node("Transpose", [attended], "attended_rows", perm=[0, 2, 1, 3])
    joined = node("Reshape", [rows, "joined"], "attended_joined")
    added = node("Add", ["x", node("MatMul", [joined, "out"], "projected")], "added")
    hidden = node("LayerNormalization", [added, "norm1_scale", "norm1_bias"], "hidden", axis=-1)
    raised = node("Add", [node("MatMul", [hidden, "up"], "raised_rows"), "up_bias"], "raised")
    active = node("Relu", [raised], "active")
    added = node("Add", [hidden, node("MatMul", [active, "down"], "lowered")], "added2")
    node("LayerNormalization", [added, "norm2_scale", "norm2_bias"], "y", axis=-1)

    constants = {**shapes, "scale": np.float32(HEAD_SIZE**-0.5)}
    for name, constant in constants.items():
        tensor = numpy_helper.from_array(np.asarray(constant), name)
        nodes.insert(0, helper.make_node("Constant", [], [name], value=tensor))
    shape = [batch, SEQUENCE, HIDDEN]
    return helper.make_model(
        helper.make_graph(
            nodes,
            "encoder",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
            [numpy_helper.from_array(value, name) for name, value in values.items()],
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
    )


def encoder(batch: int = BATCH) -> Model:
    """Attention over heads, LayerNorm, a feed-forward layer."""
    generator = np.random.default_rng(SEED)
    model = graph(weights(generator), batch)
    x = generator.standard_normal((batch, SEQUENCE, HIDDEN)).astype(np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    module, params = detach_params(from_onnx(model, keep_params_in_input=True))
    names = [param.name for param in module["main"].params[1:]]
    weights_by_name = dict(zip(names, params["main"], strict=True))
    return imported("encoder", module, weights_by_name, {"x": x}, expected, TENSOR, SHARDED)
