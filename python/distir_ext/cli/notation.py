"""Meshes, shardings, shapes and sizes as arguments; knows nothing of TVM.

A sharding has an entry per dimension, as in plans, with ``-`` for None::

    dp,-              ("dp", None)
    dp+tp,-           (("dp", "tp"), None), also (dp tp),-
    replicated        None: over all devices, whatever the dimensions
    ('dp', None)      as reports print it
"""

from __future__ import annotations

import ast
import re
from typing import TypeAlias

Dims: TypeAlias = "tuple[str | tuple[str, ...] | None, ...] | None"

REPLICATED = "replicated"

# One or more axes; "(dp tp)" is "dp+tp".
_ENTRY = re.compile(r"\(\s*([^()\s]+(?:\s+[^()\s]+)*)\s*\)|([^()\s]+)")


def parse_dims(text: str) -> Dims:
    """A sharding, as plans take it.

    Raises:
        ValueError: It is none.

    Example:
        >>> parse_dims("dp+tp,-"), parse_dims("(dp tp),-"), parse_dims("('dp', None)")
        ((('dp', 'tp'), None), (('dp', 'tp'), None), ('dp', None))
    """
    text = text.strip()
    if text == REPLICATED:
        return None
    if "'" in text or '"' in text or "None" in text:
        return _printed_dims(text)
    return tuple(_entry(entry.strip(), text) for entry in text.split(",")) if text else ()


def parse_shard(text: str) -> tuple[str, Dims]:
    """A pattern on names, and the sharding of what it matches: ``".*up.*=-,tp"``.

    Raises:
        ValueError: It is none.
    """
    pattern, equals, dims = text.rpartition("=")
    if not equals or not pattern:
        raise ValueError(f"{text!r} is not PATTERN=DIMS, as in 'x=dp,-'")
    return pattern, parse_dims(dims)


def parse_sizes(text: str) -> dict[str, int]:
    """Positive numbers by name: ``"dp=2,tp=4"``.

    Raises:
        ValueError: It is none, or a name occurs twice.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not (equals and name and value.isdecimal() and int(value) > 0):
            raise ValueError(f"{part!r} is not NAME=NUMBER, as in 'dp=2,tp=4'")
        if name in found:
            raise ValueError(f"{name!r} occurs twice in {text!r}")
        found[name] = int(value)
    return found


def parse_shape(text: str) -> tuple[int, ...]:
    """A shape: ``"1024,1024"`` or ``"1024x1024"``; empty for a scalar.

    Raises:
        ValueError: It is none.
    """
    parts = [part.strip() for part in re.split("[,x]", text)] if text.strip() else []
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"{text!r} is not a shape, as in '1024,1024'")
    return tuple(int(part) for part in parts)


def parse_count(text: str) -> int:
    """A positive number.

    Raises:
        ValueError: It is none.
    """
    if not (text.isdecimal() and int(text) > 0):
        raise ValueError(f"{text!r} is not a positive number")
    return int(text)


def parse_bytes(text: str) -> float:
    """A number of bytes: ``"1000000"`` or ``"1e6"``.

    Raises:
        ValueError: It is none, or below zero.
    """
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not found >= 0:
        raise ValueError(f"{text!r} is not a number of bytes, as in '1000000' or '1e6'")
    return found


def _entry(entry: str, text: str) -> str | tuple[str, ...] | None:
    if entry == "-":
        return None
    match = _ENTRY.fullmatch(entry)
    axes = re.split(r"[+\s]+", match[1] or match[2]) if match else [""]
    if not all(axes):
        raise ValueError(
            f"{text!r} is no sharding: each dimension has an axis, several as in 'dp+tp', or '-'"
        )
    return axes[0] if len(axes) == 1 else tuple(axes)


def _printed_dims(text: str) -> Dims:
    try:
        found = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        raise ValueError(f"{text!r} is no sharding, as in \"('dp', None)\" or 'dp,-'") from None
    if isinstance(found, list):
        found = tuple(found)
    return found if isinstance(found, tuple) or found is None else (found,)
