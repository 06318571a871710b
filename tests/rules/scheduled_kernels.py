"""A kernel that is scheduled for a GPU."""

import tvm

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


def module(block: str, second: str) -> tvm.IRModule:
    return tvm.script.from_source(MODULE.format(block=block, second=second))
