"""A small convolutional network of torch, through ``dx.interop.torch``."""

from __future__ import annotations

import torch
from torch import nn

import distir_ext as dx
from distir_ext.annotate import Plan
from models.case import BATCH, Model, imported

SEED = 23


class Block(nn.Module):
    """Residual block: a convolution to more channels and one back."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.expand = nn.Conv2d(channels, 2 * channels, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(4, 2 * channels)
        self.reduce = nn.Conv2d(2 * channels, channels, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, channels, height, width) to the same shape."""
        return x + self.reduce(torch.relu(self.norm(self.expand(x))))


class Network(nn.Module):
    """Convolution, pooling, two blocks, mean over the image, classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.blocks = nn.ModuleList([Block(16), Block(16)])
        self.head = nn.Linear(16, 12)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Maps (batch, 3, height, width) to (batch, 12)."""
        x = self.pool(torch.relu(self.stem(image)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


# The second convolution of a block reduces over the channels that the first one divides.
TENSOR: Plan = {
    r"p_blocks_.*_expand_weight": ("tp", None, None, None),
    r"p_blocks_.*_norm_(weight|bias)": ("tp",),
    r"p_blocks_.*_reduce_weight": (None, "tp", None, None),
    r"p_head_weight": ("tp", None),
    r"p_head_bias": ("tp",),
}
SHARDED: Plan = {
    r"p_blocks_.*_norm_.*|.*_bias": ("fsdp",),
    r"p_head_weight": ("fsdp", None),
    r"p_.*_weight": ("fsdp", None, None, None),
}


def vision(batch: int = BATCH) -> Model:
    """Convolutions, group norms, pooling."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(SEED)
        network = Network().eval()
        for param in network.parameters():
            param.add_(0.1 * torch.randn(param.shape))
        image = torch.randn((batch, 3, 16, 16))
        expected = network(image).numpy()
    module, params = dx.interop.torch.import_model(network, image)
    return imported("vision", module, params, {"image": image.numpy()}, expected, TENSOR, SHARDED)
