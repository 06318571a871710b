"""What OptimizeCollectives did to a module."""

from __future__ import annotations

import json
from dataclasses import dataclass

import tvm

_ATTR = "distir.optimizations"


@dataclass(frozen=True)
class Optimization:
    """One optimisation of collectives and what came of it."""

    name: str
    """As in the options of OptimizeCollectives."""

    matched: int
    """How often it applied."""

    skipped: dict[str, int]
    """How often it did not, by reason."""


def is_optimized(mod: tvm.IRModule) -> bool:
    """Whether OptimizeCollectives has been run."""
    return mod.attrs is not None and _ATTR in mod.attrs


def optimizations(mod: tvm.IRModule) -> list[Optimization]:
    """What each optimisation did, in the order in which they ran.

    Args:
        mod: A module after OptimizeCollectives, or after passes that follow it.

    Raises:
        ValueError: OptimizeCollectives has not been run.
    """
    if not is_optimized(mod):
        raise ValueError(
            "the module says nothing of optimisations; "
            "run distir_ext.transform.OptimizeCollectives first"
        )
    tallies = json.loads(str(mod.attrs[_ATTR]))
    return [
        Optimization(name, tally["matched"], tally["skipped"]) for name, tally in tallies.items()
    ]
