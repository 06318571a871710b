"""Handle of an array whose shards are on the workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distir_ext.signature.specs import TensorSpec


@dataclass(frozen=True)
class HeldArray:
    """An array on the workers.

    Attributes:
        spec: Its type.
        shape: Its global sizes.
        shards: The shard of each device that holds one.
    """

    spec: TensorSpec
    shape: tuple[int, ...]
    shards: Mapping[int, Any]
