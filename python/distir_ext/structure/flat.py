"""A function of a module as one body, for analyses that follow values from product to product.

Calls of other functions are replaced by what these compute, and a parameter that is a tuple by a
parameter for each tensor, called as plans call it: ``weights.0``.
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax

from distir_ext.structure.annotated_function import bindings_of
from distir_ext.structure.program import Program

_NAME = "flat"


def flat_function(mod: tvm.IRModule, function: relax.Function) -> relax.Function:
    """Returns a function without calls of others, and without parameters that are tuples.

    Functions that call themselves are still called.

    Args:
        mod: Has the functions that are called.
        function: The function; ``num_input`` of its parameters are inputs.
    """
    callees: dict[tvm.ir.GlobalVar, dict[tvm.ir.GlobalVar, None]] = {}
    pending = list(_called(mod, function))
    while pending:
        name = pending.pop()
        if name not in callees:
            callees[name] = _called(mod, mod[name])
            pending += callees[name]
    inlined = {name: mod[name] for name in callees if name not in _reached(callees, name)}
    while any(name in inlined for name in _called(mod, function)):
        function = function.inline_functions(inlined)
    return _without_tuples(function)


def _called(mod: tvm.IRModule, function: relax.Function) -> dict[tvm.ir.GlobalVar, None]:
    values = (binding.value for binding in bindings_of(function.body))
    names = (value.op for value in values if isinstance(value, relax.Call))
    return {
        name: None
        for name in names
        if isinstance(name, tvm.ir.GlobalVar) and isinstance(mod.functions[name], relax.Function)
    }


def _reached(
    callees: dict[tvm.ir.GlobalVar, dict[tvm.ir.GlobalVar, None]], start: tvm.ir.GlobalVar
) -> set[tvm.ir.GlobalVar]:
    found: set[tvm.ir.GlobalVar] = set()
    pending = list(callees[start])
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += callees[name]
    return found


def _without_tuples(function: relax.Function) -> relax.Function:
    if not any(isinstance(param.ty, relax.TupleType) for param in function.params):
        return function
    inputs = Program(function).inputs
    params: list[relax.Var] = []
    bound: list[relax.Binding] = []
    count = 0
    for param in function.params:
        fields = [param]
        if isinstance(param.ty, relax.TupleType):
            packed = _packed(param.ty, str(param.name))
            fields = list(_variables(packed))
            bound.append(relax.VarBinding(param, packed))
        params += fields
        count += len(fields) if param in inputs else 0
    body = relax.SeqExpr([relax.BindingBlock(bound), *function.body.blocks], function.body.body)
    flat = relax.Function(params, body, function.ret_ty, function.is_pure)
    flat = flat.with_attr("num_input", count).with_attr("global_symbol", _NAME)
    mod = relax.transform.CanonicalizeBindings()(tvm.IRModule({_NAME: flat}))
    return mod[_NAME]


def _packed(type_: relax.TupleType, name: str) -> relax.Tuple:
    return relax.Tuple(
        [
            _packed(field, f"{name}.{index}")
            if isinstance(field, relax.TupleType)
            else relax.Var(f"{name}.{index}", field)
            for index, field in enumerate(type_.fields)
        ]
    )


def _variables(packed: relax.Tuple) -> Iterator[relax.Var]:
    for field in packed.fields:
        if isinstance(field, relax.Tuple):
            yield from _variables(field)
        else:
            yield field
