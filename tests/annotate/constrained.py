"""Placements of a constrained module, and its round trip through TVMScript."""

from __future__ import annotations

import tvm
from tvm import relax

import distir_ext as dx

MESH = dx.Mesh(dp=2, tp=2)


def placements(function):
    found = []
    for block in function.body.blocks:
        for binding in block.bindings:
            if isinstance(binding.var.ty, relax.distributed.DTensorType):
                type_ = binding.var.ty
                shape = "x".join(str(int(size)) for size in type_.device_mesh.shape)
                found.append((binding.var.name, shape, str(type_.placement).strip('"')))
    return found


def round_trip(mod):
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)
