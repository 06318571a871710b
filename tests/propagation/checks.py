"""Postconditions of PropagateSharding."""

import tvm
from tvm import relax

import distir_ext as dx
from distir_ext.testing.phases import verify


def propagated(mod):
    """The propagated module, after checks that hold whatever the program.

    The input is as it was, the output meets the pass's postconditions and TVM's own, prints and
    parses, and propagating it again changes nothing.
    """
    text = mod.script()
    result = dx.transform.PropagateSharding()(mod)
    assert mod.script() == text
    verify(result, "propagated")
    assert relax.analysis.check_well_formed(result)
    tvm.ir.assert_structural_equal(dx.transform.PropagateSharding()(result), result)
    tvm.ir.assert_structural_equal(tvm.script.from_source(result.script()), result)
    return result


def assert_propagates(before, expected):
    """Checks the whole output."""
    tvm.ir.assert_structural_equal(propagated(before), expected)


def placements(mod, function="main"):
    """From variable name to "mesh[i] placement" for every DTensor parameter and variable.

    A name that was there before gets a suffix: "x", "x_1".
    """
    meshes = list(mod.global_infos["mesh"])
    found = {}

    def note(var):
        if isinstance(var.ty, relax.distributed.DTensorType):
            index = meshes.index(var.ty.device_mesh)
            name, count = var.name, 0
            while name in found:
                count += 1
                name = f"{var.name}_{count}"
            found[name] = f"mesh[{index}] " + repr(var.ty.placement).strip('"')

    def visit(seq):
        for block in seq.blocks:
            for binding in block.bindings:
                note(binding.var)
                if isinstance(getattr(binding, "value", None), relax.If):
                    visit(binding.value.true_branch)
                    visit(binding.value.false_branch)

    for param in mod[function].params:
        note(param)
    visit(mod[function].body)
    return found
