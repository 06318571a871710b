"""Says in one line why each parameter is sharded as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

_REARRANGING = ("permute_dims", "reshape")

Dims = tuple[str | tuple[str, ...] | None, ...]


@dataclass(frozen=True)
class WeightChoice:
    """The sharding of a parameter, with the reason."""

    name: str
    """The parameter."""

    dims: Dims
    """Its dims."""

    reason: str
    """One line."""


@dataclass(frozen=True)
class _Reader:
    operator: str
    result: str
    operand: Dims
    results: Dims
    partial: tuple[str, ...]


def weight_choices(
    function: relax.Function,
    name: str,
    found: Mapping[str, Any],
    dims_of: Callable[[Any], Dims],
    axes: Sequence[str],
) -> Iterator[WeightChoice]:
    """The parameters of a function in order.

    Args:
        function: The function.
        name: Its name.
        found: What the search gave.
        dims_of: Dims of axes by number.
        axes: The names of the mesh's axes.
    """
    readers: dict[str, _Reader] = {}
    rearranged: dict[str, str] = {}  # from a value to what permutes or reshapes it
    for of, operator, operands, results, ways, made, partial in found["calls"]:
        if str(of) != name or not str(operator):
            continue
        for operand, way in zip(operands, ways, strict=True):
            reader = _Reader(
                str(operator).removeprefix("relax."),
                str(results[0]) if len(results) else "",
                dims_of(way),
                dims_of(made[0]) if len(made) else (),
                tuple(axes[int(axis)] for axis in partial),
            )
            readers.setdefault(str(operand), reader)
            if reader.operator in _REARRANGING:
                rearranged.setdefault(str(operand), reader.result)
    chosen = {
        str(param): dims_of(dims)
        for of, is_param, param, path, dims in found["tensors"]
        if str(of) == name and is_param and not len(path)
    }
    for param in function.params:
        dims = chosen.get(str(param.name))
        if dims is not None:
            reason = _reason(dims, _last_reader(str(param.name), readers, rearranged))
            yield WeightChoice(str(param.name), dims, reason)


def _last_reader(
    name: str, readers: Mapping[str, _Reader], rearranged: Mapping[str, str]
) -> _Reader | None:
    """Finds the reader of a parameter behind calls that only permute or reshape it."""
    first = found = readers.get(name)
    seen = set()
    while first is not None and name in rearranged and name not in seen:
        seen.add(name)
        name = rearranged[name]
        following = readers.get(name)
        if following is None or _axes(following.operand) != _axes(first.operand):
            break
        found = replace(following, operand=first.operand)
    return found


def _axes(dims: Dims) -> set[str]:
    return {
        axis for entry in dims for axis in ((entry,) if isinstance(entry, str) else entry or ())
    }


def _reason(dims: Dims, reader: _Reader | None) -> str:
    if reader is None:
        return "nothing reads it"
    of = f"`{reader.result}` ({reader.operator})"
    if dims != reader.operand:
        held = "stored in shards to save memory" if any(dims) else "stored whole"
        return f"{held}; {of} reads it as {_text(reader.operand)}"
    if not any(dims):
        if any(reader.results):
            return f"whole: {of} is cut along {_cut(reader.results)} by what else it reads"
        return f"whole: all devices compute all of {of}"
    parts = []
    for number, entry in enumerate(dims):
        for axis in (entry,) if isinstance(entry, str) else entry or ():
            if axis in reader.partial:
                parts.append(f"dimension {number} is summed over, so {of} is partial over {axis}")
            else:
                parts.append(f"{axis} cuts {of} along dimension {_place(axis, reader.results)}")
    return "; ".join(parts)


def _place(axis: str, dims: Dims) -> str:
    for number, entry in enumerate(dims):
        if axis == entry or (isinstance(entry, tuple) and axis in entry):
            return str(number)
    return "of its own"


def _cut(dims: Dims) -> str:
    return " and ".join(f"dimension {number}" for number, entry in enumerate(dims) if entry)


def _text(dims: Dims) -> str:
    return str(tuple(dims))
