"""Computes gradients of a scalar by TVM's Gradient; errors name operators without a gradient."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax

from distir_ext.text.printable import shown
from distir_ext.training.gradients import ATTRIBUTE


def differentiated(
    function: relax.Function, params: Mapping[str, relax.Var], func: str
) -> tuple[relax.Function, list[relax.Expr], list[relax.Var]]:
    """A function of one dataflow block, with the gradients of its first result.

    Args:
        function: It returns a tuple, whose first field is a scalar.
        params: Those of its parameters that gradients are wanted for, by the name that messages
            have.
        func: Its name in messages.

    Returns:
        The function, whose body has the results and the gradients; the results; the gradients.

    Raises:
        ValueError: An operator between a parameter and the scalar has no gradient, or the scalar
            does not depend on a parameter.
    """
    _check_operators(function, params, func)
    mod = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    chosen = list(params.values())
    adjoint = relax.transform.Gradient("main", require_grads=chosen, target_index=0)(mod)[
        "main_adjoint"
    ]
    bound = {
        binding.var: binding.value for block in adjoint.body.blocks for binding in block.bindings
    }

    def fields(value: relax.Expr) -> list[relax.Expr]:
        while isinstance(value, relax.Var):
            value = bound[value]
        return list(value.fields)

    results, gradients = fields(adjoint.body.body)
    return adjoint, fields(results), fields(gradients)


def _check_operators(function: relax.Function, params: Mapping[str, relax.Var], func: str) -> None:
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    source: dict[relax.Var, str] = {param: name for name, param in params.items()}
    reads: dict[relax.Var, list[relax.Var]] = {}
    for binding in bindings:
        reads[binding.var] = list(relax.analysis.free_vars(binding.value))
        first = next((each for each in reads[binding.var] if each in source), None)
        if first is not None and _is_float(binding.var.ty):
            source[binding.var] = source[first]
    bound = {binding.var: binding.value for binding in bindings}
    needed = set(relax.analysis.free_vars(_first(function.body.body, bound)))
    for binding in reversed(bindings):
        if binding.var not in needed or binding.var not in source:
            continue
        needed.update(reads[binding.var])
        value = binding.value
        if not isinstance(value, tvm.ir.Call):
            continue
        where = (
            f"{shown(str(binding.var.name))} of {func}, which the loss reaches the parameter "
            f"{shown(source[binding.var])} through"
        )
        if isinstance(value.op, tvm.ir.Op):
            if value.op.get_attr(ATTRIBUTE) is None:
                raise ValueError(
                    f"the operator {value.op.name} has no gradient: {where}; it is registered by "
                    f'tvm.ir.register_op_attr("{value.op.name}", "{ATTRIBUTE}", gradient), or '
                    "write the value with other operators"
                )
        else:
            raise ValueError(
                f"a call of the function {value.op} has no gradient: {where}; inline it, as "
                "relax.transform.InlinePrivateFunctions does"
            )
    missing = [name for name, param in params.items() if param not in needed]
    if missing:
        raise ValueError(
            f"the loss does not depend on the parameter {shown(missing[0])} of {func}; params= "
            "names those that are trained"
        )


def _first(value: relax.Expr, bound: dict[relax.Var, relax.Expr]) -> relax.Expr:
    while isinstance(value, relax.Var):
        value = bound[value]
    return value.fields[0]


def _is_float(type_: relax.Type) -> bool:
    if isinstance(type_, relax.TupleType):
        return any(_is_float(field) for field in type_.fields)
    dtype = getattr(type_, "dtype", None)
    return dtype is not None and "float" in str(dtype)
