"""A stack of decoder layers with the shapes of Llama 2 70B, as one Relax function or as calls.

Operators are emitted directly and no weight has a value, so that a stack of 80 layers takes a
second to build. The operators are those that TVM's own relax.distributed.transform knows, so that
both can be timed on the same program: RMSNorm and SiLU are spelled out, and the half-turn of the
rotary embedding is a product with a matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.relax import op

import distir_ext as dx


@dataclass(frozen=True)
class StackConfig:
    """Sizes of a layer (arXiv:2307.09288, table 1) and of the batch."""

    hidden: int = 8192
    heads: int = 64
    kv_heads: int = 8
    feed_forward: int = 28672
    batch: int = 1
    sequence: int = 2048
    epsilon: float = 1e-5
    dtype: str = "float16"

    @property
    def head_size(self) -> int:
        """Size of one head."""
        return self.hidden // self.heads


LLAMA_70B = StackConfig()

# Weights are kept as (out, in), as the frontends have them.
PLAN = {
    r".*\.(q|k|v|gate|up)_proj": ("tp", None),
    r".*\.(o|down)_proj": (None, "tp"),
}


def layer_weights(config: StackConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one layer's weights."""
    kv_size = config.kv_heads * config.head_size
    return {
        "attn_norm": (config.hidden,),
        "q_proj": (config.hidden, config.hidden),
        "k_proj": (kv_size, config.hidden),
        "v_proj": (kv_size, config.hidden),
        "o_proj": (config.hidden, config.hidden),
        "mlp_norm": (config.hidden,),
        "gate_proj": (config.feed_forward, config.hidden),
        "up_proj": (config.feed_forward, config.hidden),
        "down_proj": (config.hidden, config.feed_forward),
    }


