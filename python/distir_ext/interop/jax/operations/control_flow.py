"""Calls and branches."""

from __future__ import annotations

import graphlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as relax_op

from distir_ext._errors.spelling import did_you_mean
from distir_ext.interop.jax.shardings import argument_sharding
from distir_ext.interop.jax.sizes import Sizes, replaced, shape_of_type, variables_of
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    Value,
    nested_operations,
    only_block,
    operations_of,
    symbol,
    text,
)
from distir_ext.interop.jax.table import HANDLERS, translates
from distir_ext.interop.jax.writer import (
    Known,
    Program,
    Stretched,
    Writer,
    constant_of,
    relax_type,
    result_type,
)

_WRAPPED = "_wrapped_jax_export_main"  # a program with sizes; main only computes them
_SMALL = 16  # operations of a function that is written where it is called


# ---- calls


@translates("func.call")
def _call(writer: Writer, op: Operation) -> list[Known]:
    return call(writer, symbol(op, "callee"), list(op.operands))


def call(writer: Writer, name: str, operands: Sequence[Value]) -> list[Known]:
    """A call of a function of the module; small ones are written in place.

    So are those that are given a known index, since what is sliced by it is a slice then.
    """
    program = writer.program
    if name not in program.functions:
        raise UnsupportedError(f"of @{name}, which the module lacks")
    function = program.functions[name]
    block = only_block(function)
    if name == _WRAPPED:  # whose shardings main states, too
        return writer.block(block, [writer.values[each] for each in operands])
    given = given_to(writer, [writer.values[each] for each in operands])
    has_index = any(
        (number := writer.constant(each)) is not None and number.dtype.kind in "iu"
        for each in operands
    )
    if has_index or _is_small(block) or given is None:
        arguments = [
            _annotated(writer, writer.values[each], function, "arg_attrs", index)
            for index, each in enumerate(operands)
        ]
        results = writer.block(block, arguments)
        return [
            _annotated(writer, each, function, "res_attrs", index)
            for index, each in enumerate(results)
        ]
    if not any(isinstance(each, Sizes) for each in given) and not variables_in(given):
        callee = program.symbol_of(name, lambda op: function_of(program, op, given))
    else:
        key = f"{name}({', '.join(map(str, given))})"
        callee = program.special(name, key, lambda op: function_of(program, op, given))
    tensors = zip(operands, given, strict=True)
    arguments = [writer.full(each) for each, kind in tensors if not isinstance(kind, Sizes)]
    return fields_of(writer, writer.emit(relax.Call(callee, arguments)))


Given: TypeAlias = relax.TensorType | Sizes
"""What a function knows of an argument: its type, or the sizes that it is."""


def variables_in(given: Sequence[Given]) -> dict[Any, None]:
    """The variables of what a function is given."""
    return variables_of(
        size
        for each in given
        for size in (each.values if isinstance(each, Sizes) else shape_of_type(each))
    )


def _given(known: Known) -> Given:
    if isinstance(known, Stretched):
        return relax.TensorType(known.shape, known.base.ty.dtype)
    return known if isinstance(known, Sizes) else known.ty


def given_to(writer: Writer, arguments: Sequence[Known]) -> list[Given] | None:
    """What a function of its own knows of these arguments, by variables of its own.

    Returns:
        None if it cannot have such variables: each has to be a dimension of an argument.
    """
    given = [_given(each) for each in arguments]
    variables = variables_in(given)
    if not variables:
        return given
    plain = {
        size
        for each in given
        if not isinstance(each, Sizes)
        for size in shape_of_type(each)
        if size in variables
    }
    if plain != set(variables):
        return None
    own = {each: writer.program.algebra.like(each) for each in variables}
    return [
        Sizes(tuple(replaced(size, own) for size in each.values), each.dtype, each.shape)
        if isinstance(each, Sizes)
        else relax.TensorType([replaced(size, own) for size in shape_of_type(each)], each.dtype)
        for each in given
    ]


def recursive(functions: Mapping[str, Operation]) -> str | None:
    """A function of a module that calls itself, maybe by others; None if there is none.

    StableHLO has no such functions.
    """
    callees = {
        name: {symbol(op, "callee") for op in nested_operations(each) if op.name == "func.call"}
        for name, each in functions.items()
    }
    try:
        graphlib.TopologicalSorter(callees).prepare()
    except graphlib.CycleError as error:
        return str(error.args[1][0])
    return None


