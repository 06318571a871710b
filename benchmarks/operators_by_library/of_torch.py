"""Rows of the benchmark of operators in torch, which this project imports too."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

Tensor = torch.Tensor


def bottleneck(x: Tensor, *weights: Tensor) -> Tensor:
    """Three convolutions with offsets, and what is skipped."""
    w1, b1, w2, b2, w3, b3 = weights
    h = torch.relu(functional.conv2d(x, w1) + b1)
    h = torch.relu(functional.conv2d(h, w2, padding=1) + b2)
    return torch.relu(functional.conv2d(h, w3) + b3 + x)


def convnext(
    x: Tensor, w: Tensor, scale: Tensor, shift: Tensor, up: Tensor, down: Tensor
) -> Tensor:
    """A block of ConvNeXt."""
    h = functional.conv2d(x, w, padding=3, groups=w.shape[0]).permute(0, 2, 3, 1)
    h = functional.layer_norm(h, scale.shape, scale, shift)
    h = functional.linear(functional.gelu(functional.linear(h, up)), down)
    return x + h.permute(0, 3, 1, 2)


def unet(x: Tensor, scale: Tensor, shift: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Half a block of a UNet."""
    h = functional.silu(functional.group_norm(x, 32, scale, shift))
    return x + functional.conv2d(h, w, padding=1) + b


def last_channels(x: Tensor, w: Tensor) -> Tensor:
    """A depthwise convolution of images whose channels are last."""
    h = functional.conv2d(x.permute(0, 3, 1, 2), w, padding=1, groups=w.shape[0])
    return h.permute(0, 2, 3, 1)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """All queries see all keys."""
    return functional.scaled_dot_product_attention(q, k, v)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries see earlier keys."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def vit(x: Tensor, qkv: Tensor, out: Tensor, up: Tensor, down: Tensor, *norms: Tensor) -> Tensor:
    """A block of a vision transformer with six heads."""
    n = functional.layer_norm(x, norms[0].shape, norms[0], norms[1])
    batch, length, width = x.shape
    parts = (
        functional.linear(n, qkv).reshape(batch, length, 3, 6, width // 6).permute(2, 0, 3, 1, 4)
    )
    mixed = attention(parts[0], parts[1], parts[2]).permute(0, 2, 1, 3).reshape(x.shape)
    x = x + functional.linear(mixed, out)
    n = functional.layer_norm(x, norms[2].shape, norms[2], norms[3])
    return x + functional.linear(functional.gelu(functional.linear(n, up)), down)


def experts(x: Tensor, router: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """All experts compute all tokens; the two best of each count."""
    scores = torch.softmax(functional.linear(x, router), -1)
    best = torch.topk(scores, 2, dim=-1).values[..., 1:]
    weights = torch.where(scores >= best, scores, 0.0)
    h = functional.silu(torch.einsum("btd,efd->betf", x, up))
    return torch.einsum("betf,edf,bte->btd", h, down, weights)


def scan(x: Tensor, decay: Tensor, skip: Tensor) -> Tensor:
    """A recurrence of 64 steps."""
    keep, state, states = torch.sigmoid(decay), torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = keep * state + x[:, t]
        states.append(state)
    return torch.stack(states, 1) + skip * x


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "stem": lambda x, w, b: torch.relu(functional.conv2d(x, w, stride=2, padding=3) + b),
    "conv3x3": lambda x, w: functional.conv2d(x, w, padding=1),
    "conv3x3 of stride 2": lambda x, w: functional.conv2d(x, w, stride=2, padding=1),
    "conv1x1": functional.conv2d,
    "bottleneck": bottleneck,
    "max_pool3x3 of stride 2": lambda x: functional.max_pool2d(x, 3, 2, 1),
    "mean of images": lambda x: x.mean((2, 3)),
    "depthwise7x7": lambda x, w: functional.conv2d(x, w, padding=3, groups=w.shape[0]),
    "depthwise3x3 of last channels": last_channels,
    "convnext": convnext,
    "conv3x3 of 32 groups": lambda x, w: functional.conv2d(x, w, padding=1, groups=32),
    "conv_transpose4x4 of stride 2": lambda x, w: functional.conv_transpose2d(
        x, w, stride=2, padding=1
    ),
    "unet": unet,
    "upsample2x": lambda x: functional.interpolate(x, scale_factor=2.0, mode="nearest"),
    "conv1d of Whisper": lambda x, w, b: functional.gelu(functional.conv1d(x, w, padding=1) + b),
    "conv1d of stride 2": lambda x, w: functional.conv1d(x, w, stride=2, padding=1),
    "conv3d": lambda x, w: functional.conv3d(x, w, padding=1),
    "matmul 512": torch.matmul,
    "matmul": torch.matmul,
    "matmul8": torch._int_mm,
    "linear_gelu": lambda x, w, b: functional.gelu(functional.linear(x, w, b)),
    "gelu": functional.gelu,
    "silu_product": lambda x, y: functional.silu(x) * y,
    "tanh": torch.tanh,
    "softmax": lambda x: torch.softmax(x, -1),
    "layer_norm": lambda x, w, b: functional.layer_norm(x, w.shape, w, b),
    "rms_norm": lambda x, w: functional.rms_norm(x, w.shape, w, 1e-5),
    "argmax": lambda x: torch.argmax(x, -1),
    "cumsum": lambda x: torch.cumsum(x, -1),
    "sort": lambda x: torch.sort(x, -1).values,
    "embedding": lambda x, w: functional.embedding(x, w),
    "attention": attention,
    "attention of causal masks": causal_attention,
    "vit": vit,
    "experts": experts,
    "scan": scan,
}
