"""Functions and kernels for which tests state rules."""

from __future__ import annotations

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx

MESH = dx.Mesh((2, 2), ("a", "b"))


@tvm_ffi.register_global_func("tests.projection")
def projection(x, weight, out):
    out.copyfrom(np.einsum("bsh,ho->bso", x.numpy(), weight.numpy()))


@tvm_ffi.register_global_func("tests.negative")
def negative(x):
    return tvm.runtime.tensor(-x.numpy())


def call_of(name, *shapes, out=((8, 6),)):
    """A module that calls a packed function on parameters x0, x1, .. of these shapes."""
    params = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    types = [relax.TensorType(shape, "float32") for shape in out]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            value = builder.emit(relax.call_dps_packed(name, params, out_ty=types))
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    return builder.get()


@I.ir_module(s_tir=True)
class AnyRows:
    """Sums up to each column, for any number of rows; its loops are not understood."""

    @T.prim_func(private=True, s_tir=True)
    def prefix(a: T.handle, c: T.handle):
        T.func_attr({"distir.rule": "n _ -> n _"})
        n = T.int64()
        A = T.match_buffer(a, (n, T.int64(6)))
        C = T.match_buffer(c, (n, T.int64(6)))
        for i, j in T.grid(n, T.int64(6)):
            with T.sblock("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = T.float32(0)
                for k in range(vj + T.int64(1)):
                    C[vi, vj] = C[vi, vj] + A[vi, k]

    @R.function
    def main(x: R.Tensor((8, 6), "float32")):
        cls = AnyRows
        y = R.call_tir(cls.prefix, (x,), out_ty=R.Tensor((8, 6), "float32"))
        return y


@I.ir_module(s_tir=True)
class FixedRows:
    """The row is used as a number, which alone keeps it whole."""

    @T.prim_func(private=True, s_tir=True)
    def double(A: T.Buffer((8, 6), "float32"), C: T.Buffer((8, 6), "float32")):
        T.func_attr({"distir.rule": "n k -> n k"})
        for i, j in T.grid(8, 6):
            with T.sblock("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = T.Select(vi >= 0, A[vi, vj] * T.float32(2), T.float32(0))

    @R.function
    def main(x: R.Tensor((8, 6), "float32")):
        cls = FixedRows
        y = R.call_tir(cls.double, (x,), out_ty=R.Tensor((8, 6), "float32"))
        return y


def propagated(mod, **plan):
    return dx.transform.PropagateSharding()(dx.annotate(mod, MESH, plan))


def placement_of(mod):
    return str(mod["main"].ret_ty.placement).strip('"')


def kinds(mod):
    return [each.kind for each in dx.analysis.collectives(dx.lower(mod))]
