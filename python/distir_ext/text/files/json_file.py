"""Reads JSON from files that may be damaged, such as indices and headers of weights."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any


def require(condition: bool, message: str) -> None:
    """Raises ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)


# Names that a message lists.
_MOST_NAMED = 8

# Lists, objects and what is in them in one text, or tensors of a file: Python needs some 100 bytes
# for each. The headers of the largest models have a tenth of them.
MOST_VALUES = 1 << 22


def some_of(names: Iterable[str]) -> str:
    """Names for a message, sorted: not all where there are many."""
    found = sorted(names)
    listed = ", ".join(repr(name) for name in found[:_MOST_NAMED])
    rest = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return f"[{listed}]{rest}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = some_of(name for name, count in counts.items() if count > 1)
        raise ValueError(f"it has {repeated} twice")
    return result


def read_json(text: bytes, where: str) -> dict[str, Any]:
    """An object, no member of which is given twice; in time and memory linear in the text.

    Raises:
        ValueError: the text is not that; names ``where``.
    """
    num_values = text.count(b",") + text.count(b"[") + text.count(b"{")
    require(num_values <= MOST_VALUES, f"{where} is damaged: it has some {num_values} values")
    try:
        value = json.loads(text.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is damaged: {error}") from error
    require(isinstance(value, dict), f"{where} is damaged: it is not a JSON object")
    return dict(value)
