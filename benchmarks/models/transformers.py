"""A Llama-like decoder and a mixture of experts as plain Relax, as a user would write them.

Operators are emitted into one function without any thought of sharding; weights are (in, out). The
shapes are those of Llama 3 8B (arXiv:2407.21783) cut to four layers, and of one block of eight
experts with top-2 routing and one-hot dispatch (GShard, arXiv:2006.16668).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.relax import op

MASKED = -1e30


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the models and of the batch."""

    layers: int = 4
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    feed_forward: int = 14336
    vocabulary: int = 128256
    batch: int = 8
    sequence: int = 1024
    experts: int = 8
    chosen: int = 2
    capacity_factor: float = 1.25
    rope_base: float = 500000.0
    epsilon: float = 1e-5
    dtype: str = "float32"

    @property
    def head_size(self) -> int:
        """Size of one head."""
        return self.hidden // self.heads

    @property
    def capacity(self) -> int:
        """Tokens of a sequence that one expert takes."""
        return math.ceil(self.chosen * self.sequence / self.experts * self.capacity_factor)


class Emitter:
    """Emits operators into the function that is being built."""

    def __init__(self, builder: relax.BlockBuilder, config: ModelConfig) -> None:
        self.builder = builder
        self.config = config

    def __call__(self, expr: relax.Expr) -> relax.Var:
        """Binds an expression to a variable."""
        return self.builder.emit(expr)

    def number(self, value: float) -> relax.Constant:
        """A scalar."""
        return relax.const(value, self.config.dtype)

    def sum_of(self, subscripts: str, *operands: relax.Expr) -> relax.Var:
        """Einstein summation."""
        return self(op.einsum(list(operands), subscripts))

    def silu(self, x: relax.Expr) -> relax.Var:
        """Sigmoid linear unit."""
        return self(op.multiply(x, self(op.sigmoid(x))))

    def rms_norm(self, x: relax.Expr, weight: relax.Expr) -> relax.Var:
        """Divides x by its root mean square and multiplies it by the weight."""
        mean = self(op.mean(self(op.multiply(x, x)), axis=[-1], keepdims=True))
        scale = self(op.rsqrt(self(op.add(mean, self.number(self.config.epsilon)))))
        return self(op.multiply(self(op.multiply(x, scale)), weight))


class Llama(Emitter):
    """Embedding, decoder layers, final norm and logits."""

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes."""
        c = self.config
        kv_size = c.kv_heads * c.head_size
        shapes: dict[str, tuple[int, ...]] = {"embed": (c.vocabulary, c.hidden)}
        for layer in range(c.layers):
            shapes |= {
                f"layers.{layer}.{name}": shape
                for name, shape in {
                    "attn_norm": (c.hidden,),
                    "wq": (c.hidden, c.hidden),
                    "wk": (c.hidden, kv_size),
                    "wv": (c.hidden, kv_size),
                    "wo": (c.hidden, c.hidden),
                    "mlp_norm": (c.hidden,),
                    "gate": (c.hidden, c.feed_forward),
                    "up": (c.hidden, c.feed_forward),
                    "down": (c.feed_forward, c.hidden),
                }.items()
            }
        return shapes | {"final_norm": (c.hidden,), "lm_head": (c.hidden, c.vocabulary)}

    def inputs(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Names, shapes and dtypes."""
        return {"tokens": ((self.config.batch, self.config.sequence), "int32")}

    def body(self, inputs: dict[str, relax.Var], weights: dict[str, relax.Var]) -> relax.Var:
        """Logits."""
        x = self(op.take(weights["embed"], inputs["tokens"], axis=0))
        cos, sin, visible = self.tables()
        for layer in range(self.config.layers):
            own = {
                name.removeprefix(f"layers.{layer}."): var
                for name, var in weights.items()
                if name.startswith(f"layers.{layer}.")
            }
            normed = self.rms_norm(x, own["attn_norm"])
            x = self(op.add(x, self.attention(normed, own, cos, sin, visible)))
            x = self(op.add(x, self.feed_forward(self.rms_norm(x, own["mlp_norm"]), own)))
        return self(op.matmul(self.rms_norm(x, weights["final_norm"]), weights["lm_head"]))

    def tables(self) -> tuple[relax.Var, relax.Var, relax.Var]:
        """Cosine and sine (sequence, 1, half of a head), and which keys a query sees."""
        c = self.config
        half = c.head_size // 2
        place = self(op.arange(0, c.sequence, 1, c.dtype))
        power = self.number(-math.log(c.rope_base) / half)
        rate = self(op.exp(self(op.multiply(self(op.arange(0, half, 1, c.dtype)), power))))
        angle = self(op.multiply(self(op.reshape(place, (c.sequence, 1, 1))), rate))
        rows, columns = self(op.expand_dims(place, 1)), self(op.expand_dims(place, 0))
        return self(op.cos(angle)), self(op.sin(angle)), self(op.greater_equal(rows, columns))

    def rotate(self, x: relax.Expr, cos: relax.Expr, sin: relax.Expr) -> relax.Var:
        """Rotary embedding of (batch, sequence, heads, head size)."""
        halves = self(op.split(x, 2, axis=-1))
        a, b = self(relax.TupleGetItem(halves, 0)), self(relax.TupleGetItem(halves, 1))
        left = op.subtract(self(op.multiply(a, cos)), self(op.multiply(b, sin)))
        right = op.add(self(op.multiply(b, cos)), self(op.multiply(a, sin)))
        return self(op.concat([self(left), self(right)], axis=-1))

    def attention(
        self,
        x: relax.Expr,
        own: dict[str, relax.Var],
        cos: relax.Expr,
        sin: relax.Expr,
        visible: relax.Expr,
    ) -> relax.Var:
        """Grouped-query attention with a causal mask."""
        c = self.config
        rows = (c.batch, c.sequence)
        kv, group, size = c.kv_heads, c.heads // c.kv_heads, c.head_size
        q = self(op.reshape(self(op.matmul(x, own["wq"])), (*rows, c.heads, size)))
        k = self(op.reshape(self(op.matmul(x, own["wk"])), (*rows, kv, size)))
        v = self(op.reshape(self(op.matmul(x, own["wv"])), (*rows, kv, size)))
        q = self(op.reshape(self.rotate(q, cos, sin), (*rows, kv, group, size)))
        scores = self.sum_of("bskgd,btkd->bkgst", q, self.rotate(k, cos, sin))
        scores = self(op.multiply(scores, self.number(size**-0.5)))
        scores = self(op.where(visible, scores, self.number(MASKED)))
        shares = self(op.nn.softmax(scores, axis=-1))
        out = self.sum_of("bkgst,btkd->bskgd", shares, v)
        return self(op.matmul(self(op.reshape(out, (*rows, c.hidden))), own["wo"]))

    def feed_forward(self, x: relax.Expr, own: dict[str, relax.Var]) -> relax.Var:
        """SwiGLU."""
        active = self.silu(self(op.matmul(x, own["gate"])))
        h = self(op.multiply(active, self(op.matmul(x, own["up"]))))
        return self(op.matmul(h, own["down"]))


