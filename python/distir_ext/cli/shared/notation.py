"""Parses meshes, shardings, shapes and sizes of command lines, without importing TVM.

A sharding has an entry per dimension, as in plans, with ``-`` for None::

    dp,-              ("dp", None)
    dp+tp,-           (("dp", "tp"), None), also (dp tp),-
    dp+...,...        (("dp", ...), ...): open dimensions
    dp@1,-            (Dim("dp", priority=1), None)
    replicated        None: over all devices, whatever the dimensions
    ('dp', None)      as reports print it
"""

from __future__ import annotations

import ast
import math
import re
from typing import TypeAlias

from distir_ext.mesh.dims import Dim, DimEntry, short_entry

Dims: TypeAlias = tuple[DimEntry, ...] | None

REPLICATED = "replicated"

# One or more axes; "(dp tp)" is "dp+tp". Behind them a priority.
_ENTRY = re.compile(r"(?:\(\s*([^()\s@]+(?:\s+[^()\s@]+)*)\s*\)|([^()\s@]+))(?:@(\d+))?")

# The prefix, and the i of units by 1024; both may be missing, not the B.
_UNIT = re.compile(r"(?<=[\d. ])([kKMGT]?)(i?)B$")


def parse_dims(text: str) -> Dims:
    """A sharding, as plans take it.

    Raises:
        ValueError: It is none.

    Example:
        >>> parse_dims("dp+tp,-"), parse_dims("(dp tp),-"), parse_dims("('dp', None)")
        ((('dp', 'tp'), None), (('dp', 'tp'), None), ('dp', None))
        >>> parse_dims("dp+...,-@1")
        (('dp', Ellipsis), Dim(priority=1))
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


def parse_named_file(text: str) -> tuple[str, str]:
    """A file with a name, which is empty where none is stated: ``"mine=plan.json"``.

    Raises:
        ValueError: There is no file, or the name is empty.
    """
    name, equals, file = text.rpartition("=")
    if not file or (equals and not name):
        raise ValueError(f"{text!r} is not NAME=FILE or FILE")
    return name, file


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


def parse_counts(text: str) -> list[int]:
    """Positive numbers: ``"1,2,4"``.

    Raises:
        ValueError: One of them is none.
    """
    return [parse_count(part.strip()) for part in text.split(",")]


def parse_bytes(text: str) -> float:
    """A number of bytes: ``"1000000"``, ``"1e6"``, ``"80GB"`` or ``"64GiB"``.

    Raises:
        ValueError: It is none, or below zero.
    """
    unit = _UNIT.search(text.strip())
    try:
        found = float(text.strip()[: unit.start()] if unit else text)
    except ValueError:
        found = -1.0
    if unit:
        base = 1024 if unit[2] else 1000
        found *= base ** ("KMGT".index(unit[1].upper()) + 1 if unit[1] else 0)
    if not 0 <= found < math.inf:
        raise ValueError(f"{text!r} is not a number of bytes, as in '1000000', '1e6' or '80GB'")
    return found


def _entry(entry: str, text: str) -> DimEntry:
    match = _ENTRY.fullmatch(entry)
    names = re.split(r"[+\s]+", match[1] or match[2]) if match else [""]
    if names == ["-"]:
        names = []
    is_open = names[-1:] == ["..."]
    axes = names[:-1] if is_open else names
    if match is None or not all(axes) or not {"-", "..."}.isdisjoint(axes):
        raise ValueError(
            f"{text!r} is no sharding: each dimension has an axis, several as in 'dp+tp', or '-'; "
            "with '+...' behind them, or '...' alone, it is open, and '@1' behind it is a priority"
        )
    return short_entry(Dim(*axes, open=is_open, priority=int(match[3] or 0)))


def _printed_dims(text: str) -> Dims:
    try:
        found = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        raise ValueError(f"{text!r} is no sharding, as in \"('dp', None)\" or 'dp,-'") from None
    if isinstance(found, list):
        found = tuple(found)
    return found if isinstance(found, tuple) or found is None else (found,)
