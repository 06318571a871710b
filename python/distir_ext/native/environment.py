"""Environment variables that are set for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def changed_environment(settings: Mapping[str, str], *, force: bool = False) -> Iterator[None]:
    """Sets variables for a while; one that is set already stays, unless it is forced."""
    new = {name: value for name, value in settings.items() if force or name not in os.environ}
    before = {name: os.environ.get(name) for name in new}
    os.environ.update(new)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
