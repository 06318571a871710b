"""Lists the shardings of a function's variables, in any phase and in the users' notation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.distributed import DTensorType

from distir_ext.mesh.notation import Notation


@dataclass(frozen=True)
class VariableSharding:
    """A parameter or bound variable that has a sharding."""

    name: str
    """As the module prints it."""

    sharding: str
    """``"('dp', None)"``; of a tuple that of each field, with ``;`` between them. Behind it stands
    which mesh, where there are several; in a worker's program also the placement."""

    binding: Any = None
    """The binding that makes it; None for parameters."""


def variable_shardings(mod: tvm.IRModule, function: relax.Function) -> list[VariableSharding]:
    """Lists the known shardings of a function's variables: parameters, then in program order.

    Args:
        mod: The module, in any phase; in one that is not propagated, nothing may be known.
        function: A function of it.

    Raises:
        ValueError: Names of mesh axes in the module do not fit its meshes.
    """
    notation = Notation(mod)
    # Shardings that LowerDistIR noted for the tensors of a worker's program, by name.
    noted = tvm_ffi.get_global_func("distir.lower.WorkerShardings")(mod, function)
    in_worker = {str(name): str(text) for name, text in noted.items()}
    variables = [(param, None) for param in function.params]
    variables += [(binding.var, binding) for binding in _bindings(function.body)]
    texts = ((var, binding, _text(var, notation, in_worker)) for var, binding in variables)
    return [VariableSharding(str(var.name), text, binding) for var, binding, text in texts if text]


def _text(var: relax.Var, notation: Notation, in_worker: Mapping[str, str]) -> str | None:
    if not isinstance(var.ty, tvm.ir.TupleType):
        return _of_tensor(var.ty, var.name, notation, in_worker)
    texts = [
        _of_tensor(field, f"{var.name}.{index}", notation, in_worker)
        for index, field in enumerate(var.ty.fields)
    ]
    if all(text is None for text in texts):
        return None
    return "; ".join(text or "-" for text in texts)


def _of_tensor(
    type_: Any, name: str, notation: Notation, in_worker: Mapping[str, str]
) -> str | None:
    # A DTensor's type says its placement itself.
    if isinstance(type_, DTensorType):
        return notation.text(type_)
    return in_worker.get(name)


def _bindings(body: relax.SeqExpr) -> Iterator[relax.Binding]:
    for block in body.blocks:
        for binding in block.bindings:
            yield binding
            value = getattr(binding, "value", None)
            if isinstance(value, relax.If):
                yield from _bindings(value.true_branch)
                yield from _bindings(value.false_branch)
