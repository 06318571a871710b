"""Reads the argument names and types of a StableHLO module, with variables for open sizes.

In a program with symbolic shapes, ``main`` only finds and asserts sizes, and calls the program:

    %0 = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x16xf32>) -> tensor<i32>
    stablehlo.custom_call @shape_assertion(%1, %0) {error_message = "... specifications:
        x.shape = (rows, 16),mask.shape = (rows,). ..."}
    call @_wrapped_jax_export_main(%0, %x, %mask)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from tvm import relax

from distir_ext.interop.jax.operations.control_flow import Given
from distir_ext.interop.jax.program import Program
from distir_ext.interop.jax.sizes import Algebra, Size, Sizes
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    argument_name,
    dtype_of,
    global_constant,
    only_block,
    open_shape_of,
    operations_of,
    symbol,
    text,
)

_SPEC = re.compile(r"\.shape = \(([^()]*)\)")
_MULTIPLE = re.compile(r"([1-9]\d*)\*([^\W\d]\w*)")

_PLATFORM = "_platform_index"

Place: TypeAlias = tuple[int, int]
"""An argument, and a dimension of it."""


def names_of(functions: Mapping[str, Operation], main: Operation) -> list[str]:
    """Returns distinct names for the arguments of a main function, each from its path."""
    block = only_block(main)
    named = {each: argument_name(each) for each in block.arguments}
    # Of a program with open sizes main only calls the function, whose arguments have the names.
    for op in operations_of(block):
        if op.name == "func.call" and symbol(op, "callee") in functions:
            inner = only_block(functions[symbol(op, "callee")]).arguments
            for operand, argument in zip(op.operands, inner, strict=True):
                if operand in named and named[operand] is None:
                    named[operand] = argument_name(argument)
    names: list[str] = []
    for index, argument in enumerate(block.arguments):
        free = name = named[argument] or f"arg{index}"
        number = 0
        while free in names:
            number += 1
            free = f"{name}_{number}"
        names.append(free)
    return names


def arguments_of(
    program: Program, main: Operation, names: Sequence[str], stated: Mapping[Place, str]
) -> list[Given]:
    """Returns the types of the arguments of a module's main function, or their known values.

    The number of the platform, which modules for several platforms take, is that of the first.

    Args:
        program: The program, which gets the variables.
        main: The function.
        names: Of its arguments.
        stated: Names of open sizes, by the places of arguments without that number; others
            are called as the module calls them.
    """
    first = 1 if global_constant(main, 0) == _PLATFORM else 0
    called = _called(main)
    called |= {(first + index, dim): size for (index, dim), size in stated.items()}
    shapes = [open_shape_of(each) for each in only_block(main).arguments]
    for index, shape in enumerate(shapes):
        for dim in (dim for dim, size in enumerate(shape) if size is None):
            called.setdefault((index, dim), f"{names[index]}_{dim}")
    variables = _Variables(program.algebra, called.values())
    given: list[Given] = []
    for index, argument in enumerate(only_block(main).arguments):
        if index < first:
            given.append(Sizes((0,), dtype_of(argument), ()))
            continue
        sizes = [
            variables.size(called[index, dim]) if size is None else size
            for dim, size in enumerate(shapes[index])
        ]
        given.append(relax.TensorType(sizes, dtype_of(argument)))
    return given


def _called(main: Operation) -> dict[Place, str]:
    """Reads the names of open sizes of arguments off a module's assertions about shapes."""
    messages = [
        text(op, "error_message")
        for op in operations_of(only_block(main))
        if op.name == "stablehlo.custom_call"
        and text(op, "call_target_name") == "shape_assertion"
        and "error_message" in op.attributes
    ]
    shapes = [open_shape_of(each) for each in only_block(main).arguments]
    are_open = [index for index, shape in enumerate(shapes) if None in shape]
    specs = _SPEC.findall("".join(messages[:1]).partition("Using the following")[2])
    found = [[size.strip() for size in each.split(",") if size.strip()] for each in specs]
    ranks = [len(each) for each in found]
    if ranks != [len(shapes[index]) for index in are_open]:
        return {}
    return {
        (index, dim): size
        for index, sizes in zip(are_open, found, strict=True)
        for dim, size in enumerate(sizes)
        if shapes[index][dim] is None
    }


class _Variables:
    """Variables for sizes that are called ``rows`` or ``2*rows``."""

    def __init__(self, algebra: Algebra, sizes: Iterable[str]) -> None:
        # A multiple of 4 is also one of 2; a size that is no multiple has its own variable.
        factors: dict[str, int] = {}
        for factor, name in map(_parsed, sizes):
            factors[name] = min(factor, factors.get(name, factor))
        self._algebra = algebra
        self._known = {
            name: algebra.multiple(re.sub(r"\W+", "_", name), factor)
            for name, factor in factors.items()
        }
        self._factors = factors

    def size(self, text: str) -> Size:
        """The size that is called so."""
        factor, name = _parsed(text)
        smallest = self._factors[name]
        if factor % smallest:
            raise UnsupportedError(
                f"has arguments of the sizes {smallest}*{name} and {text}, of which Relax can "
                "find the variable in neither"
            )
        return self._known[name] * (factor // smallest) if factor > smallest else self._known[name]


def _parsed(size: str) -> tuple[int, str]:
    found = _MULTIPLE.fullmatch(size)
    return (int(found[1]), found[2]) if found else (1, size)
