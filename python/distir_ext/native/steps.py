"""The steps from annotations to SPMD programs, as the native library lists them."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
import tvm_ffi

from distir_ext.native import installing as _native  # loads the native library  # noqa: F401
from distir_ext.native.modules import check_module
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks


def native_pass(name: str) -> tvm.transform.Pass:
    """A pass of the native library that has no options, by its name."""
    return tvm_ffi.get_global_func(f"distir.transform.{name}")()


@dataclass(frozen=True)
class Step:
    """A pass of the pipeline."""

    name: str
    needs: str
    """The phase that a module must have reached."""

    gives: str
    """The phase that a module has reached then."""

    is_implied: bool
    """True if passes behind it run it by themselves."""

    def alone(self) -> tvm.transform.Pass:
        """The pass without those that it implies."""
        return tvm_ffi.get_global_func(f"distir.step.{self.name}")()


def steps() -> list[Step]:
    """All steps in order."""
    rows = tvm_ffi.get_global_func("distir.phases.Steps")()
    return [
        Step(str(name), str(needs), str(gives), bool(is_implied))
        for name, needs, gives, is_implied in rows
    ]


def steps_until(until: str) -> list[Step]:
    """The steps up to one, or up to the first that gives a phase.

    Args:
        until: The name of a pass, or a phase.

    Raises:
        ValueError: There is no such pass or phase.
    """
    every = steps()
    ends = [i for i, step in enumerate(every, 1) if until in (step.name, step.gives)]
    if not ends:
        names = list(dict.fromkeys([*(s.gives for s in every), *(s.name for s in every)]))
        raise ValueError(
            f"until={until!r} is neither a phase nor a pass{did_you_mean(until, names)}; "
            f"there are {', '.join(names)}"
        )
    return every[: ends[0]]


@short_tracebacks
def phase(mod: tvm.IRModule) -> str | None:
    """Returns the phase of compilation that a module is in, from annotations to SPMD programs.

    ``"annotated"``, ``"propagated"``, ``"legalized"``, ``"lowered"`` or ``"runtime"``; None where
    nothing in it is distributed. If functions differ, the least advanced one counts.

    Args:
        mod: A module, with annotations or without.

    Raises:
        TypeError: It is no module.

    Example:
        >>> import tvm
        >>> phase(tvm.IRModule()) is None
        True
    """
    check_module(mod)
    found = tvm_ffi.get_global_func("distir.phases.PhaseOf")(mod)
    return None if found is None else str(found)
