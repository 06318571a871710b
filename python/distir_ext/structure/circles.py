"""Finds cycles in the call graph of a module, in linear time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping


def circles(callees: Mapping[str, Collection[str]]) -> dict[str, frozenset[str]]:
    """Finds the functions that call themselves, maybe by others.

    Args:
        callees: By the name of each function, the names that it calls; names without an entry call
            nothing.

    Returns:
        By the name of each function that calls itself, those that it calls, maybe by others, and
        that call it in this way, itself too.

    Example:
        >>> found = circles({"main": ["even"], "even": ["odd"], "odd": ["even", "leaf"]})
        >>> {name: sorted(circle) for name, circle in sorted(found.items())}
        {'even': ['even', 'odd'], 'odd': ['even', 'odd']}
    """
    # Tarjan, Depth-first search and linear graph algorithms, 1972; without recursion.
    found: dict[str, frozenset[str]] = {}
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_: list[str] = []  # numbered, and not known yet to be of a circle or not
    is_open: set[str] = set()
    path: list[tuple[str, Iterator[str]]] = []

    def enter(name: str) -> None:
        number[name] = lowest[name] = len(number)
        open_.append(name)
        is_open.add(name)
        path.append((name, iter(callees.get(name, ()))))

    def leave(name: str) -> None:
        if path:
            caller = path[-1][0]
            lowest[caller] = min(lowest[caller], lowest[name])
        if lowest[name] < number[name]:
            return
        members = [open_.pop()]
        while members[-1] != name:
            members.append(open_.pop())
        circle = frozenset(members)
        is_open.difference_update(circle)
        if len(circle) > 1 or name in callees.get(name, ()):
            found.update(dict.fromkeys(circle, circle))

    for root in callees:
        if root not in number:
            enter(root)
        while path:
            name, rest = path[-1]
            for callee in rest:
                if callee not in number:
                    enter(callee)
                    break
                if callee in is_open:
                    lowest[name] = min(lowest[name], number[callee])
            else:
                path.pop()
                leave(name)
    return found
