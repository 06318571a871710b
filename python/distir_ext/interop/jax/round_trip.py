"""Rewrites the custom calls by which HLO states Shardy's operations as these operations.

What an exporter writes for ``sdy.manual_computation``

    %1 = stablehlo.custom_call @xla.sdy.GlobalToLocalShape(%0) {mhlo.frontend_attributes = {..}}
    %2 = call @xla.sdy.manual_computation_body(%1) {mhlo.frontend_attributes = {
        xla.sdy.in_shardings = "..", xla.sdy.out_shardings = "..", xla.sdy.manual_axes = ".."}}
    %3 = stablehlo.custom_call @xla.sdy.LocalToGlobalShape(%2) {mhlo.frontend_attributes = {..}}

is this operation on %0 again, whose body is that of the function. Barriers, groups and sharding
rules are texts of frontend attributes, too.
"""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir

from distir_ext.interop.jax.stablehlo import (
    FRONTEND,
    Operation,
    frontend_text,
    functions_of,
    nested_operations,
    operations_of,
    symbol,
    target_of,
)

SHARDING_RULE = "sdy.sharding_rule"
FRONTEND_RULE = "xla.sdy.sharding_rule"

_BARRIER = "xla.sdy.PropagationBarrier"
_GROUP = "xla.sdy.ShardingGroup"
_TO_LOCAL = "xla.sdy.GlobalToLocalShape"
_TO_GLOBAL = "xla.sdy.LocalToGlobalShape"
_BODY = "manual_computation_body"
_NUMBERS = {
    _BARRIER: ("sdy.propagation_barrier", "allowed_direction", "xla.sdy.allowed_direction"),
    _GROUP: ("sdy.sharding_group", "group_id", "xla.sdy.sharding_group_id"),
}
_KEPT = ("sdy.sharding", FRONTEND)
_OF_MANUAL = ("in_shardings", "out_shardings", "manual_axes")


def with_operations(module: Any) -> Any:
    """The module with Shardy's operations; itself where no custom call stands for one.

    Args:
        module: An ``ir.Module``, which is not changed.
    """
    if not any(_stands_for_one(op) for op in nested_operations(module.operation)):
        return module
    with module.context:
        copy = ir.Module.parse(module.operation.get_asm(enable_debug_info=True))
        functions = functions_of(copy)
        done: set[str] = set()
        for name in functions:
            _rewrite(name, functions, done)
    return copy


def _rewrite(name: str, functions: dict[str, Operation], done: set[str]) -> None:
    """Rewrites a function, and before it those that are bodies of its operations."""
    if name in done:
        return
    done.add(name)
    for op in list(nested_operations(functions[name])):
        if op.name == "func.call" and _BODY in (callee := symbol(op, "callee")):
            if callee in functions:
                _rewrite(callee, functions, done)
                _manual_computation(op, functions[callee])
        elif (target := target_of(op)) in _NUMBERS:
            _of_number(op, *_NUMBERS[target])
        elif (rule := frontend_text(op.attributes, FRONTEND_RULE)) is not None:
            op.attributes[SHARDING_RULE] = ir.Attribute.parse(rule)


def _stands_for_one(op: Operation) -> bool:
    return (
        target_of(op) in (*_NUMBERS, _TO_LOCAL, _TO_GLOBAL)
        or (op.name == "func.call" and _BODY in symbol(op, "callee"))
        or frontend_text(op.attributes, FRONTEND_RULE) is not None
    )


def _of_number(op: Operation, name: str, attribute: str, frontend: str) -> None:
    """Replaces a custom call whose frontend attribute is a number."""
    number = frontend_text(op.attributes, frontend)
    if number is None:
        return
    kept = {each: op.attributes[each] for each in _KEPT if each in op.attributes}
    results = [] if name == _NUMBERS[_GROUP][0] else [each.type for each in op.results]
    made = ir.Operation.create(
        name,
        results,
        list(op.operands),
        attributes={**kept, attribute: ir.Attribute.parse(number)},
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    for old, new in zip(op.results, made.results, strict=bool(results)):
        old.replace_all_uses_with(new)
    op.erase()


def _manual_computation(call: Operation, body: Operation) -> None:
    """Replaces the call of a body between two custom calls.

    Values that enter or leave without one are refused where they are used.
    """
    stated = {each: frontend_text(call.attributes, f"xla.sdy.{each}") for each in _OF_MANUAL}
    if None in stated.values():
        return
    before = {each.owner for each in call.operands if not isinstance(each.owner, ir.Block)}
    after = {use.owner.operation for each in call.results for use in each.uses}
    if len(before) > 1 or any(target_of(each) != _TO_LOCAL for each in before):
        return
    if len(after) > 1 or any(target_of(each) != _TO_GLOBAL for each in after):
        return
    results = [each.type for op in after for each in op.results]
    made = ir.Operation.create(
        "sdy.manual_computation",
        results,
        [each for op in before for each in op.operands],
        attributes={name: ir.Attribute.parse(words) for name, words in stated.items() if words},
        regions=1,
        loc=call.location,
        ip=ir.InsertionPoint(call),
    )
    copy = body.clone(ip=ir.InsertionPoint(call))
    copy.regions[0].blocks[0].append_to(made.regions[0])
    copy.erase()
    *_, end = operations_of(made.regions[0].blocks[0])
    values, point = list(end.operands), ir.InsertionPoint(end)
    ir.Operation.create("sdy.return", operands=values, loc=end.location, ip=point)
    end.erase()
    for op in after:
        for old, new in zip(op.results, made.results, strict=True):
            old.replace_all_uses_with(new)
        op.erase()
    call.erase()
    for op in before:
        op.erase()
