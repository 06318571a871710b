"""A decoder with the shapes of DeepSeek-V3 (arXiv:2412.19437): latent attention, 256 experts.

Tokens reach experts by a one-hot dispatch (GShard), as in ``transformers.py``. Left out are rotary
embeddings and the shared expert.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import relax
from tvm.relax import op

from models.transformers import MixtureOfExperts, ModelConfig


@dataclass(frozen=True)
class Latent:
    """Ranks and head sizes of the attention."""

    query_rank: int = 1536
    key_rank: int = 512
    heads: int = 128
    head: int = 128


CONFIG = ModelConfig(
    layers=61,
    hidden=7168,
    feed_forward=2048,
    vocabulary=129280,
    experts=256,
    chosen=8,
    batch=128,
    sequence=1024,
    dtype="bfloat16",
)


class DeepSeek(MixtureOfExperts):
    """Layers of attention and experts."""

    latent = Latent()

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes."""
        c, a = self.config, self.latent
        width = a.heads * a.head
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in range(c.layers):
            own = {
                "attn_norm": (c.hidden,),
                "q_a": (c.hidden, a.query_rank),
                "q_b": (a.query_rank, width),
                "kv_a": (c.hidden, a.key_rank),
                "k_b": (a.key_rank, width),
                "v_b": (a.key_rank, width),
                "o": (width, c.hidden),
            } | super().weights()
            shapes |= {f"layers.{layer}.{name}": shape for name, shape in own.items()}
        return shapes

    def body(self, inputs: dict[str, relax.Var], weights: dict[str, relax.Var]) -> relax.Var:
        """Hidden states."""
        x = inputs["x"]
        for layer in range(self.config.layers):
            prefix = f"layers.{layer}."
            own = {
                name.removeprefix(prefix): var
                for name, var in weights.items()
                if name.startswith(prefix)
            }
            x = self(op.add(x, self.attention(self.rms_norm(x, own["attn_norm"]), own)))
            x = super().body({"x": x}, own)
        return x

    def attention(self, x: relax.Expr, own: dict[str, relax.Var]) -> relax.Var:
        """Attention on keys and values of low rank."""
        c, a = self.config, self.latent
        heads = (c.batch, c.sequence, a.heads, a.head)
        low = self(op.matmul(x, own["kv_a"]))
        q = self(op.reshape(self(op.matmul(self(op.matmul(x, own["q_a"])), own["q_b"])), heads))
        k = self(op.reshape(self(op.matmul(low, own["k_b"])), heads))
        v = self(op.reshape(self(op.matmul(low, own["v_b"])), heads))
        scores = self.sum_of("bshd,bthd->bhst", q, k)
        scores = self(op.multiply(scores, self.number(a.head**-0.5)))
        mixed = self.sum_of("bhst,bthd->bshd", self(op.nn.softmax(scores, axis=-1)), v)
        flat = self(op.reshape(mixed, (c.batch, c.sequence, a.heads * a.head)))
        return self(op.matmul(flat, own["o"]))


def config(layers: int) -> ModelConfig:
    """The configuration with so many layers."""
    return replace(CONFIG, layers=layers)
