"""A small GPT: in Relax, in torch, with the same names of weights, and plans for its step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op


@dataclass(frozen=True)
class Config:
    """Sizes of the model.

    Attributes:
        vocabulary: Number of tokens.
        length: Tokens of a sequence.
        width: Of the residual stream.
        heads: Of attention.
        layers: Number of blocks.
    """

    vocabulary: int = 32
    length: int = 32
    width: int = 64
    heads: int = 4
    layers: int = 2


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The weights by name."""
    width = config.width
    found: dict[str, tuple[int, ...]] = {
        "tokens": (config.vocabulary, width),
        "positions": (config.length, width),
    }
    for at in range(config.layers):
        block = {
            "norm1.scale": (width,),
            "norm1.shift": (width,),
            "query": (width, width),
            "key": (width, width),
            "value": (width, width),
            "out": (width, width),
            "norm2.scale": (width,),
            "norm2.shift": (width,),
            "up": (width, 4 * width),
            "down": (4 * width, width),
        }
        found.update({f"block{at}.{name}": shape for name, shape in block.items()})
    found["norm.scale"] = found["norm.shift"] = (width,)
    found["head"] = (width, config.vocabulary)
    return found


def initial_weights(config: Config, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights, the same for all frameworks."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in shapes(config).items():
        if name.endswith("scale"):
            weights[name] = np.ones(shape, "float32")
        elif name.endswith("shift"):
            weights[name] = np.zeros(shape, "float32")
        else:
            weights[name] = 0.02 * rng.standard_normal(shape, "float32")
    return weights


def forward(config: Config, batch: int) -> tvm.IRModule:
    """The module: ``main(x, *weights)`` of int64 tokens (batch, length) returns logits."""
    builder = relax.BlockBuilder()
    emit = builder.emit
    x = relax.Var("x", relax.TensorType((batch, config.length), "int64"))
    weights = {
        name: relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in shapes(config).items()
    }
    heads = (batch, config.length, config.heads, config.width // config.heads)

    def norm(value: relax.Expr, name: str) -> relax.Var:
        scale, shift = weights[f"{name}.scale"], weights[f"{name}.shift"]
        return emit(op.nn.layer_norm(value, scale, shift, axes=[-1]))

    def block(h: relax.Expr, name: str) -> relax.Var:
        n = norm(h, f"{name}.norm1")
        q, k, v = (
            emit(op.reshape(emit(op.matmul(n, weights[f"{name}.{each}"])), heads))
            for each in ("query", "key", "value")
        )
        attended = emit(op.nn.attention(q, k, v, causal_mask="TopLeft"))
        attended = emit(op.reshape(attended, (batch, config.length, config.width)))
        h = emit(op.add(h, emit(op.matmul(attended, weights[f"{name}.out"]))))
        up = emit(op.matmul(norm(h, f"{name}.norm2"), weights[f"{name}.up"]))
        down = emit(op.matmul(emit(op.nn.gelu(up)), weights[f"{name}.down"]))
        return emit(op.add(h, down))

    with builder.function("main", [x, *weights.values()], attrs={"num_input": 1}):
        with builder.dataflow():
            h = emit(op.add(emit(op.take(weights["tokens"], x, axis=0)), weights["positions"]))
            for at in range(config.layers):
                h = block(h, f"block{at}")
            logits = builder.emit_output(op.matmul(norm(h, "norm"), weights["head"]))
        builder.emit_func_output(logits)
    return builder.get()


def torch_loss(config: Config, weights: Mapping[str, Any], x: Any, target: Any) -> Any:
    """Loss of this model in torch, on parameters by name."""
    import torch.nn.functional as f

    def norm(value: Any, name: str) -> Any:
        return f.layer_norm(
            value, (config.width,), weights[f"{name}.scale"], weights[f"{name}.shift"]
        )

    h = weights["tokens"][x] + weights["positions"]
    split = (*x.shape, config.heads, config.width // config.heads)
    for at in range(config.layers):
        name = f"block{at}"
        n = norm(h, f"{name}.norm1")
        q, k, v = (
            (n @ weights[f"{name}.{each}"]).reshape(split).transpose(1, 2)
            for each in ("query", "key", "value")
        )
        attended = f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        h = h + attended.reshape(h.shape) @ weights[f"{name}.out"]
        h = h + f.gelu(norm(h, f"{name}.norm2") @ weights[f"{name}.up"]) @ weights[f"{name}.down"]
    logits = norm(h, "norm") @ weights["head"]
    return f.cross_entropy(logits.flatten(0, 1), target.flatten())


_BATCH = {"x": ("dp", None), "target": ("dp", None)}
_MATRICES = r"state\.params\.(tokens|positions|head|block\d+\.(query|key|value|out|up|down))"
_TENSOR = {
    r"state\.params\.block\d+\.(query|key|value|up)": (None, "tp"),
    r"state\.params\.block\d+\.(out|down)": ("tp", None),
    r"state\.params\.tokens": ("tp", None),
    r"state\.params\.head": (None, "tp"),
}
PLANS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "one": ({"dp": 1}, _BATCH),
    "dp": ({"dp": 4}, _BATCH),
    "zero1": (
        {"dp": 4},
        {**_BATCH, _MATRICES.replace("params", "(mean|square)", 1): ("dp", None)},
    ),
    "fsdp": ({"dp": 4}, {**_BATCH, _MATRICES: ("dp", None)}),
    "tp": ({"tp": 4}, _TENSOR),
    "dp_tp": ({"dp": 2, "tp": 2}, {**_BATCH, **_TENSOR}),
}
"""By name the axes of a mesh, and the plan of the training step."""
