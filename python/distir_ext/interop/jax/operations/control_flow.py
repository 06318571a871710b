"""Translates calls and branches of StableHLO."""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax import op as relax_op

from distir_ext.annotate.open_regions import Region
from distir_ext.interop.jax.known import Known, Stretched, constant_of
from distir_ext.interop.jax.program import Program
from distir_ext.interop.jax.shardings import argument_sharding
from distir_ext.interop.jax.sizes import Sizes, replaced, shape_of_type, variables_of
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    Value,
    captured,
    nested_operations,
    only_block,
    operations_of,
    symbol,
    text,
)
from distir_ext.interop.jax.table import HANDLERS, translates
from distir_ext.interop.jax.writer import Writer, fields_of

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
    region = writer.region

    def write(op: Operation) -> relax.Function:
        return function_of(program, op, given, region=region)

    if not any(isinstance(each, Sizes) for each in given) and not variables_in(given):
        callee = program.symbol_of(name, region, write)
    else:
        key = f"{name}({', '.join(map(str, given))})", region
        callee = program.special(name, key, write)
    tensors = zip(operands, given, strict=True)
    arguments = [
        writer.part(writer.full(each)) for each, kind in tensors if not isinstance(kind, Sizes)
    ]
    return fields_of(writer, writer.emit(relax.Call(callee, arguments)))


Given: TypeAlias = relax.TensorType | Sizes
"""Knowledge of a function about an argument: its type, or the sizes that it is."""


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
    """Returns the types of arguments for a function of its own, in variables of its own.

    Returns:
        None if it cannot have such variables: each has to be a dimension of an argument.
    """
    given = [_given(each) for each in arguments]
    tensors = [each for each in given if not isinstance(each, Sizes)]
    if not_in(tensors, variables_in(given)):
        return None
    return own(writer.program, given)[0]


def not_in(tensors: Sequence[relax.TensorType], variables: Iterable[Any]) -> list[Any]:
    """The variables that are no dimension of a tensor."""
    plain = {size for each in tensors for size in shape_of_type(each) if isinstance(size, tirx.Var)}
    return [each for each in variables if each not in plain]


def own(program: Program, given: Sequence[Given]) -> tuple[list[Given], dict[Any, Any]]:
    """Renames the variables of types to new ones; also returns the map from old to new."""
    new = {each: program.algebra.like(each) for each in variables_in(given)}
    return [cast("Given", renamed(each, new)) for each in given], new


def renamed(known: Given | Known, new: Mapping[Any, Any]) -> Given | Known:
    """Sizes, a type or a stretched constant by other variables."""
    if isinstance(known, Sizes):
        values = tuple(replaced(size, new) for size in known.values)
        return Sizes(values, known.dtype, known.shape)
    if isinstance(known, Stretched):
        return Stretched(known.base, tuple(replaced(size, new) for size in known.shape))
    if not new or not isinstance(known, relax.TensorType):
        return known
    return relax.TensorType([replaced(size, new) for size in shape_of_type(known)], known.dtype)


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


def function_of(
    program: Program,
    op: Operation,
    given: Sequence[Given],
    names: Sequence[str] | None = None,
    order: Sequence[int] | None = None,
    region: Region | None = None,
) -> relax.Function:
    """The Relax function of a function of StableHLO.

    Args:
        program: The program that it belongs to.
        op: The ``func.func``.
        given: Types of its arguments, or the sizes that they are; sizes are no parameters.
        names: Of its arguments.
        order: Of its parameters: which of the operation's arguments each is.
        region: The manual region that calls it.
    """
    block = only_block(op)
    order = list(order) if order is not None else list(range(len(given)))
    order = [index for index in order if not isinstance(given[index], Sizes)]
    names = names or [f"arg{index}" for index in range(len(given))]
    types = [given[index] for index in order]
    writer = Writer(program, [names[index] for index in order], types, region)
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
    """Translates a known composite by its name, others by their decomposition."""
    handler = HANDLERS.get(text(op, "name"))
    if handler is not None:
        return handler(writer, op)
    return call(writer, symbol(op, "decomposition"), list(op.operands))


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
    captures = Captures(writer, op)
    branches = [
        lifted(writer, f"branch_{index}", only_block(op, index), [], captures)
        for index in range(count)
    ]
    place_of = writer.part(writer.full(op.operands[0]))
    first = 0 if op.name == "stablehlo.case" else None
    types = [each.ty for each in (place_of, *captures.arguments)]
    choice = _chooser(writer.program, branches, types, first)
    return fields_of(writer, writer.emit(relax.Call(choice, [place_of, *captures.arguments])))


