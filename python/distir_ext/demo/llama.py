"""A small Llama-like decoder, sharded over a 2x4 mesh by one plan.

RMSNorm, rotary embedding, grouped-query attention with a causal mask, SwiGLU. Sizes are such that
TVM's default CPU schedules run it in a fraction of a second; the structure is that of the large
models (Llama 2, arXiv:2307.09288; rotary embedding, arXiv:2104.09864; grouped-query attention,
arXiv:2305.13245; SwiGLU, arXiv:2002.05202; column and row sharding, arXiv:1909.08053).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op

from distir_ext.annotate.patterns import Entries, annotate
from distir_ext.demo.case import Case, normal_weights
from distir_ext.mesh.mesh import Mesh

SEED = 11

# A masked score: its exponential is zero in float32, whatever the other scores are.
MASKED = -1e9


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of the model and of the batch it is compiled for."""

    layers: int = 4
    hidden: int = 128
    heads: int = 8
    kv_heads: int = 4
    feed_forward: int = 352
    vocabulary: int = 512
    batch: int = 4
    sequence: int = 16
    rope_base: float = 10000.0
    epsilon: float = 1e-5

    @property
    def head_size(self) -> int:
        """Size of one head."""
        return self.hidden // self.heads

    @property
    def group(self) -> int:
        """Number of query heads that share a key and value head."""
        return self.heads // self.kv_heads


TINY = LlamaConfig()

PLAN: Entries = {
    "ids": ("dp", None),
    # nn.Linear keeps its weight as (out, in): dimension 0 is the columns of the product.
    r".*\.(q|k|v|gate|up)_proj\.weight": ("tp", None),
    r".*\.(o|down)_proj\.weight": (None, "tp"),
    r"lm_head\.weight": ("tp", None),
    r"embed\.weight|.*norm\.weight": None,
}


@dataclass(frozen=True)
class Positions:
    """Rotary tables and mask of attention, computed once for all layers."""

    cos: nn.Tensor
    """Cosine of position times frequency: (sequence, 1, 1, head_size / 2)."""

    sin: nn.Tensor
    """Sine of the same."""

    mask: nn.Tensor
    """Added to the scores: (sequence, sequence), zero where the key is not later."""


def positions(config: LlamaConfig) -> Positions:
    """Emits the tables as operators, so that the module has no constants but numbers."""
    half = config.head_size // 2
    position = op.arange(0, config.sequence, dtype="float32")
    frequency = op.exp(op.arange(0, half, dtype="float32") * (-np.log(config.rope_base) / half))
    angle = op.unsqueeze(position, 1) * frequency
    angle = op.reshape(angle, (config.sequence, 1, 1, half))

    visible = op.less_equal(op.unsqueeze(position, 0), op.unsqueeze(position, 1))
    shape = (config.sequence, config.sequence)
    mask = op.where(
        visible, op.zeros(shape), op.full(shape, nn.Tensor.from_scalar(MASKED, "float32"))
    )
    return Positions(
        cos=op.wrap_nested(relax.op.cos(angle._expr), "cos"),
        sin=op.wrap_nested(relax.op.sin(angle._expr), "sin"),
        mask=mask,
    )


def rotate(x: nn.Tensor, at: Positions) -> nn.Tensor:
    """Turns the halves of the last dimension of (batch, sequence, ..., ..., head_size)."""
    left, right = op.split(x, 2, axis=-1)
    return op.concat([left * at.cos - right * at.sin, right * at.cos + left * at.sin], dim=-1)


