"""Annotations of tensor dimensions: axes, open or closed, priority. Independent of TVM.

A dimension is *closed* by default: it is sharded by exactly the axes that are stated. An *open* one
is sharded by them first, and propagation may add others behind. :func:`read_dim` reads an entry as
a :class:`Dim`, and :func:`dims_text` writes dims as users do::

    (("dp", ...), None)      Dim("dp", open=True), Dim()
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, TypeAlias

from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks


@dataclass(frozen=True, init=False, repr=False)
class Dim:
    """Sharding of one tensor dimension: mesh axes, openness and priority.

    Args:
        *axes: The mesh axes that shard it, major to minor.
        open: Whether propagation may shard it further, by axes behind these. ``("dp", ...)`` is
            short for ``Dim("dp", open=True)``, and ``...`` for ``Dim(open=True)``.
        priority: Round of propagation in which the axes of this dimension begin to spread. 0, the
            default, comes first; when nothing of it spreads any further, 1 follows, and so on.

    Raises:
        TypeError: An axis is no name, or the priority no integer.
        ValueError: The priority is negative.

    Example:
        >>> Dim("dp", open=True), Dim("dp", "tp", priority=1)
        (Dim('dp', open=True), Dim('dp', 'tp', priority=1))
    """

    axes: tuple[str, ...]
    open: bool
    priority: int

    @short_tracebacks
    def __init__(self, *axes: str, open: bool = False, priority: int | None = None) -> None:
        for axis in axes:
            if not isinstance(axis, str):
                raise TypeError(f"Dim takes names of mesh axes, not {axis!r}")
        if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
            raise TypeError(f"the priority of a dimension is an integer, not {priority!r}")
        if priority is not None and priority < 0:
            raise ValueError(f"the priority of a dimension is {priority}; the first one is 0")
        object.__setattr__(self, "axes", axes)
        object.__setattr__(self, "open", bool(open))
        object.__setattr__(self, "priority", priority or 0)

    def __repr__(self) -> str:
        parts = list(map(repr, self.axes))
        if self.open:
            parts.append("open=True")
        if self.priority:
            parts.append(f"priority={self.priority}")
        return f"Dim({', '.join(parts)})"


DimEntry: TypeAlias = str | Sequence[str | EllipsisType] | EllipsisType | Dim | None
"""Entry of dims for one tensor dimension: the mesh axis that shards it, several from major to
minor, or None; with ``...`` at the end if it may be sharded further; or a :class:`Dim`."""


class TensorDims(tuple[DimEntry, ...]):
    """Dims, and mesh axes over which the tensor stays replicated wherever it is open.

    It is a tuple with an entry per tensor dimension, and stands wherever dims do.

    Args:
        *dims: One entry per tensor dimension.
        replicated: The mesh axes that propagation must not shard it by, or one of them.

    Raises:
        TypeError: ``replicated`` has something else than names.

    Example:
        >>> TensorDims(("dp", ...), ..., replicated=("tp",))
        TensorDims(('dp', ...), ..., replicated=('tp',))
    """

    replicated: tuple[str, ...]

    @short_tracebacks
    def __new__(cls, *dims: DimEntry, replicated: str | Iterable[str] = ()) -> TensorDims:
        """Takes the dims, and checks the names of axes."""
        made: TensorDims = super().__new__(cls, dims)
        names = (replicated,) if isinstance(replicated, str) else tuple(replicated)
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f"replicated takes names of mesh axes, not {name!r}")
        made.replicated = tuple(dict.fromkeys(names))
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(self), {"replicated": self.replicated}

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, other) is True and self.replicated == replicated_axes(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((tuple(self), self.replicated)) if self.replicated else hash(tuple(self))

    def __repr__(self) -> str:
        entries = [_entry_text(each) for each in self]
        if self.replicated:
            entries.append(f"replicated={self.replicated!r}")
        return f"TensorDims({', '.join(entries)})"


def replicated_axes(dims: Any) -> tuple[str, ...]:
    """The axes over which dims keep a tensor replicated."""
    return dims.replicated if isinstance(dims, TensorDims) else ()


def read_dim(entity: str, entry: Any) -> Dim:
    """Reads an entry of dims.

    Args:
        entity: Name of the annotated value in messages.
        entry: As in dims.

    Raises:
        TypeError: It is nothing that states a dimension.
        ValueError: ``...`` stands elsewhere than at the end.
    """
    if isinstance(entry, Dim):
        return entry
    if entry is None:
        return Dim()
    if entry is ...:
        return Dim(open=True)
    names = (entry,) if isinstance(entry, str) else entry
    if not isinstance(names, Sequence) or not all(isinstance(i, str) or i is ... for i in names):
        raise TypeError(
            f"{entity}: {_entry_text(entry)} is neither the name of a mesh axis, nor a tuple of "
            "names, nor None"
        )
    if ... in names[:-1]:
        raise ValueError(
            f"{entity}: in {_entry_text(entry)} names stand behind `...`, which is the last of a "
            "dimension that is open"
        )
    is_open = bool(names) and names[-1] is ...
    axes = names[:-1] if is_open else names
    return Dim(*axes, open=is_open)


def has_terms(entry: Any) -> bool:
    """Returns whether an entry of dims states openness or a priority beside axes."""
    is_open = isinstance(entry, list | tuple) and ... in entry
    return isinstance(entry, Dim) or entry is ... or is_open


def short_entry(dim: Dim) -> DimEntry:
    """The shortest entry of dims that states the same.

    Example:
        >>> short_entry(Dim("dp")), short_entry(Dim("dp", "tp")), short_entry(Dim(priority=1))
        ('dp', ('dp', 'tp'), Dim(priority=1))
    """
    if dim.priority:
        return dim
    if dim.open:
        return (*dim.axes, ...) if dim.axes else ...
    return dim.axes if len(dim.axes) > 1 else dim.axes[0] if dim.axes else None


def check_axes(entity: str, names: Iterable[str], known: Sequence[str]) -> None:
    """Raises an error for axes that a mesh does not have.

    Raises:
        ValueError: Names the first of them, and those that are like it.
    """
    for name in names:
        if name not in known:
            raise ValueError(
                f"{entity}: the mesh has no axis {name!r}; its axes are {', '.join(known)}"
                f"{did_you_mean(name, known)}"
            )


def dims_text(dims: Any) -> str:
    """Dims as users write them.

    Example:
        >>> dims_text((("dp", ...), None)), dims_text([Dim("tp", priority=2)]), dims_text((...,))
        ("(('dp', ...), None)", "(Dim('tp', priority=2),)", '(...,)')
    """
    if isinstance(dims, TensorDims) and dims.replicated:
        return repr(dims)
    if isinstance(dims, str) or not isinstance(dims, list | tuple):
        return repr(dims)
    return _tuple_text([_entry_text(each) for each in dims])


def dims_data(dims: Any) -> Any:
    """Dims as JSON has them, and as plans in files are written.

    Example:
        >>> dims_data((("dp", ...), Dim("tp", priority=1), None))
        [['dp', '...'], {'axes': ['tp'], 'open': False, 'priority': 1}, None]
        >>> dims_data(TensorDims(..., replicated="tp"))
        {'dims': ['...'], 'replicated': ['tp']}
    """
    if isinstance(dims, TensorDims) and dims.replicated:
        return {"dims": dims_data(tuple(dims)), "replicated": list(dims.replicated)}
    if not isinstance(dims, list | tuple):
        return dims
    return [_entry_data(each) for each in dims]


def _entry_data(entry: Any) -> Any:
    if isinstance(entry, Dim):
        if entry.priority:
            return {"axes": list(entry.axes), "open": entry.open, "priority": entry.priority}
        entry = short_entry(entry)
    if isinstance(entry, list | tuple):
        return ["..." if each is ... else each for each in entry]
    return "..." if entry is ... else entry


def _entry_text(entry: Any) -> str:
    if entry is ...:
        return "..."
    if isinstance(entry, Dim) and not entry.priority:
        return _entry_text(short_entry(entry))
    if isinstance(entry, list | tuple) and ... in entry:
        return _tuple_text([_entry_text(each) for each in entry])
    return repr(entry)


def _tuple_text(entries: Sequence[str]) -> str:
    return f"({entries[0]},)" if len(entries) == 1 else f"({', '.join(entries)})"
