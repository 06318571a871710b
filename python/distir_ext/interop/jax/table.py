"""The table of operations that have a translation: its handlers enter themselves by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from distir_ext.interop.jax.writer import Writer

Handler: TypeAlias = Callable[["Writer", Any], Any]
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
