"""Operators that TVM has legalised for earlier modules, against modules planned on their own."""

from __future__ import annotations

import dataclasses

import pytest
import tvm_ffi
from tvm import relax

import distir_ext as dx
from distir_ext.analysis.programs.planned import lowered_programs
from distir_ext.analysis.programs.planned_program import LegalizedOperators, plan
from distir_ext.analysis.programs.planned_steps import StepsOfModule

from .test_planned_steps import CLUSTERS, PLAN, in_stages, kernels, layers


def modules():
    """Each has operators of those before, and others."""
    for mesh in (dx.Mesh(dp=2, tp=2), dx.Mesh(dp=2, tp=4), dx.Mesh(dp=2, tp=2)):
        yield dx.annotate(layers(2), mesh, PLAN)
    yield in_stages(layers(), dx.Mesh(dp=2, tp=2, pp=2))
    yield kernels()


def without_names(functions):
    """Steps, without the names of kernels."""
    for name, function in functions.items():
        for step in function.body.flat():
            yield (
                name,
                dataclasses.replace(step, callee="" if step.kind == "kernel" else step.callee),
            )
        yield name, dataclasses.replace(function.body, steps=()), function.params


@pytest.mark.parametrize("device", CLUSTERS)
def test_steps_are_those_of_modules_planned_on_their_own(device):
    cluster, known = CLUSTERS[device], LegalizedOperators()
    for mod in modules():
        lowered = lowered_programs(mod, cluster)
        arguments = lowered.with_runtime_calls, lowered.target
        found, wanted = (
            StepsOfModule(planned, cluster.as_data())
            for planned in (plan(*arguments, known), plan(*arguments))
        )
        assert list(without_names(found.kernels)) == list(without_names(wanted.kernels))
        assert list(without_names(found.operators)) == list(without_names(wanted.operators))


def test_tvm_legalises_an_operator_once():
    lowered = lowered_programs(next(modules()), CLUSTERS["H100"])
    outline = tvm_ffi.get_global_func("distir.analysis.OutlineOperators")()
    outlined = outline(lowered.with_runtime_calls)
    left = []

    def legalize(mod):
        left.append(sum(map(is_left, mod.functions.values())))
        return relax.transform.LegalizeOps()(mod)

    known = LegalizedOperators()
    first, second = (known.legalized(outlined, legalize) for _ in range(2))
    assert left[0] > 3
    assert left[1] == 0
    assert not any(
        is_left(each) for each in (*first.functions.values(), *second.functions.values())
    )


def is_left(function):
    """True if the function still stands for an operator, and calls no kernel."""
    if not isinstance(function, relax.Function) or "distir.operator" not in (function.attrs or ()):
        return False
    (binding,) = function.body.blocks[0].bindings
    return binding.value.op.name != "relax.call_tir"
