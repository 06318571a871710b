"""Imports shardings from the formats of other systems, and exports to those that allow it.

Each format is a submodule, ``dx.interop.gspmd``, which is imported when it is first used, so
that packages of other systems are needed only where they are asked for.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    if name in __dir__():
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__} has no format {name!r}; it has {', '.join(__dir__())}")


def __dir__() -> list[str]:
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in found if not name.startswith("_"))
