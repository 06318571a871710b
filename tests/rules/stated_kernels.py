"""Kernels whose rules users state."""

from __future__ import annotations

import re

import tvm
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx

MESH = dx.Mesh((2, 2), ("a", "b"))


def unpacking(rows: int, columns: int, rule: str | None) -> tvm.IRModule:
    """Weights of 4 bits, 8 in a word, 32 with one scale, as MLC-LLM's q4f16_1 has them."""

    @I.ir_module(s_tir=True)
    class Module:
        @T.prim_func(private=True, s_tir=True)
        def unpack(
            W: T.Buffer((rows, columns // 8), "uint32"),
            S: T.Buffer((rows, columns // 32), "float16"),
            D: T.Buffer((rows, columns), "float16"),
        ):
            number = T.sblock_alloc_buffer((rows, columns), "float16")
            for i, j in T.grid(rows, columns):
                with T.sblock("number"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    number[vi, vj] = T.Cast(
                        "float16",
                        T.bitwise_and(
                            T.shift_right(W[vi, vj // 8], T.Cast("uint32", vj % 8 * 4)),
                            T.uint32(15),
                        ),
                    )
            for i, j in T.grid(rows, columns):
                with T.sblock("D"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    D[vi, vj] = (number[vi, vj] - T.float16(7)) * S[vi, vj // 32]

        @R.function
        def main(
            down: R.Tensor((rows, columns // 8), "uint32"),
            scale: R.Tensor((rows, columns // 32), "float16"),
        ):
            cls = Module
            y = R.call_tir(cls.unpack, (down, scale), out_ty=R.Tensor((rows, columns), "float16"))
            return y

    return with_rule(Module, rule)


def with_rule(mod: tvm.IRModule, rule: str | None) -> tvm.IRModule:
    if rule is None:
        return mod
    functions = {
        gv: f.with_attr("distir.rule", rule) if isinstance(f, tvm.tirx.PrimFunc) else f
        for gv, f in mod.functions.items()
    }
    return tvm.IRModule(functions)


def loop_extents(function: tvm.tirx.PrimFunc) -> list[int]:
    """The extents of its loops, as it prints them."""
    loops = re.findall(r"for .* in T\.grid\((.*)\):", function.script())
    return [int(extent) for loop in loops for extent in loop.split(", ")]
