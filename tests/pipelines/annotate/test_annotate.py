"""Annotated programs compute what they did."""

from __future__ import annotations

import numpy as np
import tvm
from tests.annotate.programs import Packed
from tvm import relax

import distir_ext as dx

MESH = dx.Mesh((2, 2), ("dp", "tp"))


def test_annotations_keep_the_numbers():
    plan = {r"weights\.0": (None, "tp"), r"weights\.1\..*": None, "x": ("dp", None)}
    result = dx.annotate(Packed, MESH, plan)
    # What an annotation means to TVM as it is: the tensor itself.
    stripped = strip_annotations(result)
    rng = np.random.default_rng(0)
    x, a, c = (rng.standard_normal(s).astype("float32") for s in [(4, 8), (8, 8), (8, 8)])
    b = rng.standard_normal(8).astype("float32")
    vm = relax.VirtualMachine(tvm.compile(stripped, "llvm"), tvm.cpu())
    args = [tvm.runtime.tensor(v) for v in (x, a, b, c)]
    shape = tvm.runtime.ShapeTuple([3])
    y = vm["main"](args[0], (args[1], (args[2], args[3])), shape).numpy()
    np.testing.assert_allclose(y, (x @ a + b) @ c, rtol=1e-4, atol=1e-4)


def strip_annotations(mod):
    @relax.expr_functor.mutator
    class Strip(relax.PyExprMutator):
        def visit_call_(self, call):
            call = self.visit_expr_post_order(call)
            name = str(getattr(call.op, "name", ""))
            return call.args[0] if name.endswith("annotate_sharding") else call

    result = mod.clone()
    result["main"] = Strip(mod).visit_expr(mod["main"])
    return result
