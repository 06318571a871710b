"""Prepares programs for TVM's kernel fusion and memory plan, and guards its known failures."""

from __future__ import annotations

import contextlib
from typing import Any

import tvm
from tvm import relax

from distir_ext.compile.checked_sizes import hide_checks, show_checks
from distir_ext.native.pass_context import pass_context


def in_dataflow(mod: tvm.IRModule) -> tvm.IRModule:
    """Returns the module with fusible bindings in dataflow blocks.

    Stages have no dataflow blocks, since they send; what lies between sends gets them for fusion.
    """
    # ConvertToDataflow alone looks through tuples after it has chosen what leaves a block.
    convert = [relax.transform.CanonicalizeBindings(), relax.transform.ConvertToDataflow()]
    return show_checks(tvm.transform.Sequential(convert)(hide_checks(mod)))


def memory_plan_context(mod: tvm.IRModule) -> contextlib.AbstractContextManager[Any]:
    """Switches off TVM's static memory plan for modules with branches.

    The plan of TVM 0.27 lets the branches of an ``If`` share storage that only one of them
    allocates; the other then crashes the process.
    """
    if not any(isinstance(f, relax.Function) and _has_if(f.body) for f in mod.functions.values()):
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = pass_context(
        disabled=["StaticPlanBlockMemory"]
    )
    return context


def _has_if(body: relax.SeqExpr) -> bool:
    return any(
        isinstance(getattr(binding, "value", None), relax.If)
        for block in body.blocks
        for binding in block.bindings
    )
