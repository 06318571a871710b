"""Reports passes of TVM that cannot run between PropagateSharding and LowerDistIR, in one error."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from distir_ext.native.steps import phase

# Needs of passes of TVM 0.27 that DTensors do not meet in any program; other passes fail only for
# some programs. tests/pipelines/test_tvm_passes.py tries all passes of relax.transform.
_NEEDS = {
    "BindParams": "a weight that is bound is a Tensor, not a DTensor",
    "CallTIRRewrite": "it takes the result of R.call_tir for a Tensor",
    "ConvertLayout": "it makes each variable of DTensor type anew",
    "FoldConstant": "it legalises operators, which read dtypes of Tensors",
    "RemoveRedundantReshape": "it reads shapes of Tensors",
    "RunCodegen": "it reads types of Tensors",
    "ToMixedPrecision": "it casts Tensors only",
    "VMShapeLower": "it lowers shapes of what workers run",
}
_WHERE = (
    "run it before dx.transform.PropagateSharding (on the annotated module, or before it is "
    "annotated), or behind dx.transform.LowerDistIR; docs/passes.md lists what is safe where"
)


@tvm.instrument.pass_instrument
class CheckPasses:
    """A pass instrument that says in one error which pass cannot run, or has broken a module.

    It looks at modules with DTensors only. TVM 0.27 makes variables of DTensor type anew, so passes
    that copy what they do not change leave uses of variables that nothing defines; others read
    types that DTensors do not have.

    ``import distir_ext`` puts one with ``broken=False`` into TVM's default pass context. A pass
    context of your own needs it among its ``instruments``.

    Args:
        broken: Whether to look behind each pass for what it has broken; the next pass of this
            package would refuse it, too, but does not know which pass it was.

    Raises:
        ValueError: From the pass: it cannot run on DTensors, or has left such a use. The message
            names the pass, the phase of the module, and where the pass can run.
    """

    def __init__(self, broken: bool = True) -> None:
        self.broken = broken

    def run_before_pass(self, mod: Any, info: tvm.transform.PassInfo) -> None:
        """Raises an error for a pass that cannot run on DTensors."""
        name = str(info.name)
        if name in _NEEDS and (reached := _phase_of_dtensors(mod)):
            raise ValueError(
                f"{name} cannot run on DTensors, and the module is {reached}: {_NEEDS[name]}. "
                f"Instead {_WHERE}"
            )

    def run_after_pass(self, mod: Any, info: tvm.transform.PassInfo) -> None:
        """Raises an error if a pass has broken the module."""
        if not self.broken or not (reached := _phase_of_dtensors(mod)):
            return
        for gv, function in mod.functions_items():
            free = relax.analysis.free_vars(function) if _is_relax(function) else ()
            if free:
                names = ", ".join(f"`{var.name}`" for var in free[:3])
                raise ValueError(
                    f"{info.name} has broken function `{gv.name_hint}`: it uses {names}, which "
                    f"nothing defines, since TVM makes variables of DTensor type anew. The module "
                    f"is {reached}; {_WHERE}"
                )


def install() -> None:
    """Puts the check into TVM's pass context, unless that has instruments already."""
    current = tvm.transform.PassContext.current()
    if not current.instruments:
        current.override_instruments([CheckPasses(broken=False)])


def _is_relax(function: Any) -> bool:
    return isinstance(function, relax.Function)


def _phase_of_dtensors(mod: Any) -> str | None:
    reached = phase(mod) if isinstance(mod, tvm.IRModule) else None
    return reached if reached in ("propagated", "legalized") else None
