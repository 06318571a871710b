"""Postconditions of OptimizeCollectives, and builders of test programs."""

import tvm
from tvm import relax

import distir_ext as dx
from distir_ext.testing.phases import verify

NAMES = list(dx.transform.collective_optimizations())


def optimized(mod, *names, **options):
    """The module after only the named optimisations (all that are on, if none is named).

    The input is as it was; the output is legalised and well formed, prints and parses, lowers, and
    optimising it again changes nothing.
    """
    off = [name for name in NAMES if name not in names] if names else []
    run = dx.transform.OptimizeCollectives(enable=names, disable=off, **options)
    text = mod.script()
    result = run(mod)
    assert mod.script() == text
    verify(result, "legalized")
    assert relax.analysis.check_well_formed(result)
    tvm.ir.assert_structural_equal(tvm.script.from_source(result.script()), result)
    tvm.ir.assert_structural_equal(bare(run(result)), bare(result))
    verify(dx.transform.LowerDistIR()(result), "lowered")
    return result


def bare(mod):
    """The module without what the pass says about itself."""
    return mod.without_attr("distir.optimizations")


def assert_optimizes(before, expected, *names, **options):
    """Checks the whole output; gives it for further checks."""
    verify(before, "legalized")
    result = optimized(before, *names, **options)
    tvm.ir.assert_structural_equal(bare(result), expected)
    return result


def tally(mod, name):
    """Report of one optimisation."""
    (found,) = [each for each in dx.analysis.optimizations(mod) if each.name == name]
    return found
