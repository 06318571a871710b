"""Splits fused weights, such as Q | K | V, in modules that are already annotated."""

from __future__ import annotations

import time

import tvm
from tvm import relax

from distir_ext.native.reports import record
from distir_ext.structure.weights.fused_weights import reported, separate_weights
from distir_ext.text.errors.tracebacks import short_tracebacks


@short_tracebacks
def CutFusedWeights() -> tvm.transform.Pass:  # noqa: N802 - passes are named as TVM names its own
    """Cuts annotated weights into a parameter for each block that the program splits them into.

    So that each block can be sharded by itself, and no split sends anything. ``annotate`` does this
    itself; the pass is for modules that were annotated otherwise: in TVMScript, by a
    ``ShardingMutator`` or by ``constrain``. It has to run before PropagateSharding. Weights are the
    parameters behind ``num_input``, and ``Session.load`` takes them under their own names.
    ``docs/annotate.md`` says which stay whole, and the pass's report why.

    Returns:
        The pass.
    """

    def run(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        start = time.perf_counter()
        functions = [
            str(name.name_hint)
            for name, function in mod.functions.items()
            if isinstance(function, relax.Function)
        ]
        found = separate_weights(mod, functions)
        record("CutFusedWeights", *reported(found), time.perf_counter() - start)
        return found.mod

    return tvm.transform.module_pass(run, opt_level=0, name="CutFusedWeights")
