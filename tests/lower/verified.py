"""Lowering, with all that must hold of what it gives."""

from tvm import relax

import distir_ext as dx
from distir_ext.testing.phases import verify


def lowered(mod):
    result = dx.lower(mod)
    verify(result, "lowered")
    assert relax.analysis.check_well_formed(result)
    return result