def _chooser(
    program: Program,
    branches: Sequence[tvm.ir.GlobalVar],
    types: Sequence[relax.TensorType],
    first: int | None,
) -> tvm.ir.GlobalVar:
    """A function that takes one of its branches by its first argument, which they are not given.

    Args:
        program: The program that it belongs to.
        branches: The functions.
        types: The types of its arguments.
        first: The number of the first branch; None if the argument is a condition.
    """
    rest = branches[1:] or branches
    others = rest[0] if len(rest) == 1 else _chooser(program, rest, types, (first or 0) + 1)
    parameters = parameters_of(own(program, types)[0])
    bindings: list[relax.Binding] = []
    condition: relax.Expr = parameters[0]
    if first is not None:
        number = relax.const(first, str(condition.ty.dtype))
        condition = bind(program, bindings, relax_op.equal(condition, number))
    given = parameters[1:] if len(rest) == 1 else parameters
    taken = branch_of(program, relax.Call(branches[0], parameters[1:]))
    other = branch_of(program, relax.Call(others, given))
    chosen = choosing(parameters, bindings, condition, (taken, other), taken.body.ty)
    return program.add("choose", chosen)


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


class Captures:
    """Values outside that the regions of an operation read.

    Args:
        writer: Of the function around it.
        op: The operation.
        carry: Further arguments of its regions.

    Attributes:
        known: Known values, numbers and sizes, which its functions know, too.
        tensors: The other values.
        arguments: These in Relax, which are the last arguments of its functions; behind them
            those that have the sizes that none of these has.
    """

    def __init__(self, writer: Writer, op: Operation, carry: Sequence[relax.Expr] = ()) -> None:
        self.known: dict[Value, Known] = {}
        self.tensors: list[Value] = []
        for value in captured(op):
            known = writer.values[value]
            if writer.integers(value) is not None or writer.constant(value) is not None:
                self.known[value] = known
            else:
                self.tensors.append(value)
        self.arguments = [writer.part(writer.full(each)) for each in self.tensors]
        types = [each.ty for each in (*carry, *self.arguments)]
        sizes = [writer.shape(each) for each in self.known.values()]
        sizes += [each.values for each in self.known.values() if isinstance(each, Sizes)]
        variables = variables_in(types) | variables_of(size for each in sizes for size in each)
        for variable in not_in(types, variables):
            self.arguments.append(writer.part(_having(writer, variable)))


def _having(writer: Writer, variable: Any) -> relax.Var:
    """A parameter that has a variable as a dimension: functions have one for each of theirs."""
    for parameter in writer.parameters:
        if not not_in([parameter.ty], [variable]):
            return parameter
    raise UnsupportedError(f"of the size {variable}, which no argument has")


def lifted(
    writer: Writer, name: str, block: Any, carry: Sequence[relax.TensorType], captures: Captures
) -> tvm.ir.GlobalVar:
    """A private function of a region: of its arguments, and of what it reads from outside.

    Args:
        writer: Of the function around it.
        name: Its name, up to a number.
        block: The region's.
        carry: The types of its arguments.
        captures: Values outside that it may read.
    """
    program = writer.program
    types, new = own(program, [*carry, *(each.ty for each in captures.arguments)])
    inner = Writer(program, [f"arg{i}" for i in range(len(types))], types, writer.region)
    for value, known in captures.known.items():
        inner.set(value, renamed(known, new))
    for value, parameter in zip(captures.tensors, inner.parameters[len(carry) :], strict=False):
        inner.set(value, parameter)
    return program.add(name, inner.function(inner.block(block, inner.parameters[: len(carry)])))
