"""Runs decode steps of ``examples/generation/llama.py`` in JAX, one per line read.

    python benchmarks/models/jax_decode.py ROW STEPS

ROW is JSON of ``decode.Row``; the caches have room for so many steps. For each line read
[seconds of processor time, tokens] is printed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from decode import Row, random_task
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def rms_norm(x, weight, epsilon):
    """Divides by the root of the mean square."""
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def rotate(x, cos, sin):
    """Turns the halves of the last dimension."""
    left, right = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def decode(config, weights, token, at, caches):
    """The next token (batch, 1) and the caches, (positions, batch, kv_heads, head_size)."""
    half = config.head_size // 2
    frequency = jnp.exp(jnp.arange(half) * (-np.log(config.rope_base) / half))
    angle = at.astype("float32") * frequency
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    batch = token.shape[0]
    x = weights["embed.weight"][token[:, 0]]
    held = []
    seen = jnp.arange(caches[0].shape[0]) <= at
    for index in range(config.layers):
        own = {
            name.split(".", 2)[2]: value
            for name, value in weights.items()
            if name.startswith(f"layers.{index}.")
        }
        normed = rms_norm(x, own["attn_norm.weight"], config.epsilon)
        q = (normed @ own["attn.q_proj.weight"].T).reshape(
            batch, config.kv_heads, config.group, config.head_size
        )
        rows = (1, batch, config.kv_heads, config.head_size)
        k = rotate((normed @ own["attn.k_proj.weight"].T).reshape(rows), cos, sin)
        v = (normed @ own["attn.v_proj.weight"].T).reshape(rows)
        q = rotate(q, cos, sin)
        keys = lax.dynamic_update_slice(caches[2 * index], k, (at, 0, 0, 0))
        values = lax.dynamic_update_slice(caches[2 * index + 1], v, (at, 0, 0, 0))
        held += [keys, values]
        scores = jnp.einsum("bhgd,lbhd->bhgl", q, keys) * config.head_size**-0.5
        scores = jnp.where(seen, scores, -1e9)
        out = jnp.einsum("bhgl,lbhd->bhgd", jax.nn.softmax(scores), values)
        x = x + out.reshape(batch, config.hidden) @ own["attn.o_proj.weight"].T
        normed = rms_norm(x, own["mlp_norm.weight"], config.epsilon)
        gate = jax.nn.silu(normed @ own["mlp.gate_proj.weight"].T)
        x = x + (gate * (normed @ own["mlp.up_proj.weight"].T)) @ own["mlp.down_proj.weight"].T
    logits = rms_norm(x, weights["norm.weight"], config.epsilon) @ weights["lm_head.weight"].T
    return jnp.argmax(logits, axis=-1, keepdims=True).astype("int32"), held


def spec_of(name):
    """The sharding of a weight, as ``distir_ext.demo.llama.PLAN`` states it."""
    if any(f".{each}_proj." in name for each in ("q", "k", "v", "gate", "up")):
        return PartitionSpec("tp", None)
    if any(f".{each}_proj." in name for each in ("o", "down")):
        return PartitionSpec(None, "tp")
    return PartitionSpec("tp", None) if name == "lm_head.weight" else PartitionSpec()


def main():
    """Answers requests until there are no more."""
    row = Row(**json.loads(sys.argv[1]))
    jax.config.update("jax_num_cpu_devices", row.workers)
    config, room = row.config(), int(sys.argv[2])
    mesh = jax.make_mesh((row.workers,), ("tp",), axis_types=(AxisType.Auto,))

    def put(value, spec):
        return jax.device_put(value, NamedSharding(mesh, spec))

    task = random_task(config, row.batch, 1)
    weights = {name: put(value, spec_of(name)) for name, value in task.weights.items()}
    token = put(task.prompt.astype("int32"), PartitionSpec())
    kept = PartitionSpec(None, None, "tp", None)
    caches = [put(np.pad(each, ((0, room), (0, 0), (0, 0), (0, 0))), kept) for each in row.caches()]
    step = jax.jit(
        lambda weights, token, at, caches: decode(config, weights, token, at, caches),
        donate_argnums=3,
        out_shardings=(None, [NamedSharding(mesh, kept)] * len(caches)),
    )
    at = row.positions
    for _ in sys.stdin:
        begin = time.process_time()
        token, caches = step(weights, token, np.int32(at), caches)
        tokens = np.asarray(token)
        taken = time.process_time() - begin
        at += 1
        print(json.dumps([taken, tokens.ravel().tolist()]), flush=True)


if __name__ == "__main__":
    main()
