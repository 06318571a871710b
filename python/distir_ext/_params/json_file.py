"""Indices and headers: JSON out of files that may be damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def require(condition: bool, message: str) -> None:
    """Raises ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"it has {repeated} twice")
    return result


def read_json(text: bytes, where: str) -> dict[str, Any]:
    """An object, no member of which is given twice.

    Raises:
        ValueError: the text is not that; names ``where``.
    """
    try:
        value = json.loads(text.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is damaged: {error}") from error
    require(isinstance(value, dict), f"{where} is damaged: it is not a JSON object")
    return dict(value)


def beside(index: Path, file: str) -> Path:
    """A file that an index names; it has to lie in the index's own directory."""
    if Path(file).name != file:
        raise ValueError(f"{index} is damaged: {file!r} is not the name of a file beside it")
    return index.parent / file
