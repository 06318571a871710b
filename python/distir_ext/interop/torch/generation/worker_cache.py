"""Cache object for ``generate`` of transformers, whose arrays stay on the workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import cache_utils


class WorkerCache(cache_utils.Cache):
    """Caches of several groups of sequences, each as many as a step computes at a time.

    Attributes:
        groups: For each group its arrays on the workers, by name.
        held: Positions that are taken, with the padding of prompts.
        seen: Tokens that the model was given.
        valid: int64 (sequences, positions): 0 for padding.
        encoder_mask: int64 (sequences, encoder's positions): 0 for padding; None without encoder.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.groups: list[Mapping[str, Any]] = []
        self.held = 0
        self.seen = 0
        self.valid = torch.zeros(0, 0, dtype=torch.int64)
        self.encoder_mask: torch.Tensor | None = None

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens that the model was given."""
        return self.seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """No maximum that transformers has to know."""
        return -1

    @property
    def is_compileable(self) -> bool:
        """False: nothing is compiled by torch."""
        return False

    def reorder_cache(self, beam_idx: Any) -> None:
        """Raises ValueError: beams would move sequences between workers."""
        raise ValueError("beam search is not possible: caches on workers are not reordered")

    def crop(self, tokens_to_remove: int) -> None:
        """Raises ValueError: what is written into a cache stays."""
        raise ValueError(
            "assisted generation is not possible: tokens are not taken back from caches on workers"
        )