def shared_inputs(config: StackConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what all layers use: activations, rotary tables and the mask."""
    size = config.head_size
    return {
        "x": (config.batch, config.sequence, config.hidden),
        "cos": (config.sequence, size),
        "sin": (config.sequence, size),
        "half_turn": (size, size),
        "mask": (config.sequence, config.sequence),
    }


class LayerEmitter:
    """Emits layers into a builder.

    Args:
        builder: In the scope of a function and a dataflow block.
        config: The sizes.
        tables: "cos", "sin", "half_turn" and "mask".
    """

    def __init__(
        self, builder: relax.BlockBuilder, config: StackConfig, tables: dict[str, relax.Var]
    ) -> None:
        self.builder = builder
        self.config = config
        self.tables = tables

    def layer(self, x: relax.Expr, weights: dict[str, relax.Var]) -> relax.Var:
        """One decoder layer on (batch, sequence, hidden)."""
        emit = self.builder.emit
        h = self.attention(self.rms_norm(x, weights["attn_norm"]), weights)
        x = emit(op.add(x, h))
        h = self.feed_forward(self.rms_norm(x, weights["mlp_norm"]), weights)
        return emit(op.add(x, h))

    def rms_norm(self, x: relax.Expr, weight: relax.Var) -> relax.Var:
        """Divides x by its root mean square and multiplies it by the weight."""
        emit = self.builder.emit
        mean = emit(op.mean(emit(op.square(x)), axis=[-1], keepdims=True))
        scale = emit(op.rsqrt(emit(op.add(mean, self._number(self.config.epsilon)))))
        return emit(op.multiply(emit(op.multiply(x, scale)), weight))

    def attention(self, x: relax.Expr, weights: dict[str, relax.Var]) -> relax.Var:
        """Grouped-query attention; heads are two dimensions, (kv_heads, group)."""
        emit, c = self.builder.emit, self.config
        rows = (c.batch, c.sequence, c.kv_heads)
        group = c.heads // c.kv_heads
        q = self.heads(self.project(x, weights["q_proj"]), (*rows, group, c.head_size))
        k = self.heads(self.project(x, weights["k_proj"]), (*rows, 1, c.head_size))
        v = self.heads(self.project(x, weights["v_proj"]), (*rows, 1, c.head_size))
        k = emit(op.permute_dims(self.rotate(k), [0, 1, 2, 4, 3]))
        scores = emit(
            op.multiply(emit(op.matmul(self.rotate(q), k)), self._number(c.head_size**-0.5))
        )
        probabilities = emit(op.nn.softmax(emit(op.add(scores, self.tables["mask"])), axis=-1))
        out = emit(op.permute_dims(emit(op.matmul(probabilities, v)), [0, 3, 1, 2, 4]))
        out = emit(op.reshape(out, (c.batch, c.sequence, c.hidden)))
        return self.project(out, weights["o_proj"])

    def feed_forward(self, x: relax.Expr, weights: dict[str, relax.Var]) -> relax.Var:
        """SwiGLU."""
        emit = self.builder.emit
        gate = self.project(x, weights["gate_proj"])
        active = emit(op.multiply(gate, emit(op.sigmoid(gate))))
        h = emit(op.multiply(active, self.project(x, weights["up_proj"])))
        return self.project(h, weights["down_proj"])

    def project(self, x: relax.Expr, weight: relax.Var) -> relax.Var:
        """Multiplies x by the transposed weight."""
        return self.builder.emit(op.matmul(x, self.builder.emit(op.permute_dims(weight))))

    def heads(self, x: relax.Expr, shape: tuple[int, ...]) -> relax.Var:
        """(batch, sequence, size) as (batch, kv_heads, group, sequence, head_size)."""
        split = self.builder.emit(op.reshape(x, shape))
        return self.builder.emit(op.permute_dims(split, [0, 2, 3, 1, 4]))

    def rotate(self, x: relax.Expr) -> relax.Var:
        """Rotary embedding of the last dimension."""
        emit = self.builder.emit
        turned = emit(op.matmul(x, self.tables["half_turn"]))
        straight = emit(op.multiply(x, self.tables["cos"]))
        return emit(op.add(straight, emit(op.multiply(turned, self.tables["sin"]))))

    def _number(self, value: float) -> relax.Constant:
        return relax.const(value, self.config.dtype)


def build_stack(layers: int, config: StackConfig = LLAMA_70B) -> tvm.IRModule:
    """All layers in one function ``main``."""
    builder = relax.BlockBuilder()
    shared = _variables(shared_inputs(config), config)
    weights = [_variables(layer_weights(config), config, f"layers.{i}.") for i in range(layers)]
    with builder.function("main", _parameters(shared, weights)):
        with builder.dataflow():
            emitter = LayerEmitter(builder, config, shared)
            x = shared["x"]
            for each in weights:
                x = emitter.layer(x, each)
            result = builder.emit_output(x)
        builder.emit_func_output(result)
    return builder.get()


def build_calls(layers: int, config: StackConfig = LLAMA_70B) -> tvm.IRModule:
    """A private function ``layer``, and ``main`` that calls it once per layer."""
    builder = relax.BlockBuilder()
    shared = _variables(shared_inputs(config), config)
    own = _variables(layer_weights(config), config)
    with builder.function("layer", _parameters(shared, [own]), private=True):
        with builder.dataflow():
            result = builder.emit_output(
                LayerEmitter(builder, config, shared).layer(shared["x"], own)
            )
        layer = builder.emit_func_output(result)

    shared = _variables(shared_inputs(config), config)
    weights = [_variables(layer_weights(config), config, f"layers.{i}.") for i in range(layers)]
    with builder.function("main", _parameters(shared, weights)):
        with builder.dataflow():
            x, *tables = shared.values()
            for each in weights:
                x = builder.emit(relax.Call(layer, [x, *tables, *each.values()]))
            result = builder.emit_output(x)
        builder.emit_func_output(result)
    return builder.get()


def annotated(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with the projections of ``main`` annotated over 8 devices."""
    return dx.annotate(mod, dx.Mesh((8,), ("tp",)), PLAN)


def count_operators(mod: tvm.IRModule) -> int:
    """The operators and calls of all functions, without the annotations."""
    return sum(
        isinstance(binding.value, relax.Call)
        and getattr(binding.value.op, "name", "") != "relax.dist.annotate_sharding"
        for function in mod.functions.values()
        for block in function.body.blocks
        for binding in block.bindings
    )


def count_variables(mod: tvm.IRModule) -> int:
    """The parameters and bindings of all functions: what a pass visits at least once."""
    return sum(
        len(function.params) + sum(len(block.bindings) for block in function.body.blocks)
        for function in mod.functions.values()
    )


def _variables(
    shapes: dict[str, tuple[int, ...]], config: StackConfig, prefix: str = ""
) -> dict[str, relax.Var]:
    return {
        name: relax.Var(prefix + name, relax.TensorType(shape, config.dtype))
        for name, shape in shapes.items()
    }


def _parameters(
    shared: dict[str, relax.Var], weights: list[dict[str, relax.Var]]
) -> list[relax.Var]:
    return [*shared.values(), *(var for each in weights for var in each.values())]