def _is_small(block: Any) -> bool:
    inner = [each for each in operations_of(block) if each.name != "stablehlo.constant"]
    return len(inner) <= _SMALL and not any(
        each.name == "func.call" or len(each.regions) for each in inner
    )


def fields_of(writer: Writer, made: relax.Expr) -> list[Known]:
    """A result, or the fields of one that is a tuple."""
    if not isinstance(made.ty, relax.TupleType):
        return [made]
    return [writer.emit(relax.TupleGetItem(made, i)) for i in range(len(made.ty.fields))]


def function_of(
    program: Program,
    op: Operation,
    given: Sequence[Given],
    names: Sequence[str] | None = None,
    order: Sequence[int] | None = None,
) -> relax.Function:
    """The Relax function of a function of StableHLO.

    Args:
        program: What it belongs to.
        op: The ``func.func``.
        given: What it knows of its arguments; sizes are no parameters.
        names: Of its arguments.
        order: Of its parameters: which of the operation's arguments each is.
    """
    block = only_block(op)
    order = list(order) if order is not None else list(range(len(given)))
    order = [index for index in order if not isinstance(given[index], Sizes)]
    names = names or [f"arg{index}" for index in range(len(given))]
    writer = Writer(program, [names[index] for index in order], [given[index] for index in order])
    known: list[Known] = [_plain(each) for each in given]
    for parameter, index in zip(writer.parameters, order, strict=True):
        known[index] = _annotated(writer, parameter, op, "arg_attrs", index)
    results = writer.block(block, known)
    results = [
        _annotated(writer, each, op, "res_attrs", index) for index, each in enumerate(results)
    ]
    return writer.function(results)


def _annotated(writer: Writer, known: Known, op: Operation, kind: str, index: int) -> Known:
    sharding = argument_sharding(op, kind, index)
    if sharding is None or isinstance(known, Sizes):
        return known
    entity = f"parameter {known.name}" if isinstance(known, relax.Var) else "a value"
    if kind == "res_attrs":
        entity = f"result {index}"
    try:
        return writer.annotated(known, sharding, entity)
    except UnsupportedError as error:
        writer.program.problem(op, f"{entity} {error}")
        return known


def _plain(given: Given) -> Known:
    """Sizes that are integers, as constants."""
    if isinstance(given, Sizes) and all(isinstance(each, int) for each in given.values):
        return constant_of(np.array(given.values).reshape(given.shape), given.dtype, given.shape)
    return given


@translates("stablehlo.composite")
def _composite(writer: Writer, op: Operation) -> Any:
    """What the composite names, if it is known, or else the function that it is composed by."""
    handler = HANDLERS.get(text(op, "name"))
    if handler is not None:
        return handler(writer, op)
    return call(writer, symbol(op, "decomposition"), list(op.operands))


_CUSTOM_CALLS = {"mhlo.erf": "chlo.erf", "mhlo.topk": "chlo.top_k", "mhlo.tan": "chlo.tan"}


@translates("stablehlo.custom_call")
def _custom_call(writer: Writer, op: Operation) -> Any:
    target = text(op, "call_target_name")
    if target == "shape_assertion":
        return HANDLERS[target](writer, op)
    if target not in _CUSTOM_CALLS:
        raise UnsupportedError(
            f"of {target!r} has no translation{did_you_mean(target, _CUSTOM_CALLS)}"
        )
    return HANDLERS[_CUSTOM_CALLS[target]](writer, op)


# ---- branches


@translates("stablehlo.case", "stablehlo.if")
def _case(writer: Writer, op: Operation) -> list[Known]:
    count = len(op.regions)
    # A case takes its last branch for all indices without one; an if takes its first if true.
    place = writer.constant(op.operands[0])
    if place is not None:
        index = int(place) if op.name == "stablehlo.case" else 1 - int(place)
        block = only_block(op, index if 0 <= index < count else count - 1)
        return writer.block(block, [])
    captures = captured(op)
    branches = [
        lifted(writer, f"branch_{index}", only_block(op, index), [], captures)
        for index in range(count)
    ]
    operands = [writer.full(op.operands[0]), *(writer.full(each) for each in captures)]
    choice = _chooser(
        writer.program,
        branches,
        [each.ty for each in operands],
        result_type([each.type for each in op.results]),
        0 if op.name == "stablehlo.case" else None,
    )
    return fields_of(writer, writer.emit(relax.Call(choice, operands)))


