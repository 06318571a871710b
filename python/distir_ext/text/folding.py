"""Folds rows of a table whose names differ in numbers alone, such as those of equal layers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

_Row = TypeVar("_Row", bound=Any)


def folded(rows: Iterable[_Row]) -> list[tuple[_Row, int]]:
    """Rows with how many they stand for; the numbers of several are ``*``.

    Args:
        rows: Dataclasses that have a ``name`` and can be hashed. Those are one row that are alike
            but for numbers in their names.
    """
    groups: dict[_Row, list[_Row]] = {}
    for row in rows:
        groups.setdefault(replace(row, name=re.sub(r"\d+", "*", row.name)), []).append(row)
    return [
        (found[0] if len(found) == 1 else pattern, len(found)) for pattern, found in groups.items()
    ]
