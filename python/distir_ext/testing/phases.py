"""Checks for tests of passes and of partitioned programs."""

from __future__ import annotations

import tvm
import tvm_ffi

from distir_ext.native.modules import check_module
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.printable import TextLines

__all__ = ["PHASES", "verify", "violations"]

PHASES = ("propagated", "legalized", "lowered")
"""After PropagateSharding, LegalizeRedistribute and LowerDistIR."""


@short_tracebacks
def violations(mod: tvm.IRModule, phase: str) -> list[str]:
    """Lists the postconditions that a module violates, of the pass that leads to a phase.

    Args:
        mod: A module after that pass.
        phase: One of ``distir_ext.testing.PHASES``.

    Returns:
        One line for each violation, naming function and variable; none if the module is as it
        should be.

    Raises:
        TypeError: It is no module.
        ValueError: There is no such phase.
    """
    check_module(mod)
    if phase not in PHASES:
        raise ValueError(f"there is no phase {phase!r}; the phases are {', '.join(PHASES)}")
    verify = tvm_ffi.get_global_func(f"distir.verify.{phase.capitalize()}")
    return [str(violation) for violation in verify(mod)]


@short_tracebacks
def verify(mod: tvm.IRModule, phase: str) -> None:
    """Checks the postconditions of the pass that leads to a phase.

    Args:
        mod: A module after that pass.
        phase: One of ``distir_ext.testing.PHASES``.

    Raises:
        TypeError: It is no module.
        ValueError: There is no such phase; or the module violates a postcondition, then the message
            lists all violations.
    """
    found = violations(mod, phase)
    if found:
        raise ValueError(TextLines([f"the module is not {phase}:", *found]))
