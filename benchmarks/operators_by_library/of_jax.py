"""Runs rows of the benchmark of operators in JAX, one call for each line read.

    python -m operators_by_library.of_jax ROW WORKERS

The result is written to standard output as bytes in float64, then seconds of processor time of one
call for each line that has the number of calls.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn

from operators_by_library.rows import ROWS

Array = Any


def conv(x: Array, w: Array, stride: int = 1, padding: int = 0, groups: int = 1) -> Array:
    """A convolution of images or sequences whose channels are second."""
    rank = x.ndim - 2
    return lax.conv_general_dilated(
        x, w, (stride,) * rank, [(padding, padding)] * rank, feature_group_count=groups
    )


def bottleneck(x: Array, *weights: Array) -> Array:
    """Three convolutions with offsets, and what is skipped."""
    w1, b1, w2, b2, w3, b3 = weights
    h = nn.relu(conv(x, w1) + b1)
    h = nn.relu(conv(h, w2, padding=1) + b2)
    return nn.relu(conv(h, w3) + b3 + x)


def layer_norm(x: Array, scale: Array, shift: Array) -> Array:
    """A norm of the last dimension."""
    centred = x - x.mean(-1, keepdims=True)
    spread = (centred**2).mean(-1, keepdims=True)
    return centred * lax.rsqrt(spread + 1e-5) * scale + shift


def gelu(x: Array) -> Array:
    """The exact one."""
    return nn.gelu(x, approximate=False)


def convnext(x: Array, w: Array, scale: Array, shift: Array, up: Array, down: Array) -> Array:
    """A block of ConvNeXt."""
    h = jnp.transpose(conv(x, w, padding=3, groups=w.shape[0]), (0, 2, 3, 1))
    h = gelu(layer_norm(h, scale, shift) @ up.T) @ down.T
    return x + jnp.transpose(h, (0, 3, 1, 2))


def unet(x: Array, scale: Array, shift: Array, w: Array, b: Array) -> Array:
    """Half a block of a UNet."""
    grouped = x.reshape(x.shape[0], 32, -1)
    normed = layer_norm(grouped, 1.0, 0.0).reshape(x.shape)
    h = nn.silu(normed * scale[:, None, None] + shift[:, None, None])
    return x + conv(h, w, padding=1) + b


def last_channels(x: Array, w: Array) -> Array:
    """A depthwise convolution of images whose channels are last."""
    return lax.conv_general_dilated(
        x,
        jnp.transpose(w, (2, 3, 1, 0)),
        (1, 1),
        [(1, 1), (1, 1)],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=w.shape[0],
    )


def attention(q: Array, k: Array, v: Array, is_causal: bool = False) -> Array:
    """Heads are second."""
    first = [jnp.swapaxes(each, 1, 2) for each in (q, k, v)]
    return jnp.swapaxes(nn.dot_product_attention(*first, is_causal=is_causal), 1, 2)


def vit(x: Array, qkv: Array, out: Array, up: Array, down: Array, *norms: Array) -> Array:
    """A block of a vision transformer with six heads."""
    batch, length, width = x.shape
    n = layer_norm(x, norms[0], norms[1]) @ qkv.T
    parts = jnp.transpose(n.reshape(batch, length, 3, 6, width // 6), (2, 0, 3, 1, 4))
    mixed = jnp.transpose(attention(*parts), (0, 2, 1, 3)).reshape(x.shape)
    x = x + mixed @ out.T
    return x + gelu(layer_norm(x, norms[2], norms[3]) @ up.T) @ down.T


def experts(x: Array, router: Array, up: Array, down: Array) -> Array:
    """All experts compute all tokens; the two best of each count."""
    scores = nn.softmax(x @ router.T, -1)
    best = lax.top_k(scores, 2)[0][..., 1:]
    weights = jnp.where(scores >= best, scores, 0.0)
    h = nn.silu(jnp.einsum("btd,efd->betf", x, up))
    return jnp.einsum("betf,edf,bte->btd", h, down, weights)


def scan(x: Array, decay: Array, skip: Array) -> Array:
    """A recurrence of 64 steps."""
    keep = nn.sigmoid(decay)

    def step(state: Array, each: Array) -> tuple[Array, Array]:
        state = keep * state + each
        return state, state

    _, states = lax.scan(step, jnp.zeros_like(x[:, 0]), jnp.swapaxes(x, 0, 1))
    return jnp.swapaxes(states, 0, 1) + skip * x


def max_pool(x: Array) -> Array:
    """Windows of 3 x 3, each second."""
    padding = ((0, 0), (0, 0), (1, 1), (1, 1))
    return lax.reduce_window(x, -np.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), padding)


def conv_transpose(x: Array, w: Array) -> Array:
    """Windows of 4 x 4, of stride 2."""
    turned = jnp.swapaxes(jnp.flip(w, (2, 3)), 0, 1)
    return lax.conv_general_dilated(x, turned, (1, 1), [(2, 2), (2, 2)], lhs_dilation=(2, 2))


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "stem": lambda x, w, b: nn.relu(conv(x, w, 2, 3) + b),
    "conv3x3": lambda x, w: conv(x, w, padding=1),
    "conv3x3 of stride 2": lambda x, w: conv(x, w, 2, 1),
    "conv1x1": conv,
    "bottleneck": bottleneck,
    "max_pool3x3 of stride 2": max_pool,
    "mean of images": lambda x: x.mean((2, 3)),
    "depthwise7x7": lambda x, w: conv(x, w, padding=3, groups=w.shape[0]),
    "depthwise3x3 of last channels": last_channels,
    "convnext": convnext,
    "conv3x3 of 32 groups": lambda x, w: conv(x, w, padding=1, groups=32),
    "conv_transpose4x4 of stride 2": conv_transpose,
    "unet": unet,
    "upsample2x": lambda x: jnp.repeat(jnp.repeat(x, 2, 2), 2, 3),
    "conv1d of Whisper": lambda x, w, b: gelu(conv(x, w, padding=1) + b),
    "conv1d of stride 2": lambda x, w: conv(x, w, 2, 1),
    "conv3d": lambda x, w: conv(x, w, padding=1),
    "matmul 512": jnp.matmul,
    "matmul": jnp.matmul,
    "matmul8": lambda x, w: jnp.matmul(x, w, preferred_element_type="int32"),
    "linear_gelu": lambda x, w, b: gelu(x @ w.T + b),
    "gelu": gelu,
    "silu_product": lambda x, y: nn.silu(x) * y,
    "tanh": jnp.tanh,
    "softmax": lambda x: nn.softmax(x, -1),
    "layer_norm": layer_norm,
    "rms_norm": lambda x, w: x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w,
    "argmax": lambda x: jnp.argmax(x, -1),
    "cumsum": lambda x: jnp.cumsum(x, -1),
    "sort": lambda x: jnp.sort(x, -1),
    "embedding": lambda x, w: jnp.take(w, x, axis=0, mode="clip"),
    "attention": attention,
    "attention of causal masks": lambda q, k, v: attention(q, k, v, True),
    "vit": vit,
    "experts": experts,
    "scan": scan,
}


def main() -> None:
    """Answers lines until there are no more."""
    (row,) = [each for each in ROWS if each.name == sys.argv[1]]
    workers = int(sys.argv[2])
    jax.config.update("jax_num_cpu_devices", workers)
    mesh = jax.make_mesh((workers,), ("dp",), axis_types=(jax.sharding.AxisType.Auto,))
    values = []
    for at, value in enumerate(row.values()):
        dims = [None] * value.ndim
        if at < row.inputs:
            dims[row.sharded] = "dp"
        spec = jax.sharding.PartitionSpec(*dims)
        values.append(jax.device_put(value, jax.sharding.NamedSharding(mesh, spec)))
    run = jax.jit(FUNCTIONS[row.function]).lower(*values).compile()
    result = np.asarray(run(*values)).astype("float64")
    sys.stdout.buffer.write(result.tobytes())
    sys.stdout.buffer.flush()
    for line in sys.stdin:
        calls = int(line)
        begin = time.process_time()
        for _ in range(calls):
            run(*values).block_until_ready()
        print((time.process_time() - begin) / calls, flush=True)


if __name__ == "__main__":
    main()
