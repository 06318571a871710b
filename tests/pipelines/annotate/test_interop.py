"""Programs that are annotated in the formats of other systems compute what they did."""

from __future__ import annotations

import numpy as np
import pytest
from tests.interop.programs import Products

import distir_ext as dx
from distir_ext.interop import gspmd, shardy

GSPMD = {
    "x": "{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}",
    "up": "{devices=[1,2,2]0,1,2,3 last_tile_dim_replicate}",
    "return": "{devices=[4,1]<=[2,2]T(1,0)}",
}
SHARDY = {
    "x": '<mesh<["x"=4]>, [{"x":(2)2, ?}, {}]>',
    "up": '<mesh<["x"=4]>, [{}, {"x":(1)2, "x":(2)2}]>',
}


@pytest.mark.parametrize(("system", "given"), [(gspmd, GSPMD), (shardy, SHARDY)])
def test_annotations_keep_the_numbers(system, given):
    rng = np.random.default_rng(0)
    shapes = [(8, 64), (64, 32), (32, 64)]
    x, up, down = (rng.standard_normal(shape).astype("float32") for shape in shapes)
    exe = dx.build(system.annotate(Products, given), target="llvm")
    with dx.Session(4) as session:
        result = np.asarray(session.load(exe)["main"](x, up, down))
    np.testing.assert_allclose(result, x @ up @ down, rtol=1e-4, atol=1e-4)
