"""Says why a tensor is sharded as it is."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import relax

_NAMES_IN_A_MESSAGE = 20


@dataclass(frozen=True)
class Explanation:
    """Why one variable is sharded as it is; prints as text."""

    variable: str
    """The variable's name."""

    lines: tuple[str, ...]
    """For each sharded dimension the chain of operators back to an annotation, then
    redistributions of the variable with the two sides that disagreed."""

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        return str(self)


def explain(mod: tvm.IRModule, variable: str, func: str | None = None) -> Explanation:
    """Explains the sharding of a variable of a propagated module.

    Args:
        mod: What PropagateSharding returned (later passes make other functions).
        variable: The name of a parameter or of a bound variable, as before propagation.
        func: The function to look in; all functions by default.

    Returns:
        The explanation. Mesh axes that were stated without names are called x, y, z, w.

    Raises:
        ValueError: There is no such function or variable, or the module does not come from
            PropagateSharding.
    """
    functions = {
        gv.name_hint: function
        for gv, function in mod.functions.items()
        if isinstance(function, relax.Function) and func in (None, gv.name_hint)
    }
    if not functions:
        names = ", ".join(sorted(gv.name_hint for gv in mod.functions))
        raise ValueError(f"the module has no Relax function {func!r}; it has: {names}")
    native = tvm_ffi.get_global_func("distir.propagation.Explain")
    found = [native(function, variable) for _, function in sorted(functions.items())]
    if all(lines is None for lines in found):
        raise ValueError(
            "nothing is known about this module's shardings: explain reads what PropagateSharding "
            "returned in this process, not the result of later passes or of parsing"
        )
    lines = tuple(str(line) for lines in found if lines is not None for line in lines)
    if not lines:
        known = tvm_ffi.get_global_func("distir.propagation.Variables")
        variables = dict.fromkeys(str(v) for f in functions.values() for v in known(f) or ())
        raise ValueError(
            f"no variable {variable!r} in {', '.join(sorted(functions))}; "
            f"there are: {_shortened(list(variables))}"
        )
    return Explanation(variable, lines)


def _shortened(names: list[str]) -> str:
    rest = len(names) - _NAMES_IN_A_MESSAGE
    shown = ", ".join(names[:_NAMES_IN_A_MESSAGE])
    return f"{shown} and {rest} more" if rest > 0 else shown
