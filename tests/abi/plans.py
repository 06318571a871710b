"""Plans as compiled programs state them, written by hand."""

from __future__ import annotations

import json
import math
from typing import Any


def layout(device_ids: list[int], parts: list[int]) -> dict[str, Any]:
    """Of a tensor cut into ``parts[d]`` blocks per dimension, row-major; as many devices as blocks,
    or a multiple of that: the first ones hold the first block."""
    copies = len(device_ids) // math.prod(parts)
    strides = [copies * math.prod(parts[d + 1 :]) for d in range(len(parts))]
    return {
        "devices": [[device, 1, 1] for device in device_ids],
        "dims": [[[stride, size]] for stride, size in zip(strides, parts, strict=True)],
    }


def transfer_plan(
    source: dict[str, Any], target: dict[str, Any], shape: list[int] | None = None, channel: int = 0
) -> str:
    """Between two layouts."""
    shape = [0] * len(source["dims"]) if shape is None else shape
    return json.dumps({"channel": channel, "shape": shape, "source": source, "target": target})


def own_segments(plan: dict[str, Any]) -> list[list[int]]:
    """Of a segment plan, the elements that stay on their device, one by one."""
    sides = plan["source"], plan["target"]
    digits = [side["dims"][plan["dim"]] for side in sides]
    assert digits[0] == digits[1], "the shards are those of other devices"
    blocks = math.prod(size for _, size in digits[0])
    before, after = plan["source_size"] // blocks, plan["target_size"] // blocks
    return [
        [source + i * step, target + i, 1, 1]
        for source, target, step, count in plan["segments"]
        for i in range(count)
        if (source + i * step) // before == (target + i) // after
    ]
