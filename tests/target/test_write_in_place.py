"""Elementwise kernels write to operands that are not read any more; results to donated inputs."""

import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import distir_ext as dx


@I.ir_module
class Kernels:
    @T.prim_func(private=True, s_tir=True)
    def scale(
        x: T.Buffer((4, 8), "float32"),
        s: T.Buffer((8,), "float32"),
        y: T.Buffer((4, 8), "float32"),
    ):
        for i, j in T.grid(4, 8):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj] * s[vj]

    @T.prim_func(private=True, s_tir=True)
    def flip(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4, 8), "float32")):
        for i, j in T.grid(4, 8):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[3 - vi, vj]

    @T.prim_func(private=True, s_tir=True)
    def prefix(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4, 8), "float32")):
        for i, j, k in T.grid(4, 8, 8):
            with T.sblock("y"):
                vi, vj, _vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    y[vi, vj] = T.float32(0)
                y[vi, vj] = y[vi, vj] + x[vi, vj]

    @R.function
    def main(x: R.Tensor((4, 8), "float32"), s: R.Tensor((8,), "float32")):
        R.func_attr({"distir.donated": ["x"]})
        cls = Kernels
        with R.dataflow():
            a = R.call_tir(cls.scale, (x, s), out_ty=R.Tensor((4, 8), "float32"))
            b = R.call_tir(cls.scale, (a, s), out_ty=R.Tensor((4, 8), "float32"))
            c = R.call_tir(cls.flip, (b,), out_ty=R.Tensor((4, 8), "float32"))
            d = R.call_tir(cls.prefix, (c,), out_ty=R.Tensor((4, 8), "float32"))
            R.output(d)
        return d


def written(mod):
    passes = [relax.transform.ToNonDataflow(), relax.transform.RemovePurityChecking()]
    passes += [relax.transform.CallTIRRewrite(), dx.transform.WriteInPlace()]
    return tvm.transform.Sequential(passes)(mod)


def test_only_elementwise_kernels_write_to_operands_that_nothing_reads_later():
    mod = written(Kernels)
    text = mod["main"].script()
    # b is written over a; not a over x, which would be d's; c and d are allocated: flip and prefix
    # read elements that they have written. x is not read when c begins, but d is the result.
    assert text.count("scale_in_place") == 1
    assert text.count("alloc_tensor") == 2
    assert text.count("distir.runtime.donated_memory") == 1
    assert len([f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]) == 4
