"""Makes the state of a training step on workers, each of which makes its own shards."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from distir_ext.annotate.annotations import Mark, function_to_annotate
from distir_ext.compile.entry import build
from distir_ext.params.host_array import numpy_dtype
from distir_ext.session.session import Session
from distir_ext.structure.annotated_function import bindings_of
from distir_ext.structure.training_state import STATE
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.printable import shown
from distir_ext.training.initializers import Initializer
from distir_ext.training.random_numbers import folded_keys
from distir_ext.training.state import (
    DROPOUT_SEED,
    LOSS_SCALE,
    PARAMS,
    fields_of_state,
    initial_loss_scale,
)

_SEED = "seed"
# The first word of keys. That of dropout is the number of a step, which is not negative.
_DOMAIN = -1


@short_tracebacks
def initialize(
    session: Session,
    mod: tvm.IRModule,
    initializers: Mapping[str, Initializer],
    *,
    seed: int = 0,
    target: Any = None,
    func: str = "main",
) -> dict[str, Any]:
    """Makes the state before the first step on the workers, each of which makes its own shards.

    A number follows from the seed, the name of its parameter and its position in the whole
    parameter. So the numbers are the same on every mesh and under every plan, and no host holds a
    whole parameter.

    Args:
        session: Its workers.
        mod: A training step, annotated with the mesh and the plan that it is built with.
        initializers: By pattern (a regular expression for all of a name) of a parameter of the
            forward function, one of :mod:`distir_ext.training.initializers`. Of several patterns
            that match, the first one counts.
        seed: Of all numbers, and of the masks of dropout.
        target: As of :func:`distir_ext.build`.
        func: Name of the step.

    Returns:
        By name (``state.params.<name>``, ...) a global array on the workers: parameters, and all
        else as :func:`distir_ext.training.initial_state` has it.

    Raises:
        ValueError: ``func`` is no training step, is not annotated, or has symbolic shapes; a
            parameter has no initializer, or a pattern has no parameter; a shape does not fit an
            initializer.
        TypeError: An initializer is none.
    """
    names, program = _program(mod, initializers, func)
    executable = build(program) if target is None else build(program, target=target)
    results = session.load(executable)["main"](np.asarray(seed, "int64"))
    return dict(zip(names, results, strict=True))


def _program(
    mod: tvm.IRModule, initializers: Mapping[str, Initializer], func: str
) -> tuple[list[str], tvm.IRModule]:
    """The names of the fields, and a module that makes them of a seed."""
    function = function_to_annotate(mod, func)
    fields = fields_of_state(function, func)
    params = [name for name in fields if name.startswith(PARAMS)]
    chosen = _chosen([name[len(PARAMS) :] for name in params], initializers)
    marks = _marks(function)
    unmarked = [name for name in params if name not in marks]
    if unmarked:
        raise ValueError(
            f"{func} does not say how {shown(unmarked[0])} is sharded; pass what dx.annotate "
            "returns"
        )
    builder = relax.BlockBuilder()
    seed = relax.Var(_SEED, relax.TensorType((), "int64"))
    with builder.function("main", [seed], attrs={"num_input": 1}):
        with builder.dataflow():
            words = [zlib.crc32(name.encode()) for name in params]
            domain = relax.const(_DOMAIN, "int64")
            keys = dict(zip(params, folded_keys(builder.emit, seed, domain, words), strict=True))
            results = []
            for name, (shape, dtype) in fields.items():
                if name.startswith(PARAMS):
                    param = name[len(PARAMS) :]
                    value = _param(builder, keys[name], param, chosen[param], shape, dtype)
                elif name == f"{STATE}{DROPOUT_SEED}":
                    value = seed
                else:
                    is_scale = name == f"{STATE}{LOSS_SCALE}"
                    number = np.asarray(initial_loss_scale(function) if is_scale else 0)
                    filled = relax.const(number.astype(numpy_dtype(dtype)), dtype)
                    value = builder.emit(op.full(list(shape), filled)) if shape else filled
                if name in marks:
                    value = marks[name].on(builder.emit(value))
                results.append(builder.emit_output(value))
        builder.emit_func_output(relax.Tuple(results))
    functions = dict(builder.get().functions_items())
    # With the names of the mesh's axes.
    made = tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    return list(fields), made


def _param(
    builder: relax.BlockBuilder,
    key: relax.Expr,
    name: str,
    initializer: Initializer,
    shape: tuple[int, ...],
    dtype: str,
) -> relax.Expr:
    try:
        value = initializer.write(builder.emit, key, shape)
    except ValueError as error:
        raise ValueError(f"{shown(name)}: {error}") from None
    return value if dtype == "float32" else builder.emit(op.astype(value, dtype))


def _marks(function: relax.Function) -> dict[str, Mark]:
    """The annotations of parameters, by name."""
    params = set(function.params)
    return {
        str(each.value.args[0].name): Mark.of(each.value)
        for each in bindings_of(function.body)
        if isinstance(each.value, tvm.ir.Call)
        and each.value.op == tvm.ir.Op.get("relax.dist.annotate_sharding")
        and each.value.args[0] in params
    }


def _chosen(names: list[str], initializers: Mapping[str, Initializer]) -> dict[str, Initializer]:
    for pattern, each in initializers.items():
        if not isinstance(each, Initializer):
            raise TypeError(
                f"the initializer of {pattern!r} is a {type(each).__name__}; those of "
                "dx.training.initializers are calls, as normal(0.02)"
            )
        try:
            matched = any(re.fullmatch(pattern, name) for name in names)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no pattern: {error}") from None
        if not matched:
            raise ValueError(
                f"initializers has {pattern!r}, and no parameter is called so"
                f"{did_you_mean(pattern, names)}"
            )
    found = {}
    for name in names:
        first = next(
            (each for pattern, each in initializers.items() if re.fullmatch(pattern, name)), None
        )
        if first is None:
            raise ValueError(f"no pattern of initializers matches the parameter {shown(name)}")
        found[name] = first
    return found
