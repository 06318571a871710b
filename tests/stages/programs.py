"""Programs to be cut into stages, and how they are run."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx
from distir_ext.signature.signature_attr import read_signature

# On such a device only operations count, so that small programs behave as large ones do.
COMPUTE_BOUND = {"operations": 1e6, "memory_bandwidth": 1e15}

PP_TP = dx.Mesh((2, 2), ("pp", "tp"))


def staged(mod: tvm.IRModule, *arguments: Any, **options: Any) -> tvm.IRModule:
    """The module after AssignStages, for a device that is bound by operations."""
    return dx.transform.AssignStages(*arguments, **{**COMPUTE_BOUND, **options})(mod)


def chain(widths: list[int], rows: int | str = 4) -> tvm.IRModule:
    """x @ w0, then tanh, @ w1, tanh, ...: one weight for each neighbouring pair of widths."""
    builder = relax.BlockBuilder()
    first = tvm.tirx.Var(rows, "int64") if isinstance(rows, str) else rows
    x = relax.Var("x", relax.TensorType([first, widths[0]], "float32"))
    weights = [
        relax.Var(f"w{i}", relax.TensorType([widths[i], widths[i + 1]], "float32"))
        for i in range(len(widths) - 1)
    ]
    with builder.function("main", [x, *weights], {"num_input": 1}):
        with builder.dataflow():
            value = x
            for weight in weights:
                value = builder.emit(relax.op.tanh(relax.op.matmul(value, weight)))
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    return builder.get()


def chain_result(x: Any, weights: dict[str, Any]) -> Any:
    for weight in weights.values():
        x = np.tanh(x @ weight)
    return x


def chain_values(widths: list[int], rows: int, seed: int = 0) -> tuple[Any, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, widths[0]), "float32")
    shapes = list(itertools.pairwise(widths))
    return x, {
        f"w{i}": (rng.standard_normal(shape, "float32") / np.sqrt(shape[0])).astype("float32")
        for i, shape in enumerate(shapes)
    }


@I.ir_module
class Layers:
    """A private layer called four times, with a table that all calls use, and a tied weight."""

    @R.function(private=True)
    def layer(
        x: R.Tensor((4, 16), "float32"),
        table: R.Tensor((16,), "float32"),
        up: R.Tensor((16, 32), "float32"),
        down: R.Tensor((32, 16), "float32"),
    ) -> R.Tensor((4, 16), "float32"):
        with R.dataflow():
            hidden = R.nn.silu(R.matmul(R.multiply(x, table), up))
            out = R.add(x, R.matmul(hidden, down))
            R.output(out)
        return out

    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
        scale: R.Tensor((4, 1), "float32"),
        embed: R.Tensor((8, 16), "float32"),
        up0: R.Tensor((16, 32), "float32"),
        down0: R.Tensor((32, 16), "float32"),
        up1: R.Tensor((16, 32), "float32"),
        down1: R.Tensor((32, 16), "float32"),
        up2: R.Tensor((16, 32), "float32"),
        down2: R.Tensor((32, 16), "float32"),
        up3: R.Tensor((16, 32), "float32"),
        down3: R.Tensor((32, 16), "float32"),
    ):
        R.func_attr({"num_input": 2})
        cls = Layers
        with R.dataflow():
            table = R.cos(R.arange(0, 16, 1, dtype="float32"))
            a = R.matmul(x, embed)
            b = R.multiply(cls.layer(a, table, up0, down0), scale)
            c = cls.layer(b, table, up1, down1)
            d = cls.layer(c, table, up2, down2)
            e = R.multiply(cls.layer(d, table, up3, down3), scale)
            logits = R.matmul(e, R.permute_dims(embed))
            R.output(logits, b)
        return (logits, b)


def layers_values(rows: int = 4, seed: int = 1) -> tuple[list[Any], dict[str, Any]]:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype("float32")

    weights = {"embed": normal(8, 16)}
    for i in range(4):
        weights |= {f"up{i}": normal(16, 32), f"down{i}": normal(32, 16)}
    return [normal(rows, 8), normal(rows, 1)], weights


def layers_result(x: Any, scale: Any, weights: dict[str, Any]) -> list[Any]:
    table = np.cos(np.arange(16, dtype="float32"))
    values = [x @ weights["embed"]]
    for i in range(4):
        last = values[-1]
        hidden = (last * table) @ weights[f"up{i}"]
        out = last + (hidden / (1 + np.exp(-hidden))) @ weights[f"down{i}"]
        values.append(out * scale if i in (0, 3) else out)
    return [values[-1] @ weights["embed"].T, values[1]]


def programs(mod: tvm.IRModule, function: str = "main") -> list[dict[str, Any]]:
    """The signature's programs of a function, with the names of their parameters."""
    signature = read_signature(dx.lower(mod))
    spec = signature["functions"][function]
    return [
        {**each, "params": [spec["params"][index]["name"] for index in each["params"]]}
        for each in spec["programs"]
    ]


def skips(
    rng: random.Random, layers: int, width: int, rows: int | str, weights: int
) -> tuple[tvm.IRModule, Callable[[Any, dict[str, Any]], Any], dict[str, Any]]:
    """tanh(value @ w) per layer, plus a random earlier value, with random weights, some transposed.

    Returns:
        The module, what it computes, and values of its weights.
    """
    builder = relax.BlockBuilder()
    first = tvm.tirx.Var(rows, "int64") if isinstance(rows, str) else rows
    x = relax.Var("x", relax.TensorType([first, width], "float32"))
    params = [
        relax.Var(f"w{i}", relax.TensorType([width, width], "float32")) for i in range(weights)
    ]
    plan = [
        (i % weights, rng.choice([None, *range(i + 1)]), rng.random() < 0.3) for i in range(layers)
    ]
    with builder.function("main", [x, *params], {"num_input": 1}):
        with builder.dataflow():
            values = [x]
            for index, skip, transposed in plan:
                weight = params[index]
                if transposed:
                    weight = builder.emit(relax.op.permute_dims(weight))
                value = builder.emit(relax.op.tanh(relax.op.matmul(values[-1], weight)))
                if skip is not None:
                    value = builder.emit(relax.op.add(value, values[skip]))
                values.append(value)
            value = builder.emit_output(values[-1])
        builder.emit_func_output(value)

    def compute(x: Any, weights: dict[str, Any]) -> Any:
        values = [x]
        for index, skip, transposed in plan:
            weight = weights[f"w{index}"]
            value = np.tanh(values[-1] @ (weight.T if transposed else weight))
            values.append(value if skip is None else value + values[skip])
        return values[-1]

    generator = np.random.default_rng(rng.randrange(1000))
    made = {
        f"w{i}": (generator.standard_normal((width, width)) / np.sqrt(width)).astype("float32")
        for i in range(weights)
    }
    return builder.get(), compute, made
