"""Words messages: "did you mean" for unknown names, and plurals."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


def plain(name: str) -> str:
    """A name in small letters, with "_" for all that is neither letter nor digit."""
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names that are most like a name, best first; none if no one is like it.

    Example:
        >>> nearest("model.fc1.weight", ["p_fc1_weight", "x"])
        ['p_fc1_weight']
        >>> nearest("up_proj", ["up", "down"])
        ['up']
    """
    by_plain = {plain(each): each for each in known}
    wanted = plain(name)
    near = difflib.get_close_matches(wanted, by_plain, n=count)
    # Short names within long ones count for little in difflib.
    near += [each for each in by_plain if each not in near and _is_part(wanted, each)]
    return [by_plain[each] for each in near[:count]]


def _is_part(left: str, right: str) -> bool:
    """Returns whether one name is the beginning or the end of the other, up to a "_"."""
    short, long = sorted((left, right), key=len)
    return bool(short) and (long.startswith(f"{short}_") or long.endswith(f"_{short}"))


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown name; empty if no known one is like it."""
    near = nearest(str(name), known)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number of things.

    Example:
        >>> counted(1, "input"), counted(2, "input"), counted(0, "axis", "axes")
        ('1 input', '2 inputs', '0 axes')
    """
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
