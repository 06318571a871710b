"""The models of ``transformers.py`` in JAX, compiled on virtual CPU devices.

    python benchmarks/models/jax_transformers.py PLAN

prints one line of JSON: a list of [kind, devices, bytes sent] of the collectives that XLA makes.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from xla_collectives import collectives

from models.plans import PLANS, Plan
from models.transformers import MASKED, Llama, MixtureOfExperts, ModelConfig


def rms_norm(x, weight, c):
    """Divides x by its root mean square and multiplies it by the weight."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + c.epsilon) * weight


def rotate(x, angle):
    """Rotary embedding."""
    a, b = jnp.split(x, 2, -1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def llama(c, inputs, weights):
    """Logits."""
    x = jnp.take(weights["embed"], inputs["tokens"], axis=0, mode="clip")
    place = jnp.arange(c.sequence, dtype=c.dtype)
    half = c.head_size // 2
    rate = jnp.exp(jnp.arange(half, dtype=c.dtype) * (-math.log(c.rope_base) / half))
    angle = place[:, None, None] * rate
    visible = place[:, None] >= place[None, :]
    for layer in range(c.layers):
        own = lambda name, layer=layer: weights[f"layers.{layer}.{name}"]  # noqa: E731
        h = rms_norm(x, own("attn_norm"), c)
        rows = x.shape[:2]
        q = rotate((h @ own("wq")).reshape(*rows, c.heads, c.head_size), angle)
        k = rotate((h @ own("wk")).reshape(*rows, c.kv_heads, c.head_size), angle)
        v = (h @ own("wv")).reshape(*rows, c.kv_heads, c.head_size)
        q = q.reshape(*rows, c.kv_heads, c.heads // c.kv_heads, c.head_size)
        scores = jnp.einsum("bskgd,btkd->bkgst", q, k) * c.head_size**-0.5
        shares = jax.nn.softmax(jnp.where(visible, scores, MASKED), -1)
        out = jnp.einsum("bkgst,btkd->bskgd", shares, v).reshape(*rows, c.hidden)
        x = x + out @ own("wo")
        h = rms_norm(x, own("mlp_norm"), c)
        x = x + (jax.nn.silu(h @ own("gate")) * (h @ own("up"))) @ own("down")
    return rms_norm(x, weights["final_norm"], c) @ weights["lm_head"]


def mixture_of_experts(c, inputs, weights):
    """The block's output, with its input added."""
    x = inputs["x"]
    h = rms_norm(x, weights["norm"], c)
    chances = jax.nn.softmax(jnp.einsum("bsd,de->bse", h, weights["router"]), -1)
    share, index = jax.lax.top_k(chances, c.chosen)
    share = share / share.sum(-1, keepdims=True)
    chosen = (index[..., None] == jnp.arange(c.experts)).astype(c.dtype)
    flat = chosen.reshape(c.batch, c.sequence * c.chosen, c.experts)
    place = ((jnp.cumsum(flat, 1) - 1) * flat).reshape(chosen.shape)
    slot = (place[..., None] == jnp.arange(c.capacity, dtype=c.dtype)) * chosen[..., None]
    combine = jnp.einsum("bskec,bsk->bsec", slot, share)
    taken = jnp.einsum("bsec,bsd->ebcd", slot.sum(2), h)
    inner = jax.nn.silu(jnp.einsum("ebcd,edf->ebcf", taken, weights["gate"]))
    inner = inner * jnp.einsum("ebcd,edf->ebcf", taken, weights["up"])
    done = jnp.einsum("ebcf,efd->ebcd", inner, weights["down"])
    return x + jnp.einsum("bsec,ebcd->bsd", combine, done)


FORWARD = {Llama: llama, MixtureOfExperts: mixture_of_experts}


def compiled(plan: Plan, config: ModelConfig) -> str:
    """The optimised HLO of a plan."""
    mesh = jax.make_mesh(
        tuple(plan.mesh.values()), tuple(plan.mesh), axis_types=(AxisType.Auto,) * len(plan.mesh)
    )
    model = plan.model(None, config)

    def struct(name, shape, dtype):
        spec = PartitionSpec(*plan.dims(name, shape))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    inputs = {name: struct(name, *about) for name, about in model.inputs().items()}
    weights = {name: struct(name, shape, config.dtype) for name, shape in model.weights().items()}
    forward = jax.jit(lambda inputs, weights: FORWARD[plan.model](config, inputs, weights))
    return forward.lower(inputs, weights).compile().as_text()


if __name__ == "__main__":
    text = compiled(PLANS[sys.argv[1]], ModelConfig())
    print(json.dumps([[one.kind, one.devices, one.sent] for one in collectives(text)]))
