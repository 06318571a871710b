"""Computes attention masks over caches: the cached positions that a new token attends to.

transformers computes masks as functions of positions. A cache of a window holds positions in no
order, and says so by what it adds to each slot's number (:mod:`caches`); here masks are computed of
these, and of which positions are padding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from transformers import masking_utils


@contextlib.contextmanager
def masks_of_slots(valid: torch.Tensor | None) -> Iterator[None]:
    """Makes transformers models compute masks over the slots of caches, until the block ends.

    Args:
        valid: int64 (batch, positions): 0 for padding; None if there are no positions.
    """
    original = masking_utils.eager_mask

    def masked(
        *,
        batch_size: int,
        q_length: int,
        kv_length: int,
        q_offset: Any = 0,
        kv_offset: Any = 0,
        mask_function: Any,
        dtype: torch.dtype = torch.float32,
        **options: Any,
    ) -> Any:
        if not isinstance(kv_offset, torch.Tensor):  # of an encoder, or of what it gave
            return original(
                batch_size=batch_size,
                q_length=q_length,
                kv_length=kv_length,
                q_offset=q_offset,
                kv_offset=kv_offset,
                mask_function=mask_function,
                dtype=dtype,
                **options,
            )
        held = torch.arange(kv_length) + kv_offset
        asking = torch.arange(q_length) + q_offset
        rows = torch.arange(batch_size)
        seen = mask_function(
            rows[:, None, None, None],
            torch.zeros(1, 1, 1, 1, dtype=torch.int64),
            asking[None, None, :, None],
            held[None, None, None, :],
        )
        # A slot that holds nothing yet has a negative position.
        seen = seen & (held >= 0)[None, None, None, :]
        if valid is not None:
            slots = valid.shape[1]
            real = valid
            if kv_length != slots:
                real = torch.index_select(valid, 1, torch.clamp(held, 0, slots - 1))
            seen = seen & (real != 0)[:, None, None, :]
        seen = seen.expand(batch_size, 1, q_length, kv_length)
        hidden = torch.full((), torch.finfo(dtype).min, dtype=dtype)
        return torch.where(seen, torch.zeros((), dtype=dtype), hidden)

    functions = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    functions["eager"] = masked
    try:
        yield
    finally:
        del functions["eager"]
