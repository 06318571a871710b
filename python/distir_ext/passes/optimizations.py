"""Reads the record of OptimizeCollectives in a module: matches and skipped cases."""

from __future__ import annotations

from dataclasses import dataclass

import tvm

from distir_ext.native.modules import check_module
from distir_ext.text.errors.tracebacks import short_tracebacks

_ATTR = "distir.optimizations"


@dataclass(frozen=True)
class Optimization:
    """One optimisation of collectives and what came of it."""

    name: str
    """As in the options of OptimizeCollectives."""

    matched: int
    """Number of places where it applied."""

    skipped: dict[str, int]
    """Number of places where it did not apply, by reason."""


def is_optimized(mod: tvm.IRModule) -> bool:
    """Returns whether OptimizeCollectives has been run on a module."""
    return mod.attrs is not None and _ATTR in mod.attrs


@short_tracebacks
def optimizations(mod: tvm.IRModule) -> list[Optimization]:
    """Lists the optimisations in the order in which they ran, with what each one changed.

    Args:
        mod: A module after OptimizeCollectives, or after passes that follow it.

    Raises:
        TypeError: It is no module.
        ValueError: OptimizeCollectives has not been run.
    """
    check_module(mod)
    if not is_optimized(mod):
        raise ValueError(
            "the module says nothing of optimisations; "
            "run distir_ext.transform.OptimizeCollectives first"
        )
    found = []
    for entry in mod.attrs[_ATTR]:
        if isinstance(entry, str):  # it found nothing
            found.append(Optimization(str(entry), 0, {}))
            continue
        name, matched, skipped = entry
        reasons = {str(why): int(count) for why, count in sorted(skipped.items())}
        found.append(Optimization(str(name), int(matched), reasons))
    return found
