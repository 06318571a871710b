"""Threefry 2x32 in NumPy, by which tests check random bits."""

from __future__ import annotations

from typing import Any

import numpy as np

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key: Any, counters: Any) -> np.ndarray[Any, Any]:
    """Words of 64 bits for counters of 64 bits; the upper 32 bits are the first word."""
    key, counters = np.asarray(key).astype("uint64"), np.asarray(counters).astype("uint64")
    keys = [(key >> np.uint64(32)).astype("uint32"), key.astype("uint32")]
    keys.append(keys[0] ^ keys[1] ^ np.uint32(0x1BD11BDA))
    with np.errstate(over="ignore"):
        a = (counters >> np.uint64(32)).astype("uint32") + keys[0]
        b = counters.astype("uint32") + keys[1]
        for group in range(5):
            for count in _ROTATIONS[group % 2]:
                a = a + b
                b = (b << np.uint32(count) | b >> np.uint32(32 - count)) ^ a
            a = a + keys[(group + 1) % 3]
            b = b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return a.astype("uint64") << np.uint64(32) | b.astype("uint64")


def bits(key: Any, counters: Any, dtype: str = "uint32") -> np.ndarray[Any, Any]:
    """Makes the numbers of ``R.dist.random_bits`` from a key and counters."""
    words = threefry(key, counters)
    if dtype == "uint32":
        return (words >> np.uint64(32)).astype("uint32") ^ words.astype("uint32")
    return words.view(dtype) if words.ndim else words.astype(dtype)


def kept(key: Any, shape: tuple[int, ...], probability: float) -> np.ndarray[Any, Any]:
    """The mask of dropout with a key, true where a value is kept."""
    counters = np.arange(np.prod(shape, dtype="int64")).reshape(shape)
    least = np.ceil(float(np.float32(probability)) * 2**23)
    return (bits(key, counters) >> np.uint32(9)) < least
