"""Imports StableHLO with Shardy's or GSPMD's shardings as an annotated Relax module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import tvm
from jaxlib.mlir import ir

from distir_ext.interop.jax.arguments import Place, arguments_of, names_of

# Their handlers enter themselves in the table.
from distir_ext.interop.jax.operations import (  # noqa: F401
    bits,
    contraction,
    controls,
    custom_calls,
    dynamic,
    elementwise,
    linear_algebra,
    loops,
    manual,
    normalization,
    partitioning,
    random_bits,
    reduction,
    scatter,
    special_functions,
)
from distir_ext.interop.jax.operations.control_flow import function_of, recursive
from distir_ext.interop.jax.program import Program
from distir_ext.interop.jax.round_trip import with_operations
from distir_ext.interop.jax.shardings import Shardings
from distir_ext.interop.jax.sizes import Sizes
from distir_ext.interop.jax.stablehlo import (
    UnsupportedError,
    foreign_dtypes,
    functions_of,
    parse,
)
from distir_ext.interop.jax.unread import unread_frontend, warn_of_rules
from distir_ext.mesh.mesh import as_mesh
from distir_ext.text.errors.spelling import counted, did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.printable import TextLines

_LISTED = 20


@short_tracebacks
def from_exported(
    exported: Any, *, weights: Sequence[str] = (), unroll_limit: int = 64, mesh: Any = None
) -> tvm.IRModule:
    """Imports a program of ``jax.export``, with its shardings as annotations.

    Parameters of ``main`` are called by their paths in the pytrees of arguments: the leaf
    ``params["layers"][0]["w"]`` is ``params.layers.0.w``. An argument that the function does
    not read is none, as in ``exported.module_kept_var_idx``. Several results are a tuple, in the
    order of the leaves of JAX's result. Symbolic dimensions are variables with JAX's names; where
    arguments only have multiples of one, ``2*rows``, the variable ``rows`` is this multiple.

    Args:
        exported: A ``jax.export.Exported``; or a ``jax.stages.Lowered``, what
            ``jax.jit(f).lower(...)`` returns.
        weights: Arguments that do not change between calls, such as ``("params",)``: an argument's
            name means all of its leaves. They become weights, which ``Session.load`` takes; the
            others, which every call passes, come first.
        unroll_limit: Most iterations of a loop that are written one behind the other. A longer
            one, or one whose end is not known before the program runs, is a function that calls
            itself.
        mesh: The mesh whose axes the annotations name where the program states GSPMD's shardings,
            ``mhlo.sharding``, which know devices only. By default one that the module names, if
            all of them lie along its axes, or else their
            :func:`distir_ext.interop.gspmd.common_mesh`.

    Returns:
        A module of ``main`` and private functions that it calls. Axes of meshes have their names.

    Raises:
        TypeError: ``exported`` is neither.
        ValueError: Operations have no translation, or state shardings that no annotation does (the
            message lists all of them and where they are), or no argument is called like one of the
            weights.
    """
    if hasattr(exported, "mlir_module"):
        module = parse(exported.mlir_module())
        return _imported(module, weights, unroll_limit, mesh, _symbols(exported))
    if hasattr(exported, "compiler_ir"):
        return _imported(exported.compiler_ir("stablehlo"), weights, unroll_limit, mesh, {})
    raise TypeError(
        f"expected what jax.export.export(jax.jit(f))(*args) returns, got {type(exported).__name__}"
    )


@short_tracebacks
def from_stablehlo(
    module: Any, *, weights: Sequence[str] = (), unroll_limit: int = 64, mesh: Any = None
) -> tvm.IRModule:
    """Imports a module of StableHLO, with its shardings, Shardy's or GSPMD's, as annotations.

    Args:
        module: The text of the module, its bytecode, or jaxlib's ``ir.Module``.
        weights: As for :func:`from_exported`; names of arguments are the module's locations. Where
            it has none, arguments are ``arg0``, ``arg1``, ...
        unroll_limit: As for :func:`from_exported`.
        mesh: As for :func:`from_exported`.

    Returns:
        As :func:`from_exported`.

    Raises:
        TypeError: ``module`` is neither a text nor a module; or ``weights`` is a text.
        ValueError: jaxlib does not read the text, or as :func:`from_exported`.
    """
    if isinstance(module, str | bytes):
        module = parse(module)
    if not isinstance(module, ir.Module):
        raise TypeError(f"expected StableHLO, a text or a module, got {type(module).__name__}")
    return _imported(module, weights, unroll_limit, mesh, {})


def _imported(
    module: Any,
    weights: Sequence[str],
    unroll_limit: int,
    mesh: Any,
    symbols: Mapping[Place, str],
) -> tvm.IRModule:
    if isinstance(weights, str):
        raise TypeError(f"weights are a list of names, ({weights!r},), not one text")
    module = with_operations(module)
    functions = functions_of(module)
    if "main" not in functions:
        raise ValueError(
            f"the module has no function main; it has {', '.join(functions) or 'none'}"
        )
    if (name := recursive(functions)) is not None:
        raise ValueError(f"@{name} calls itself, which functions of StableHLO do not")
    main = functions["main"]
    wanted = None if mesh is None else as_mesh(mesh, "the mesh")
    program = Program(functions, Shardings(module, wanted), unroll_limit)
    try:
        names = names_of(functions, main)
        given = arguments_of(program, main, names, symbols)
        tensors = [index for index, each in enumerate(given) if not isinstance(each, Sizes)]
        order, inputs = _inputs_first([names[index] for index in tensors], weights)
        function = function_of(program, main, given, names, [tensors[index] for index in order])
        if weights:
            function = function.with_attr("num_input", inputs)
        program.module["main"] = function.with_attr("global_symbol", "main")
    except UnsupportedError as error:
        program.problems[f"main {error}", ""] = None
    program.write_all()
    for op, reason in unread_frontend(module):
        program.problem(op, f"{op.name} {reason}")
    _raise_problems(program)
    warn_of_rules(module)
    return program.meshes.store(program.module)


def _symbols(exported: Any) -> dict[Place, str]:
    """Returns the names of open sizes of arguments."""
    kept = [exported.in_avals[index] for index in exported.module_kept_var_idx]
    return {
        (index, dim): str(size)
        for index, aval in enumerate(kept)
        for dim, size in enumerate(aval.shape)
        if not isinstance(size, int)
    }


@short_tracebacks
def named_leaves(**arguments: Any) -> dict[str, Any]:
    """Leaves of pytrees by the names that parameters of imported programs have.

    Args:
        **arguments: Pytrees by the name of the function's argument.

    Returns:
        What ``Session.load(params=...)`` takes.

    Example:
        >>> named_leaves(params={"layers": [{"w": 1, "b": 2}]})
        {'params.layers.0.b': 2, 'params.layers.0.w': 1}
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(arguments)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _inputs_first(names: Sequence[str], weights: Sequence[str]) -> tuple[list[int], int]:
    """The order of parameters with weights last, and how many are none."""
    is_weight = [False] * len(names)
    for weight in weights:
        found = [i for i, name in enumerate(names) if f"{name}.".startswith(f"{weight}.")]
        if not found:
            arguments = dict.fromkeys(name.split(".")[0] for name in names)
            raise ValueError(
                f"no argument is called {weight!r}; the function has {', '.join(arguments)}"
                f"{did_you_mean(weight, [*arguments, *names])}"
            )
        for index in found:
            is_weight[index] = True
    order = sorted(range(len(names)), key=is_weight.__getitem__)
    return order, is_weight.count(False)


def _raise_problems(program: Program) -> None:
    if not program.problems:
        return
    if dtypes := foreign_dtypes(program.functions.values()):
        named = [f"{dtype} ({place})" if place else dtype for dtype, place in dtypes.items()]
        raise ValueError(
            f"the program computes in {', '.join(named)}, which is not imported; dtypes are bool, "
            "integers of 8 to 64 bits, float8_e4m3fn, float8_e5m2, float16, bfloat16, float32 and "
            "float64"
        )
    lines = [f"{reason} ({place})" if place else reason for reason, place in program.problems]
    more = len(lines) - _LISTED
    shown = [*lines[:_LISTED], *([f"and {more} more"] if more > 0 else [])]
    head = f"{counted(len(lines), 'operation')} of the module cannot be imported:"
    raise ValueError(TextLines([head, *(f"  {each}" for each in shown)]))
