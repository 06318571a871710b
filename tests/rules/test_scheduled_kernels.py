"""Kernels that are already scheduled for a GPU: shards have fewer blocks of the grid."""

import re

import numpy as np
import pytest
import tvm
import tvm_ffi

import distir_ext as dx

describe = tvm_ffi.get_global_func("distir.rules.DescribeKernel")

MODULE = """
@I.ir_module(s_tir=True)
class Module:
    @T.prim_func(private=True, s_tir=True)
    def kernel(A: T.Buffer((64, 32), "float32"), C: T.Buffer((64, 32), "float32")):
        scaled = T.sblock_alloc_buffer((64, 32), scope="shared")
        for block in T.thread_binding(8, thread="{block}"):
            for thread in T.thread_binding(256, thread="threadIdx.x"):
                with T.sblock("scaled"):
                    vi = T.axis.spatial(64, block * 8 + thread // 32)
                    vj = T.axis.spatial(32, thread % 32)
                    scaled[vi, vj] = A[vi, vj] * T.float32(2)
        for block in T.thread_binding(8, thread="{second}"):
            for thread in T.thread_binding(256, thread="threadIdx.x"):
                with T.sblock("C"):
                    vi = T.axis.spatial(64, block * 8 + thread // 32)
                    vj = T.axis.spatial(32, thread % 32)
                    C[vi, vj] = scaled[vi, vj] + T.float32(1)

    @R.function
    def main(x: R.Tensor((64, 32), "float32")):
        cls = Module
        y = R.call_tir(cls.kernel, (x,), out_ty=R.Tensor((64, 32), "float32"))
        return y
"""

MESH = dx.Mesh((4,), ("x",))


def module(block: str, second: str) -> tvm.IRModule:
    return tvm.script.from_source(MODULE.format(block=block, second=second))


@pytest.mark.parametrize(
    ("block", "second", "rule"),
    [
        ("blockIdx.x", "blockIdx.y", "A[0 -][-] C[0 -][-]; 0: 8 parallel"),
        # One of two loops over the same blocks cannot have fewer of them.
        ("blockIdx.x", "blockIdx.x", "A[- -][-] C[- -][-]"),
        ("threadIdx.y", "threadIdx.y", "A[- -][-] C[- -][-]"),
    ],
)
def test_blocks_are_shared_out_and_threads_are_not(block, second, rule):
    assert describe(module(block, second)["kernel"]) == rule


def test_numbers_of_fewer_blocks():
    mod = dx.annotate(module("blockIdx.x", "blockIdx.y"), MESH, {"x": ("x", None)})
    lowered = dx.lower(mod)
    assert dx.analysis.collectives(lowered) == []
    text = lowered.script(show_meta=True)
    assert 'T.thread_binding(2, thread="blockIdx.x")' in text
    # What is bound to threads computes what plain loops do, which a CPU can run.
    plain = re.sub(r'T\.thread_binding\((\d+), thread="[^"]*"\)', r"range(\1)", text)
    x = np.random.default_rng(0).standard_normal((64, 32)).astype("float32")
    with dx.Session(MESH) as session:
        got = session.load(dx.build(tvm.script.from_source(plain)))["main"](x).numpy()
    np.testing.assert_allclose(got, x * 2 + 1, rtol=1e-6)
