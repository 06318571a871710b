"""Postconditions of PadShards."""

import tvm
from tvm import relax

import distir_ext as dx
from distir_ext.testing.phases import verify


def padded(mod: tvm.IRModule) -> tvm.IRModule:
    """A propagated module after PadShards, and after checks that hold whatever the program.

    The input is as it was; the output is still propagated and well formed, prints and parses,
    padding it again changes nothing, and what follows meets its postconditions.
    """
    text = mod.script()
    result = dx.transform.PadShards()(mod)
    assert mod.script() == text
    verify(result, "propagated")
    assert relax.analysis.check_well_formed(result)
    tvm.ir.assert_structural_equal(tvm.script.from_source(result.script()), result)
    assert dx.transform.PadShards()(result).same_as(result)
    legalized = dx.transform.LegalizeRedistribute()(result)
    verify(legalized, "legalized")
    verify(dx.transform.LowerDistIR()(legalized), "lowered")
    return result


def assert_pads(before: tvm.IRModule, expected: tvm.IRModule) -> None:
    """Checks the whole output."""
    tvm.ir.assert_structural_equal(padded(before), expected)
