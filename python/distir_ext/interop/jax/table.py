"""Registry of the handlers that translate StableHLO operations, by operation name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from distir_ext.text.errors.spelling import nearest

Handler: TypeAlias = Callable[[Any, Any], Any]
"""From the writer of a function and an operation to its result, or a list of its results."""

HANDLERS: dict[str, Handler] = {}


def translates(*names: str) -> Callable[[Handler], Handler]:
    """Enters a handler for operations of these names."""

    def enter(handler: Handler) -> Handler:
        enter_all(names, handler)
        return handler

    return enter


def enter_all(names: Iterable[str], handler: Handler) -> None:
    """Enters one handler under several names."""
    HANDLERS.update(dict.fromkeys(names, handler))


def near(name: str) -> str:
    """The end of a message about an unknown operation: dialects are not what is misspelled."""
    plain = {each.rpartition(".")[2]: each for each in HANDLERS if not each.startswith("@")}
    found = [plain[each] for each in nearest(name.rpartition(".")[2], plain, 2)]
    return f"; did you mean {' or '.join(found)}?" if found else ""