def _chooser(
    program: Program,
    branches: Sequence[tvm.ir.GlobalVar],
    types: Sequence[relax.Type],
    result: relax.Type,
    first: int | None,
) -> tvm.ir.GlobalVar:
    """A function that takes one of its branches by its first argument, which they are not given.

    Args:
        program: What it belongs to.
        branches: The functions.
        types: The types of its arguments.
        result: The type of all branches.
        first: The number of the first branch; None if the argument is a condition.
    """
    rest = branches[1:] or branches
    others = rest[0] if len(rest) == 1 else _chooser(program, rest, types, result, (first or 0) + 1)

    def write(_: tvm.ir.GlobalVar) -> relax.Function:
        parameters = parameters_of(types)
        bindings: list[relax.Binding] = []
        condition: relax.Expr = parameters[0]
        if first is not None:
            number = relax.const(first, str(condition.ty.dtype))
            condition = bind(program, bindings, relax_op.equal(condition, number))
        given = parameters[1:] if len(rest) == 1 else parameters
        taken = branch_of(program, relax.Call(branches[0], parameters[1:]))
        other = branch_of(program, relax.Call(others, given))
        return choosing(parameters, bindings, condition, (taken, other), result)

    return program.later("choose", types, result, write)


def parameters_of(types: Sequence[relax.Type]) -> list[relax.Var]:
    """Parameters of these types."""
    return [relax.Var(f"arg{index}", each) for index, each in enumerate(types)]


def bind(program: Program, bindings: list[relax.Binding], expr: relax.Expr) -> relax.Var:
    """A variable that is bound to an expression."""
    expr = program.builder.normalize(expr)
    variable = relax.Var("lv", expr.ty)
    bindings.append(relax.VarBinding(variable, expr))
    return variable


def branch_of(program: Program, value: relax.Expr) -> relax.SeqExpr:
    """A branch that is one value."""
    bindings: list[relax.Binding] = []
    last = bind(program, bindings, value)
    return relax.SeqExpr([relax.BindingBlock(bindings)], last)


def choosing(
    parameters: Sequence[relax.Var],
    bindings: list[relax.Binding],
    condition: relax.Expr,
    branches: tuple[relax.SeqExpr, relax.SeqExpr],
    result: relax.Type,
) -> relax.Function:
    """A function that returns what one of two branches ends with."""
    chosen = relax.If(condition, *branches)
    relax.expr._update_type(chosen, result)
    value = relax.Var("result", result)
    block = relax.BindingBlock([*bindings, relax.VarBinding(value, chosen)])
    return relax.Function(list(parameters), relax.SeqExpr([block], value), result, is_pure=True)


def captured(op: Operation) -> list[Value]:
    """The values from outside that the regions of an operation read, in order."""
    inside: set[Value] = set()
    found: dict[Value, None] = {}
    for inner in nested_operations(op):
        if inner is not op:
            found.update((each, None) for each in inner.operands if each not in inside)
        inside.update(inner.results)
        for region in inner.regions:
            for block in region.blocks:
                inside.update(block.arguments)
    return [each for each in found if each not in inside]


def lifted(
    writer: Writer, name: str, block: Any, arguments: Sequence[Any], captures: Sequence[Value]
) -> tvm.ir.GlobalVar:
    """A private function of a region: of its arguments, and of what it reads from outside.

    Args:
        writer: Of the function around it, which knows what is constant.
        name: What it is called, up to a number.
        block: The region's.
        arguments: The types of its arguments.
        captures: What it may read; scalars that are known stay known.
    """
    program = writer.program
    types = [*arguments, *(each.type for each in captures)]
    numbers = {each: writer.known(each) for each in captures if writer.constant(each) is not None}
    results = [each.type for each in list(operations_of(block))[-1].operands]
    kinds = [relax_type(each) for each in types]

    def write(_: tvm.ir.GlobalVar) -> relax.Function:
        inner = Writer(program, [f"arg{i}" for i in range(len(types))], kinds)
        for value, parameter in zip(captures, inner.parameters[len(arguments) :], strict=True):
            inner.set(value, numbers.get(value, parameter))
        return inner.function(inner.block(block, inner.parameters[: len(arguments)]))

    return program.later(name, kinds, result_type(results), write)
