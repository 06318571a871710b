"""Passes that replace calls of operators by other operators, before kernels are chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.dpl import is_op, rewrite_call, wildcard

__all__ = ["rewrite_calls"]


def rewrite_calls(
    operators: Mapping[str, int], rewrite: Callable[[relax.Call], relax.Expr], name: str
) -> tvm.transform.Pass:
    """A pass that gives each call of some operators to a function.

    Args:
        operators: The operators, and the number of operands of each.
        rewrite: Returns what replaces a call, or the call.
        name: Name of the pass.
    """
    patterns = [
        is_op(operator)(*(wildcard() for _ in range(count)))
        for operator, count in operators.items()
    ]
    calls = tvm_ffi.get_global_func("distir.rules.CallsOperator")

    def rewritten(found: relax.Expr, _: object) -> relax.Expr:
        # A variable that is bound to a call matches, too.
        return rewrite(found) if isinstance(found, tvm.ir.Call) else found

    def apply(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        del context
        result = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for variable, function in mod.functions_items():
            if isinstance(function, relax.Function) and calls(function, list(operators)):
                for pattern in patterns:
                    function = rewrite_call(pattern, rewritten, function)
                result.update_func(variable, function)
        return result

    return tvm.transform.module_pass(apply, opt_level=0, name=name)
