"""Warns of what the importer ignores: stated sharding rules, unknown attributes of Shardy's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxlib.mlir import ir, passmanager

from distir_ext.interop.jax.hlo_shardings import HLO_SHARDING
from distir_ext.interop.jax.round_trip import FRONTEND_RULE, SHARDING_RULE
from distir_ext.interop.jax.shardings import FRONTEND_MESHES, FRONTEND_SHARDING
from distir_ext.interop.jax.stablehlo import (
    FRONTEND,
    Operation,
    attributes_of_values,
    nested_operations,
    target_of,
    where,
)
from distir_ext.text.errors.logs import package_logger
from distir_ext.text.errors.spelling import counted

_LOGGER = package_logger("distir_ext.interop.jax")
_LISTED = 5
# JAX states that they compute each matrix of a stack alone, which is how they are sharded here.
_OF_STACKS = "lapack_"
_OWN_RULES = "builtin.module(func.func(sdy-populate-op-sharding-rules))"

# Read here or where operations are, or said by the shardings, too.
_READ = (
    *(HLO_SHARDING, FRONTEND_SHARDING, FRONTEND_MESHES, FRONTEND_RULE),
    *("xla.sdy.allowed_direction", "xla.sdy.sharding_group_id", "xla.sdy.has_unreduced_axes"),
    *("xla.sdy.in_shardings", "xla.sdy.out_shardings", "xla.sdy.manual_axes"),
)
_OF_SHARDINGS = ("xla.sdy.", "sdy.", "mhlo.sharding")


def unread_frontend(module: Any) -> Iterator[tuple[Operation, str]]:
    """Yields frontend attributes about shardings that the importer does not know.

    Yields:
        The operation, and what is wrong with it.
    """
    for op in nested_operations(module.operation):
        for attributes in (op.attributes, *attributes_of_values(op)):
            if FRONTEND not in attributes:
                continue
            for each in ir.DictAttr(attributes[FRONTEND]):
                if each.name.startswith(_OF_SHARDINGS) and each.name not in _READ:
                    yield op, f"states {each.name} = {each.attr}, which is not imported"


def warn_of_rules(module: Any) -> None:
    """Warns of sharding rules that are not the ones that Shardy itself has for the operations.

    Values are sharded by the rules of Relax's operators; what is computed does not depend on it.
    """
    stating = [op for op in nested_operations(module.operation) if SHARDING_RULE in op.attributes]
    if not stating:
        return
    own = _own_rules(module)
    found = [
        f"{_name(op)}{f' ({place})' if (place := where(op)) else ''}: "
        f"{op.attributes[SHARDING_RULE]}"
        for op, rule in zip(stating, own, strict=True)
        if str(op.attributes[SHARDING_RULE]) != rule and not target_of(op).startswith(_OF_STACKS)
    ]
    if not found:
        return
    more = f", and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    _LOGGER.warning(
        "the program states %s of %s, which is not taken: values are sharded by the rules of "
        "Relax's operators, %s%s",
        SHARDING_RULE,
        counted(len(found), "operation"),
        "; ".join(found[:_LISTED]),
        more,
    )


def _name(op: Operation) -> str:
    target = target_of(op)
    return f"{op.name} @{target}" if target else op.name


def _own_rules(module: Any) -> list[str]:
    """Shardy's own rules, in the order of the operations that state one."""
    with module.context:
        copy = ir.Module.parse(module.operation.get_asm(print_generic_op_form=True))
        stating = [op for op in nested_operations(copy.operation) if SHARDING_RULE in op.attributes]
        for op in stating:
            del op.attributes[SHARDING_RULE]
        passes = passmanager.PassManager.parse(_OWN_RULES)
        passes.enable_verifier(False)
        passes.run(copy.operation)
        return [str(op.attributes.get(SHARDING_RULE)) for op in stating]
