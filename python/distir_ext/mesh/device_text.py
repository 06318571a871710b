"""Prints lists of devices as short text, such as ``0..3``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def device_text(devices: Sequence[int], most: int = 0) -> str:
    """Device ids, runs of three and more shortened.

    Args:
        devices: Their ids, ascending.
        most: Most characters; 0 for any number. A longer list loses its middle and
            says how many devices it has, which may take a few more.

    Example:
        >>> device_text([0, 1, 2, 3, 8, 9]), device_text([0, 64, 128, 192, 256], 12)
        ('0..3, 8, 9', '0 … 256 (5)')
    """
    items = list(_runs(devices))
    text = ", ".join(items)
    if not most or len(text) <= most:
        return text
    last = items[-1]
    tail = f" … {last.rpartition('..')[2]} ({len(devices)})"
    kept = items[0].partition("..")[0]
    for item in items[1:-1]:
        if len(kept) + 2 + len(item) + len(tail) > most:
            break
        kept += f", {item}"
    return kept + tail


def _runs(devices: Sequence[int]) -> Iterator[str]:
    begin = 0
    for end in range(1, len(devices) + 1):
        if end < len(devices) and devices[end] == devices[end - 1] + 1:
            continue
        if end - begin > 2:
            yield f"{devices[begin]}..{devices[end - 1]}"
        else:
            yield from map(str, devices[begin:end])
        begin = end
