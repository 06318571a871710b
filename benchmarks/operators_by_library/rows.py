"""Rows of the benchmark of operators: what is computed, of which shapes, sharded how.

The functions are in ``of_torch`` and ``of_jax``, by the name of the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Row:
    """An operator, or a few."""

    name: str
    """Begins with the name of the function."""
    shapes: tuple[tuple[int, ...], ...]
    """Of the input and the weights."""
    dtype: str = "float32"
    below: int = 0
    """Inputs are integers below it, if it is not 0."""
    sharded: int = 0
    """Dimension of the input that is sharded over the workers."""
    inputs: int = 1
    """How many of the first shapes are inputs, which are sharded alike; the others are weights."""

    @property
    def function(self) -> str:
        """Name of the function."""
        return self.name.split(",")[0]

    def values(self) -> list[np.ndarray[Any, Any]]:
        """Input and weights; a product of them has elements of about 1."""
        generator = np.random.default_rng(5)
        found = []
        for at, shape in enumerate(self.shapes):
            if self.below and at == 0:
                found.append(generator.integers(0, self.below, shape).astype("int32"))
                continue
            if self.dtype == "int8":
                found.append(generator.integers(-100, 100, shape).astype("int8"))
                continue
            value = generator.standard_normal(shape, "float32")
            if at >= self.inputs and len(shape) > 1:
                value /= np.sqrt(np.prod(shape[1:]))
            dtype = ml_dtypes.bfloat16 if self.dtype == "bfloat16" else self.dtype
            found.append(value.astype(dtype))
        return found

    def fits(self, workers: int) -> bool:
        """Returns whether the workers have shards of equal sizes."""
        return self.shapes[0][self.sharded] % workers == 0


def _bottleneck(wide: int, narrow: int) -> tuple[tuple[int, ...], ...]:
    """Weights and offsets of three convolutions."""
    weights = ((narrow, wide, 1, 1), (narrow, narrow, 3, 3), (wide, narrow, 1, 1))
    return tuple(shape for each in weights for shape in (each, (each[0], 1, 1)))


def _transformer_block(width: int) -> tuple[tuple[int, ...], ...]:
    """Weights of queries, keys and values, of the projection, and of two layers; two norms."""
    return ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width)) + (
        (width,),
    ) * 4


ROWS = [
    # Convolutions of ResNet-50, with what surrounds them.
    Row("stem", ((8, 3, 224, 224), (64, 3, 7, 7), (64, 1, 1))),
    Row("stem, batch 1", ((1, 3, 224, 224), (64, 3, 7, 7), (64, 1, 1)), sharded=2),
    Row("conv3x3, 64 channels", ((8, 64, 56, 56), (64, 64, 3, 3))),
    Row("conv3x3, 512 channels", ((8, 512, 7, 7), (512, 512, 3, 3))),
    Row("conv3x3 of stride 2", ((8, 128, 56, 56), (128, 128, 3, 3))),
    Row("conv1x1", ((8, 256, 56, 56), (64, 256, 1, 1))),
    Row("bottleneck", ((8, 256, 28, 28), *_bottleneck(256, 64))),
    Row("max_pool3x3 of stride 2", ((8, 64, 112, 112),)),
    Row("mean of images", ((8, 2048, 7, 7),)),
    # ConvNeXt, UNet, Whisper, video.
    Row("depthwise7x7", ((8, 96, 56, 56), (96, 1, 7, 7))),
    Row("depthwise3x3 of last channels", ((8, 56, 56, 96), (96, 1, 3, 3))),
    Row("convnext", ((8, 96, 28, 28), (96, 1, 7, 7), (96,), (96,), (384, 96), (96, 384))),
    Row("conv3x3 of 32 groups", ((8, 128, 28, 28), (128, 4, 3, 3))),
    Row("conv_transpose4x4 of stride 2", ((8, 64, 28, 28), (64, 32, 4, 4))),
    Row("unet", ((8, 64, 32, 32), (64,), (64,), (64, 64, 3, 3), (64, 1, 1))),
    Row("upsample2x", ((8, 64, 32, 32),)),
    Row("conv1d of Whisper", ((8, 80, 1500), (384, 80, 3), (384, 1))),
    Row("conv1d of stride 2", ((8, 384, 1500), (384, 384, 3))),
    Row("conv3d", ((8, 16, 8, 28, 28), (32, 16, 3, 3, 3))),
    # Products.
    Row("matmul 512", ((512, 512), (512, 512))),
    Row("matmul, odd sizes", ((520, 257), (257, 131))),
    Row("matmul, few rows", ((8, 1024), (1024, 4096))),
    Row("matmul, float16", ((512, 512), (512, 512)), "float16"),
    Row("matmul, bfloat16", ((512, 512), (512, 512)), "bfloat16"),
    Row("matmul8, int8", ((512, 512), (512, 512)), "int8"),
    Row("linear_gelu", ((1024, 512), (2048, 512), (2048,))),
    # Elementwise, and along a dimension.
    Row("gelu", ((1024, 1024),)),
    Row("gelu, float16", ((1024, 1024),), "float16"),
    Row("silu_product", ((1024, 1024), (1024, 1024)), inputs=2),
    Row("tanh", ((1024, 1024),)),
    Row("softmax", ((1024, 1024),)),
    Row("softmax, float16", ((1024, 1024),), "float16"),
    Row("softmax, odd sizes", ((1000, 1003),)),
    Row("layer_norm", ((1024, 1024), (1024,), (1024,))),
    Row("rms_norm", ((1024, 1024), (1024,))),
    Row("argmax", ((1024, 1024),)),
    Row("cumsum", ((1024, 1024),)),
    Row("sort", ((256, 1024),)),
    Row("embedding", ((8, 512), (32000, 256)), below=32000),
    # Blocks.
    Row("attention", ((8, 8, 256, 64), (8, 8, 256, 64), (8, 8, 256, 64)), sharded=1, inputs=3),
    Row(
        "attention of causal masks",
        ((8, 8, 256, 64), (8, 8, 256, 64), (8, 8, 256, 64)),
        sharded=1,
        inputs=3,
    ),
    Row("vit", ((8, 64, 384), *_transformer_block(384))),
    Row("experts", ((8, 64, 256), (8, 256), (8, 512, 256), (8, 256, 512))),
    Row("scan", ((8, 64, 256), (256,), (256,))),
]
