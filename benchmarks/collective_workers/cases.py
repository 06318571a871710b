"""Operands and results of each collective, for this project and for Gloo alike.

A size is the bytes of the larger one of a worker's two tensors, float32. All have one dimension.
"""

from __future__ import annotations

import numpy as np

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
# Each worker copies its own tensor: what the others are compared with.
COPY = "copy"


def shapes(collective: str, size: int, num_workers: int) -> tuple[int, int]:
    """Elements of operand and result of each worker."""
    count = size // 4
    shard = count // num_workers
    return shard if collective == "all_gather" else count, (
        shard if collective == "reduce_scatter" else count
    )


def operand(collective: str, size: int, num_workers: int, rank: int) -> np.ndarray:
    """Whole numbers, so that sums are exact; different on every worker."""
    count, _ = shapes(collective, size, num_workers)
    return ((np.arange(count) + 1) * (rank + 1) % 251).astype(np.float32)


def expected(collective: str, size: int, num_workers: int, rank: int) -> np.ndarray:
    """The result of a worker."""
    everybody = [operand(collective, size, num_workers, each) for each in range(num_workers)]
    shard = size // 4 // num_workers
    block = slice(rank * shard, (rank + 1) * shard)
    if collective == "all_reduce":
        return sum(everybody)
    if collective == "all_gather":
        return np.concatenate(everybody)
    if collective == "reduce_scatter":
        return sum(each[block] for each in everybody)
    if collective == "all_to_all":
        return np.concatenate([each[block] for each in everybody])
    if collective == "permute":
        return everybody[rank - 1]
    return everybody[rank]


def check(result: np.ndarray, collective: str, size: int, num_workers: int, rank: int) -> None:
    """Raises ValueError where a result is not the right one."""
    if not np.array_equal(result, expected(collective, size, num_workers, rank)):
        raise ValueError(f"{collective} of {size} bytes: worker {rank} has a wrong result")
