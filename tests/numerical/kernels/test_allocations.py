"""Kernels that allocate their buffers by a statement are sharded as those of blocks are."""

import numpy as np
from tests.targets import QUICK
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import distir_ext as dx


@I.ir_module
class Scaled:
    @T.prim_func(s_tir=True, private=True)
    def kernel(x: T.Buffer((7, 16), "float32"), y: T.Buffer((7, 16), "float32")):
        doubled = T.alloc_buffer((7, 16), "float32")
        total = T.alloc_buffer((7,), "float32")
        for i, j in T.grid(7, 16):
            with T.sblock("doubled"):
                vi, vj = T.axis.remap("SS", [i, j])
                doubled[vi, vj] = x[vi, vj] * T.float32(2)
        for i, j in T.grid(7, 16):
            with T.sblock("total"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    total[vi] = T.float32(0)
                total[vi] = total[vi] + x[vi, vj]
        for i, j in T.grid(7, 16):
            with T.sblock("sum"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = doubled[vi, vj] + total[vi]

    @R.function
    def main(x: R.Tensor((7, 16), "float32")):
        cls = Scaled
        with R.dataflow():
            y = R.call_tir(cls.kernel, (x,), out_ty=R.Tensor((7, 16), "float32"))
            R.output(y)
        return y


def test_statements_that_allocate():
    x = np.random.default_rng(0).standard_normal((7, 16)).astype("float32")
    for mesh, dims in ((dx.Mesh(a=2), ("a", None)), (dx.Mesh(a=3, b=2), (("a", "b"), None))):
        mod = dx.annotate(Scaled, mesh, {"x": dims})
        propagated = dx.transform.PropagateSharding()(mod)
        assert dx.dims(propagated, propagated["main"].ret_ty) == dims
        with dx.Session(mesh) as session:
            found = session.load(dx.build(mod, target=QUICK))(x).numpy()
        np.testing.assert_allclose(found, 2 * x + x.sum(1, keepdims=True), rtol=1e-5, atol=1e-5)
