"""A small Llama with caches of keys and values, as one module with two functions.

``prefill`` takes a prompt of any length and gives the caches; ``decode`` takes one token and the
caches, and gives longer ones. Both use the same weights, and give the next token. A cache is a
tensor (positions, batch, kv_heads, head_size), so its type says how it is sharded, and a session
passes its shards from call to call without moving them. Positions come first, so that what is
appended lies behind all that is there: on CPUs it is written there, and nothing is copied.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op

from distir_ext.demo.llama import (
    MASKED,
    PLAN,
    Embedding,
    FeedForward,
    LlamaConfig,
    Positions,
    rotate,
)

CONFIG = LlamaConfig(layers=2, hidden=64, heads=8, kv_heads=4, feed_forward=176, vocabulary=256)
"""Sizes for a test; ``sequence`` is not used, as prompts may have any length."""

SHARDING = {**PLAN, r"positions": None}
"""Batch over dp, heads over tp; that of the caches follows from the projections."""

Cache = tuple[nn.Tensor, nn.Tensor]


def tables(config: LlamaConfig, at: nn.Tensor) -> Positions:
    """Returns the rotary tables and the mask of attention for float32 positions (sequence,)."""
    half = config.head_size // 2
    frequency = op.exp(op.arange(0, half, dtype="float32") * (-np.log(config.rope_base) / half))
    angle = op.unsqueeze(op.unsqueeze(op.unsqueeze(at, 1) * frequency, 1), 1)
    visible = op.less_equal(op.unsqueeze(at, 0), op.unsqueeze(at, 1))
    one_if_visible = op.wrap_nested(relax.op.astype(visible._expr, "float32"), "visible")
    return Positions(
        cos=op.wrap_nested(relax.op.cos(angle._expr), "cos"),
        sin=op.wrap_nested(relax.op.sin(angle._expr), "sin"),
        mask=(one_if_visible - 1.0) * -MASKED,
    )


class Attention(nn.Module):
    """Grouped-query attention over cached and new positions.

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

    def forward(self, x: nn.Tensor, at: Positions, cache: Cache | None) -> tuple[nn.Tensor, Cache]:
        """Maps (batch, sequence, hidden) to the same shape, and gives the longer cache."""
        c = self.config
        batch, sequence, _ = x.shape
        rows = (batch, sequence, c.kv_heads)
        q = rotate(op.reshape(self.q_proj(x), (*rows, c.group, c.head_size)), at)
        k = rotate(op.reshape(self.k_proj(x), (*rows, 1, c.head_size)), at)
        k = op.permute_dims(op.reshape(k, (*rows, c.head_size)), [1, 0, 2, 3])
        v = op.permute_dims(op.reshape(self.v_proj(x), (*rows, c.head_size)), [1, 0, 2, 3])
        if cache is not None:
            k, v = op.concat([cache[0], k], dim=0), op.concat([cache[1], v], dim=0)
        held = (k, v)
        length = k.shape[0]

        q = op.permute_dims(q, [0, 2, 3, 1, 4])  # (batch, kv_heads, group, sequence, head_size)
        k = op.unsqueeze(op.permute_dims(k, [1, 2, 3, 0]), 2)  # (batch, kv_heads, 1, size, length)
        v = op.unsqueeze(op.permute_dims(v, [1, 2, 0, 3]), 2)
        heads = (batch, c.kv_heads, c.group)
        k = op.broadcast_to(k, (*heads, c.head_size, length))
        v = op.broadcast_to(v, (*heads, length, c.head_size))
        scores = op.matmul(q, k) * (c.head_size**-0.5)
        if cache is None:
            scores = scores + at.mask  # what is cached precedes all that comes
        out = op.matmul(op.softmax(scores, axis=-1), v)
        out = op.permute_dims(out, [0, 3, 1, 2, 4])
        return self.o_proj(op.reshape(out, (batch, sequence, c.hidden))), held


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each after a norm and with a residual connection."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(config.hidden, -1, config.epsilon, bias=False)
        self.attn = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.hidden, -1, config.epsilon, bias=False)
        self.mlp = FeedForward(config)

    def forward(self, x: nn.Tensor, at: Positions, cache: Cache | None) -> tuple[nn.Tensor, Cache]:
        """Maps (batch, sequence, hidden) to the same shape, and gives the longer cache."""
        attended, held = self.attn(self.attn_norm(x), at, cache)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x)), held


class CachedLlama(nn.Module):
    """Decoder from token ids to the next token, which has the highest logit."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embedding(config.vocabulary, config.hidden)
        self.layers = nn.ModuleList([DecoderLayer(config) for _ in range(config.layers)])
        self.norm = nn.RMSNorm(config.hidden, -1, config.epsilon, bias=False)
        self.lm_head = nn.Linear(config.hidden, config.vocabulary, bias=False)

    def prefill(
        self, ids: nn.Tensor, positions: nn.Tensor
    ) -> tuple[nn.Tensor, tuple[nn.Tensor, ...]]:
        """The token after a prompt.

        Args:
            ids: int64 (batch, sequence).
            positions: float32 (sequence,): 0, 1, ...

        Returns:
            int64 (batch, 1), and keys and values of each layer.
        """
        return self._next(ids, positions, None)

    def decode(
        self, ids: nn.Tensor, positions: nn.Tensor, caches: tuple[nn.Tensor, ...]
    ) -> tuple[nn.Tensor, tuple[nn.Tensor, ...]]:
        """The token after one token; ``positions`` is (1,): how many are cached."""
        return self._next(ids, positions, caches)

    def _next(
        self, ids: nn.Tensor, positions: nn.Tensor, caches: tuple[nn.Tensor, ...] | None
    ) -> tuple[nn.Tensor, tuple[nn.Tensor, ...]]:
        at = tables(self.config, positions)
        x = self.embed(ids)
        held: list[nn.Tensor] = []
        for index, layer in enumerate(self.layers):
            cache = None if caches is None else (caches[2 * index], caches[2 * index + 1])
            x, longer = layer(x, at, cache)
            held.extend(longer)
        end = x.shape[1]
        last = relax.op.strided_slice(x._expr, axes=[1], begin=[end - 1], end=[end])
        logits = self.lm_head(self.norm(op.wrap_nested(last, "last")))
        token = relax.op.argmax(relax.op.squeeze(logits._expr, 1), axis=-1, keepdims=True)
        return op.wrap_nested(token, "token"), tuple(held)


def export(config: LlamaConfig, batch: int) -> tuple[tvm.IRModule, dict[str, tuple[int, ...]]]:
    """The functions ``prefill`` and ``decode``, and the shapes of the weights by name."""
    cache = nn.spec.Tensor(["cached", batch, config.kv_heads, config.head_size], "float32")
    spec = {
        "prefill": {
            "ids": nn.spec.Tensor([batch, "sequence"], "int64"),
            "positions": nn.spec.Tensor(["sequence"], "float32"),
        },
        "decode": {
            "ids": nn.spec.Tensor([batch, 1], "int64"),
            "positions": nn.spec.Tensor([1], "float32"),
            "caches": [cache] * (2 * config.layers),
        },
    }
    mod, parameters = CachedLlama(config).export_tvm(spec)
    return mod, {name: tuple(int(d) for d in param.shape) for name, param in parameters}
