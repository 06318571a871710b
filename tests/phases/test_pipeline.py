"""The list of passes: required and resulting phases, and errors in other orders."""

import pytest
import tvm
import tvm_ffi
from tests.analysis.models import MESH, MODELS

import distir_ext as dx
from distir_ext.native.steps import steps

from .programs import Plain, annotated

PHASES = ("annotated", "propagated", "legalized", "lowered", "runtime")


def test_steps_lead_from_phase_to_phase():
    reached = 0
    for step in steps():
        assert PHASES.index(step.needs) <= reached
        reached = max(reached, PHASES.index(step.gives))
    assert reached == len(PHASES) - 1


@pytest.mark.parametrize("step", steps(), ids=lambda step: step.name)
def test_each_pass_gives_its_phase(step):
    assert dx.phase(dx.lower(annotated(), until=step.name)) == step.gives


@pytest.mark.parametrize("until", PHASES[1:])
def test_lower_stops_behind_a_phase(until):
    stopped = dx.lower(annotated(), until=until)
    assert dx.phase(stopped) == until
    rest = dx.lower(stopped, until="runtime")
    tvm.ir.assert_structural_equal(rest, dx.lower(annotated(), until="runtime"))


def test_modules_without_shardings_are_in_no_phase():
    assert dx.phase(Plain) is None
    with pytest.raises(ValueError, match="no sharding annotations"):
        dx.lower(Plain)


def test_a_module_is_as_far_as_its_least_advanced_function():
    mod = dx.lower(annotated(), until="legalized")
    late = annotated()["main"].with_attr("global_symbol", "late")
    mod.update_func(tvm.ir.GlobalVar("late"), late)
    assert dx.phase(mod) == "annotated"
    assert dx.phase(dx.lower(mod, until="legalized")) == "legalized"


def test_an_unknown_end_names_the_known_ones():
    with pytest.raises(ValueError, match=r"until='legalised'.*did you mean 'legalized'"):
        dx.lower(annotated(), until="legalised")


NEEDS_DTENSORS = [
    "PadShards",
    "DecomposeSharded",
    "LegalizeRedistribute",
    "OptimizeCollectives",
    "LowerGlobalViewToLocalView",
]
NEEDS_PROGRAMS = [
    "LowerCCL",
    "DispatchMatmul",
    "DispatchConvolution",
    "AppendInPlace",
    "ShareResults",
    "ShareOperands",
    "WriteInPlace",
]


@pytest.mark.parametrize("name", [*NEEDS_DTENSORS, "LowerDistIR", *NEEDS_PROGRAMS])
def test_passes_refuse_a_module_with_unread_annotations(name):
    with pytest.raises(
        ValueError, match=f"`main` has annotations.*PropagateSharding before {name}"
    ):
        getattr(dx.transform, name)()(annotated())


@pytest.mark.parametrize("name", NEEDS_PROGRAMS)
@pytest.mark.parametrize("until", ["propagated", "legalized"])
def test_passes_on_programs_refuse_dtensors(name, until):
    mod = dx.lower(annotated(), until=until)
    with pytest.raises(ValueError, match=f"`main` has DTensors.* before {name}, which needs a low"):
        getattr(dx.transform, name)()(mod)


@pytest.mark.parametrize("name", [*NEEDS_DTENSORS, "LowerDistIR", "LowerCCL"])
def test_passes_leave_a_module_without_shardings_as_it_is(name):
    tvm.ir.assert_structural_equal(getattr(dx.transform, name)()(Plain), Plain)


def test_implied_passes_run_where_they_have_not_been_run():
    short = [dx.transform.PropagateSharding(), dx.transform.LowerDistIR()]
    long = [
        tvm_ffi.get_global_func(f"distir.step.{step.name}")()
        for step in steps()
        if step.is_implied or step.name in ("PropagateSharding", "LowerDistIR")
    ]
    left, right = (tvm.transform.Sequential(passes)(annotated()) for passes in (short, long))
    tvm.ir.assert_structural_equal(left, right)


def test_what_is_decomposed_already_stays_when_the_rest_is_lowered():
    model = MODELS["gpt2"]()
    mod = model.module.clone()
    # Inputs are not cut into blocks, so the split of queries, keys and values exchanges something.
    mod.update_func(mod.get_global_var("main"), mod["main"].without_attr("num_input"))
    mod = dx.annotate(mod, MESH, model.plans["tp"])
    whole = dx.analysis.collectives(dx.lower(mod))
    assert "segment_exchange" in [each.kind for each in whole]
    for until in ("DecomposeSharded", "legalized", "OptimizeCollectives"):
        assert dx.analysis.collectives(dx.lower(dx.lower(mod, until=until))) == whole
