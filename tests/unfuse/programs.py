"""Products with epilogues, and kernels of them."""

import tvm
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx

P = relax.transform
FUSE = (P.LegalizeOps, P.AnnotateTIROpPattern, P.FuseOps, P.FuseTIR)
TP4 = dx.Mesh(tp=4)
PLAN = {"x": (None, "tp"), "w": ("tp", None)}


@I.ir_module
class Linear:
    @R.function
    def main(
        x: R.Tensor((8, 32), "float32"),
        w: R.Tensor((32, 24), "float32"),
        b: R.Tensor((24,), "float32"),
        r: R.Tensor((8, 24), "float32"),
    ):
        with R.dataflow():
            y = R.nn.gelu(R.add(R.matmul(x, w), b))
            z = R.add(y, r)
            R.output(z)
        return z


@I.ir_module
class AnySize:
    @R.function
    def main(
        x: R.Tensor(("n", 32), "float32"),
        w: R.Tensor((32, 24), "float32"),
        r: R.Tensor(("n", 24), "float32"),
    ):
        with R.dataflow():
            z = R.subtract(r, R.matmul(x, w))
            R.output(z)
        return z


@I.ir_module
class Smaller:
    """The product is added in float32 and given in float16."""

    @R.function
    def main(
        x: R.Tensor((8, 32), "float16"),
        w: R.Tensor((32, 24), "float16"),
        b: R.Tensor((24,), "float16"),
    ):
        with R.dataflow():
            y = R.astype(R.matmul(x, w, out_dtype="float32"), "float16")
            z = R.add(R.multiply(y, R.const(0.5, "float16")), b)
            R.output(z)
        return z


@I.ir_module
class Scaled:
    """Scales the product, which commutes with its sum."""

    @R.function
    def main(x: R.Tensor((8, 32), "float32"), w: R.Tensor((32, 24), "float32")):
        with R.dataflow():
            z = R.multiply(R.matmul(x, w), R.const(0.5, "float32"))
            R.output(z)
        return z


@I.ir_module
class Numbered:
    """A kernel that is given a number besides tensors."""

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        x: T.Buffer((8, 32), "float32"),
        w: T.Buffer((32, 24), "float32"),
        n: T.int64,
        out: T.Buffer((8, 24), "float32"),
    ):
        p = T.sblock_alloc_buffer((8, 24))
        for i, j, k in T.grid(8, 24, 32):
            with T.sblock("product"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    p[vi, vj] = T.float32(0)
                p[vi, vj] = p[vi, vj] + x[vi, vk] * w[vk, vj]
        for i, j in T.grid(8, 24):
            with T.sblock("shifted"):
                vi, vj = T.axis.remap("SS", [i, j])
                out[vi, vj] = p[vi, vj] + T.Cast("float32", n)

    @R.function
    def main(
        x: R.Tensor((8, 32), "float32"),
        w: R.Tensor((32, 24), "float32"),
        y: R.Tensor(("n", 2), "float32"),
    ):
        n = T.int64()
        cls = Numbered
        with R.dataflow():
            z = R.call_tir(cls.kernel, (x, w, n), out_ty=R.Tensor((8, 24), "float32"))
            R.output(z)
        return z


@I.ir_module
class InPlace:
    """The result of the reduction is changed where it is."""

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        x: T.Buffer((8, 32), "float32"),
        w: T.Buffer((32, 24), "float32"),
        out: T.Buffer((8, 24), "float32"),
    ):
        p = T.sblock_alloc_buffer((8, 24))
        for i, j, k in T.grid(8, 24, 32):
            with T.sblock("product"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    p[vi, vj] = T.float32(0)
                p[vi, vj] = p[vi, vj] + x[vi, vk] * w[vk, vj]
        for i, j in T.grid(8, 24):
            with T.sblock("shifted"):
                vi, vj = T.axis.remap("SS", [i, j])
                p[vi, vj] = p[vi, vj] + T.float32(1)
        for i, j in T.grid(8, 24):
            with T.sblock("out"):
                vi, vj = T.axis.remap("SS", [i, j])
                out[vi, vj] = T.exp(p[vi, vj])

    @R.function
    def main(x: R.Tensor((8, 32), "float32"), w: R.Tensor((32, 24), "float32")):
        cls = InPlace
        with R.dataflow():
            z = R.call_tir(cls.kernel, (x, w), out_ty=R.Tensor((8, 24), "float32"))
            R.output(z)
        return z


def fused(mod):
    """The module after FuseTIR."""
    return tvm.transform.Sequential([make() for make in FUSE])(mod)
