"""Sharding plans for the models of ``transformers.py``: only weights and inputs are stated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from models.transformers import Llama, MixtureOfExperts

Dims = tuple[str | tuple[str, ...] | None, ...]

_COLUMNS = ("wq", "wk", "wv", "gate", "up", "lm_head")
_ROWS = ("wo", "down", "embed")


@dataclass(frozen=True)
class Plan:
    """Shardings of a model's inputs and weights."""

    model: type[Llama] | type[MixtureOfExperts]
    mesh: Mapping[str, int]
    """Size of each mesh axis."""

    inputs: Dims
    weights: Callable[[str, tuple[int, ...]], Dims]

    def dims(self, name: str, shape: tuple[int, ...]) -> Dims:
        """One entry per dimension of an input or a weight."""
        if name in ("tokens", "x"):
            return self.inputs
        return self.weights(name.rsplit(".", 1)[-1], shape)


def megatron(name: str, shape: tuple[int, ...]) -> Dims:
    """Shards columns of expanding weights, rows of contracting ones (arXiv:1909.08053)."""
    if name in _COLUMNS:
        return (None, "tp")
    return ("tp", None) if name in _ROWS else (None,) * len(shape)


def largest(name: str, shape: tuple[int, ...]) -> Dims:
    """The largest dimension of every weight (ZeRO stage 3, arXiv:1910.02054)."""
    del name
    dim = max(range(len(shape)), key=lambda d: (shape[d], -d))
    return tuple("fsdp" if d == dim else None for d in range(len(shape)))


def by_expert(name: str, shape: tuple[int, ...]) -> Dims:
    """Whole experts."""
    del name
    return ("ep", None, None) if len(shape) == 3 else (None,) * len(shape)


PLANS = {
    "tp8": Plan(Llama, {"tp": 8}, (None, None), megatron),
    "dp2_tp4": Plan(Llama, {"dp": 2, "tp": 4}, ("dp", None), megatron),
    "fsdp8": Plan(Llama, {"fsdp": 8}, ("fsdp", None), largest),
    "dp2_tp2_sp2": Plan(Llama, {"dp": 2, "tp": 2, "sp": 2}, ("dp", "sp"), megatron),
    "moe_ep": Plan(MixtureOfExperts, {"dp": 2, "ep": 4}, ("dp", None, None), by_expert),
    "moe_ep_a2a": Plan(MixtureOfExperts, {"dp": 2, "ep": 4}, (("dp", "ep"), None, None), by_expert),
}
