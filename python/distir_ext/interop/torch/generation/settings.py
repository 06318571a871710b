"""Sizes of a generating model: longest sequence, batch, tokens per prefill, encoder inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CHUNK = 64
"""Tokens of a prompt that one call of the prefill takes, unless stated."""


@dataclass(frozen=True)
class Generation:
    """Asks :func:`partition` for programs that generate tokens, and says how large they are.

    Prompts may have any length, and batches any size: prompts are taken in chunks, and batches in
    groups of ``batch`` rows.

    Example:
        >>> Generation(max_length=100, batch=2, chunk=16).slots
        128
    """

    max_length: int
    """Most tokens of a sequence, of the prompt and generated, that caches hold."""

    batch: int | None = None
    """Sequences that a step computes at a time; by default those of the example inputs, or 1."""

    chunk: int | None = None
    """Tokens of a prompt that a call of the prefill takes; by default 64, or ``max_length``."""

    encoder_length: int | None = None
    """Most tokens that the encoder of an encoder-decoder takes; by default those of the example
    inputs, or ``max_length``."""

    def __post_init__(self) -> None:
        """Raises TypeError or ValueError for sizes that are no positive integers."""
        for name in ("max_length", "batch", "chunk", "encoder_length"):
            value = getattr(self, name)
            if value is None and name != "max_length":
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"Generation({name}={value!r}): it is a number of type int")
            if value < 1:
                raise ValueError(f"Generation({name}={value}): it is at least 1")

    @property
    def chunk_length(self) -> int:
        """Tokens that one call of the prefill takes."""
        return min(self.chunk or CHUNK, self.max_length)

    @property
    def slots(self) -> int:
        """Positions that a cache has room for, since prompts are padded to whole chunks."""
        chunk = self.chunk_length
        return -(-(self.max_length + chunk - 1) // chunk) * chunk

    def window_slots(self, window: int) -> int:
        """Positions that a cache of a sliding window has room for.

        Args:
            window: Positions that a token sees, its own included.
        """
        chunk = self.chunk_length
        return min(self.slots, -(-(window - 1 + chunk) // chunk) * chunk)


def as_generation(value: Any) -> Generation:
    """Returns what is given as ``generation=``.

    Raises:
        TypeError: It is no :class:`Generation`.
    """
    if not isinstance(value, Generation):
        raise TypeError(
            f"generation= is a {type(value).__name__}; it is dx.interop.torch.Generation("
            "max_length=...)"
        )
    return value
