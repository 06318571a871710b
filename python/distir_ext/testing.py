"""What tests of passes and of partitioned programs need."""

from __future__ import annotations

import tvm
import tvm_ffi

STAGES = ("propagated", "legalized", "lowered")
"""After PropagateSharding, LegalizeRedistribute and LowerDistIR."""


def violations(mod: tvm.IRModule, stage: str) -> list[str]:
    """What a module violates of the postconditions of the pass that leads to a stage.

    Args:
        mod: A module after that pass.
        stage: One of :data:`STAGES`.

    Returns:
        One line for each violation, naming function and variable; none if the module is as it
        should be.

    Raises:
        ValueError: There is no such stage.
    """
    if stage not in STAGES:
        raise ValueError(f"there is no stage {stage!r}; the stages are {', '.join(STAGES)}")
    verify = tvm_ffi.get_global_func(f"distir.verify.{stage.capitalize()}")
    return [str(violation) for violation in verify(mod)]


def verify(mod: tvm.IRModule, stage: str) -> None:
    """Checks the postconditions of the pass that leads to a stage.

    Args:
        mod: A module after that pass.
        stage: One of :data:`STAGES`.

    Raises:
        ValueError: There is no such stage; or the module violates a postcondition, then the message
            lists all violations.
    """
    found = violations(mod, stage)
    if found:
        raise ValueError(f"the module is not {stage}:\n" + "\n".join(found))