class MixtureOfExperts(Emitter):
    """One block of experts; each token goes to the best of them, as long as they have room."""

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes."""
        c = self.config
        return {
            "norm": (c.hidden,),
            "router": (c.hidden, c.experts),
            "gate": (c.experts, c.hidden, c.feed_forward),
            "up": (c.experts, c.hidden, c.feed_forward),
            "down": (c.experts, c.feed_forward, c.hidden),
        }

    def inputs(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Names, shapes and dtypes."""
        c = self.config
        return {"x": ((c.batch, c.sequence, c.hidden), c.dtype)}

    def body(self, inputs: dict[str, relax.Var], weights: dict[str, relax.Var]) -> relax.Var:
        """The block's output, with its input added."""
        c, x = self.config, inputs["x"]
        h = self.rms_norm(x, weights["norm"])
        chances = self(op.nn.softmax(self.sum_of("bsd,de->bse", h, weights["router"]), axis=-1))
        best = self(op.topk(chances, c.chosen, axis=-1, ret_type="both", dtype="int32"))
        share, index = self(relax.TupleGetItem(best, 0)), self(relax.TupleGetItem(best, 1))
        share = self(op.divide(share, self(op.sum(share, axis=[-1], keepdims=True))))
        chosen = self.one_hot(self(op.expand_dims(index, -1)), c.experts, "int32")
        # The place of a token in its expert's queue: how many came before it.
        flat = self(op.reshape(chosen, (c.batch, c.sequence * c.chosen, c.experts)))
        before = self(op.subtract(self(op.cumsum(flat, axis=1)), self.number(1.0)))
        place = self(op.multiply(before, flat))
        place = self(op.reshape(place, (c.batch, c.sequence, c.chosen, c.experts, 1)))
        slot = self.one_hot(place, c.capacity, c.dtype)
        slot = self(op.multiply(slot, self(op.expand_dims(chosen, -1))))
        dispatch = self(op.sum(slot, axis=[2]))
        combine = self.sum_of("bskec,bsk->bsec", slot, share)
        taken = self.sum_of("bsec,bsd->ebcd", dispatch, h)
        active = self.silu(self.sum_of("ebcd,edf->ebcf", taken, weights["gate"]))
        inner = self(op.multiply(active, self.sum_of("ebcd,edf->ebcf", taken, weights["up"])))
        done = self.sum_of("ebcf,efd->ebcd", inner, weights["down"])
        return self(op.add(x, self.sum_of("bsec,ebcd->bsd", combine, done)))

    def one_hot(self, index: relax.Expr, depth: int, dtype: str) -> relax.Var:
        """1 where the last dimension is the index, else 0."""
        return self(
            op.astype(self(op.equal(index, self(op.arange(0, depth, 1, dtype)))), self.config.dtype)
        )


def build(model: type[Llama] | type[MixtureOfExperts], config: ModelConfig) -> tvm.IRModule:
    """A module with the model as ``main``: its inputs, then its weights."""
    builder = relax.BlockBuilder()
    emitter = model(builder, config)
    inputs = {
        name: relax.Var(name, relax.TensorType(shape, dtype))
        for name, (shape, dtype) in emitter.inputs().items()
    }
    weights = {
        name: relax.Var(name, relax.TensorType(shape, config.dtype))
        for name, shape in emitter.weights().items()
    }
    params = [*inputs.values(), *weights.values()]
    with builder.function("main", params, {"num_input": len(inputs)}):
        with builder.dataflow():
            result = builder.emit_output(emitter.body(inputs, weights))
        builder.emit_func_output(result)
    return builder.get()
