"""Shows results in terminals, notebooks and figures.

A result is data: its class derives from :class:`Shown`, and the package ``views``, which is above
all results, registers its tables, its HTML and its figure with the functions here.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from rich.table import Table

from distir_ext.text.tables import as_html, as_text


@singledispatch
def tables(result: Any) -> list[Table]:
    """The tables of a result."""
    raise TypeError(f"nothing says which tables a {type(result).__name__} has")


@singledispatch
def html(result: Any) -> str:
    """A result as a notebook shows it: its tables, unless it has a view of its own."""
    return as_html(tables(result))


@singledispatch
def figure(result: Any, **options: Any) -> Any:
    """A result as a ``matplotlib.figure.Figure``.

    Raises:
        ImportError: matplotlib is not installed.
    """
    raise TypeError(f"nothing says how a {type(result).__name__} is drawn")


class Shown:
    """Base of results that notebooks show as HTML."""

    def _repr_html_(self) -> str:
        return html(self)


class Printed(Shown):
    """Base of results that also print as tables; dataclasses of it have ``repr=False``."""

    def __str__(self) -> str:
        return as_text(tables(self))

    def __repr__(self) -> str:
        return str(self)
