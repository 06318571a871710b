"""Translates loops of StableHLO to recursive Relax functions.

A loop whose condition is known while the program is read (every ``jax.lax.scan``, and a
``fori_loop`` with bounds that are constants) is written out, iteration behind iteration. Any other
calls itself, so that a million iterations need no more stack than 31 calls:

    def loop(*carry):           return run(30, *carry) if cond(*carry) else carry
    def run(depth, *carry):     return body(*carry) if depth == 0 else twice(depth, *carry)
    def twice(depth, *carry):
        middle = run(depth - 1, *carry)
        return run(depth - 1, *middle) if cond(*middle) else middle
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import relax
from tvm.relax import op as relax_op

from distir_ext.interop.jax.known import Known, scalar_of
from distir_ext.interop.jax.operations.control_flow import (
    Captures,
    bind,
    branch_of,
    choosing,
    lifted,
    own,
    parameters_of,
)
from distir_ext.interop.jax.program import Program
from distir_ext.interop.jax.stablehlo import Operation, only_block
from distir_ext.interop.jax.table import translates
from distir_ext.interop.jax.writer import Writer, fields_of

_DEPTH = 30  # of a loop that calls itself: 2**30 iterations at most


@translates("stablehlo.while")
def _while(writer: Writer, op: Operation) -> list[Known]:
    start = [writer.known(each) for each in op.operands]
    length, functions = len(writer.bindings), writer.program.functions_so_far()
    values = dict(writer.values)
    unrolled = _unrolled(writer, op, start)
    if unrolled is not None:
        return unrolled
    del writer.bindings[length:]
    writer.values = values  # others may be what is given up
    writer.program.forget_others(functions)
    carry = [writer.part(writer.full(each)) for each in op.operands]
    captures = Captures(writer, op, carry)
    types = [each.ty for each in carry]
    condition = lifted(writer, "condition", only_block(op, 0), types, captures)
    body = lifted(writer, "body", only_block(op, 1), types, captures)
    loop = _loop(writer.program, condition, body, types, [each.ty for each in captures.arguments])
    return fields_of(writer, writer.emit(relax.Call(loop, [*carry, *captures.arguments])))


def _unrolled(writer: Writer, op: Operation, carry: list[Known]) -> list[Known] | None:
    """Unrolls a loop; None if its condition is not known, or holds for too long."""
    condition, body = only_block(op, 0), only_block(op, 1)
    problems = dict(writer.program.problems)
    for _ in range(writer.program.unroll_limit + 1):
        (more,) = writer.block(condition, carry)
        number = scalar_of(more) if isinstance(more, relax.Expr) else None
        if number is None:
            break
        if not bool(number):
            return carry
        carry = writer.block(body, carry)
        if writer.program.problems != problems:
            return carry  # what has no translation is said once, not for every iteration
    return None


def _loop(
    program: Program,
    condition: tvm.ir.GlobalVar,
    body: tvm.ir.GlobalVar,
    carry: Sequence[relax.TensorType],
    captures: Sequence[relax.TensorType],
) -> tvm.ir.GlobalVar:
    """A function that runs a loop; see the head of this file."""
    depth = relax.TensorType((), "int32")

    def later(
        name: str,
        first: Sequence[relax.TensorType],
        write: Callable[[list[relax.Var], relax.Type], relax.Function],
    ) -> tvm.ir.GlobalVar:
        types = own(program, [*carry, *captures])[0]
        result = types[0] if len(carry) == 1 else relax.TupleType(types[: len(carry)])
        every = [*first, *types]
        return program.later(name, every, result, lambda _: write(parameters_of(every), result))

    def loop(arguments: list[relax.Var], result: relax.Type) -> relax.Function:
        asked: list[relax.Binding] = []
        more = bind(program, asked, relax.Call(condition, arguments))
        most = relax.const(_DEPTH, "int32")
        branches = (
            branch_of(program, relax.Call(run, [most, *arguments])),
            branch_of(program, _packed(arguments[: len(carry)])),
        )
        return choosing(arguments, asked, more, branches, result)

    def write_run(arguments: list[relax.Var], result: relax.Type) -> relax.Function:
        asked: list[relax.Binding] = []
        equal = relax_op.equal(arguments[0], relax.const(0, "int32"))
        is_one = bind(program, asked, equal)
        branches = (
            branch_of(program, relax.Call(body, arguments[1:])),
            branch_of(program, relax.Call(twice, arguments)),
        )
        return choosing(arguments, asked, is_one, branches, result)

    def write_twice(arguments: list[relax.Var], result: relax.Type) -> relax.Function:
        constant = arguments[1 + len(carry) :]
        first: list[relax.Binding] = []
        less = relax_op.subtract(arguments[0], relax.const(1, "int32"))
        half = bind(program, first, less)
        middle = bind(program, first, relax.Call(run, [half, *arguments[1:]]))
        fields: list[relax.Expr] = [middle]
        if len(carry) > 1:
            items = [relax.TupleGetItem(middle, index) for index in range(len(carry))]
            fields = [bind(program, first, item) for item in items]
        more = bind(program, first, relax.Call(condition, [*fields, *constant]))
        branches = (
            branch_of(program, relax.Call(run, [half, *fields, *constant])),
            branch_of(program, _packed(fields)),
        )
        return choosing(arguments, first, more, branches, result)

    run = later("run", [depth], write_run)
    twice = later("twice", [depth], write_twice)
    return later("loop", [], loop)


def _packed(fields: Sequence[relax.Expr]) -> relax.Expr:
    return fields[0] if len(fields) == 1 else relax.Tuple(fields)