class Attention(nn.Module):
    """Grouped-query attention with rotary embedding and a causal mask.

    The heads are two dimensions, (kv_heads, group), so that a mesh axis that divides the key and
    value heads shards queries, keys and values alike.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        kv_size = config.kv_heads * config.head_size
        self.q_proj = nn.Linear(config.hidden, config.hidden, bias=False)
        self.k_proj = nn.Linear(config.hidden, kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden, kv_size, bias=False)
        self.o_proj = nn.Linear(config.hidden, config.hidden, bias=False)

    def forward(self, x: nn.Tensor, at: Positions) -> nn.Tensor:
        """Maps (batch, sequence, hidden) to the same shape."""
        c = self.config
        rows = (c.batch, c.sequence, c.kv_heads)
        q = rotate(op.reshape(self.q_proj(x), (*rows, c.group, c.head_size)), at)
        k = rotate(op.reshape(self.k_proj(x), (*rows, 1, c.head_size)), at)
        v = op.reshape(self.v_proj(x), (*rows, 1, c.head_size))

        q = op.permute_dims(q, [0, 2, 3, 1, 4])  # (batch, kv_heads, group, sequence, head_size)
        k = op.permute_dims(k, [0, 2, 3, 4, 1])  # (batch, kv_heads, 1, head_size, sequence)
        v = op.permute_dims(v, [0, 2, 3, 1, 4])
        heads = (c.batch, c.kv_heads, c.group)
        k = op.broadcast_to(k, (*heads, c.head_size, c.sequence))
        v = op.broadcast_to(v, (*heads, c.sequence, c.head_size))

        scores = op.matmul(q, k) * (c.head_size**-0.5) + at.mask
        out = op.matmul(op.softmax(scores, axis=-1), v)
        out = op.permute_dims(out, [0, 3, 1, 2, 4])
        return self.o_proj(op.reshape(out, (c.batch, c.sequence, c.hidden)))


class FeedForward(nn.Module):
    """SwiGLU: the product of a gate and a projection, projected back."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.feed_forward, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.feed_forward, bias=False)
        self.down_proj = nn.Linear(config.feed_forward, config.hidden, bias=False)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Maps (batch, sequence, hidden) to the same shape."""
        return self.down_proj(op.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each after a norm and with a residual connection."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(config.hidden, -1, config.epsilon, bias=False)
        self.attn = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.hidden, -1, config.epsilon, bias=False)
        self.mlp = FeedForward(config)

    def forward(self, x: nn.Tensor, at: Positions) -> nn.Tensor:
        """Maps (batch, sequence, hidden) to the same shape."""
        x = x + self.attn(self.attn_norm(x), at)
        return x + self.mlp(self.mlp_norm(x))


class Embedding(nn.Module):
    """A row of the weight per id; nn.Embedding reads outside of it when an id is out of range."""

    def __init__(self, rows: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter((rows, size))

    def forward(self, ids: nn.Tensor) -> nn.Tensor:
        """Maps (batch, sequence) to (batch, sequence, size)."""
        rows = relax.op.take(self.weight._expr, ids._expr, axis=0, mode="clip")
        return op.wrap_nested(rows, "embedded")


class Llama(nn.Module):
    """From token ids to the logits of every position."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embedding(config.vocabulary, config.hidden)
        self.layers = nn.ModuleList([DecoderLayer(config) for _ in range(config.layers)])
        self.norm = nn.RMSNorm(config.hidden, -1, config.epsilon, bias=False)
        self.lm_head = nn.Linear(config.hidden, config.vocabulary, bias=False)

    def forward(self, ids: nn.Tensor) -> nn.Tensor:
        """Maps int32 ids (batch, sequence) to float32 logits (batch, sequence, vocabulary)."""
        at = positions(self.config)
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, at)
        return self.lm_head(self.norm(x))


def export(config: LlamaConfig = TINY) -> tuple[tvm.IRModule, dict[str, tuple[int, ...]]]:
    """The model as a Relax module with the function ``forward``, and the shapes of its weights."""
    model = Llama(config)
    spec = {"forward": {"ids": nn.spec.Tensor([config.batch, config.sequence], "int32")}}
    mod, parameters = model.export_tvm(spec)
    return mod, {name: tuple(int(d) for d in param.shape) for name, param in parameters}


def llama_case(config: LlamaConfig = TINY) -> Case:
    """Batch over dp, weights over tp."""
    mesh = Mesh((2, 4), ("dp", "tp"))
    mod, shapes = export(config)
    generator = np.random.default_rng(SEED)
    weights = normal_weights(shapes, generator)
    size = (config.batch, config.sequence)
    ids = generator.integers(0, config.vocabulary, size=size, dtype=np.int32)
    return Case(
        name="llama",
        title=f"a {config.layers}-layer decoder, batch over dp, weights over tp by one plan",
        module=mod,
        function="forward",
        annotate=lambda module: annotate(module, mesh, PLAN, func="forward"),
        meshes=(mesh,),
        inputs={"ids": ids},
        weights=weights,
    )
