"""Hand-written TIR kernels for which a carelessly derived rule would give wrong results."""

from __future__ import annotations

import tvm
from tvm.script.parser import tirx as T


@T.prim_func(private=True, s_tir=True)
def tiled_matmul(
    A: T.Buffer((24, 12), "float32"),
    B: T.Buffer((12, 24), "float32"),
    C: T.Buffer((24, 24), "float32"),
):
    for i0, j0, k, i1, j1 in T.grid(6, 12, 12, 4, 2):
        with T.sblock("C"):
            i = T.axis.spatial(24, i0 * 4 + i1)
            j = T.axis.spatial(24, j0 * 2 + j1)
            r = T.axis.reduce(12, k)
            with T.init():
                C[i, j] = T.float32(0)
            C[i, j] = C[i, j] + A[i, r] * B[r, j]


@T.prim_func(private=True, s_tir=True)
def tiled_by_unaligned(A: T.Buffer((24,), "float32"), C: T.Buffer((4, 6), "float32")):
    B = T.sblock_alloc_buffer((24,), "float32")
    for i0, i1 in T.grid(3, 8):
        with T.sblock("B"):
            i = T.axis.spatial(24, i0 * 8 + i1)
            B[i] = A[i] * T.float32(2)
    for i, j in T.grid(4, 6):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi * 6 + vj]


@T.prim_func(private=True, s_tir=True)
def other_order_inside(A: T.Buffer((12, 12), "float32"), C: T.Buffer((12, 12), "float32")):
    # Digits in the order (j, i) are only in the intermediate buffer.
    B = T.sblock_alloc_buffer((144,), "float32")
    for i, j in T.grid(12, 12):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vj * 12 + vi] = A[vi, vj]
    for i, j in T.grid(12, 12):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vj * 12 + vi] + T.float32(1)


@T.prim_func(private=True, s_tir=True)
def diagonal(A: T.Buffer((12, 12), "float32"), C: T.Buffer((12,), "float32")):
    for i in range(12):
        with T.sblock("C"):
            vi = T.axis.spatial(12, i)
            C[vi] = A[vi, vi]


@T.prim_func(private=True, s_tir=True)
def gram(A: T.Buffer((12, 24), "float32"), C: T.Buffer((12, 12), "float32")):
    for i, j, k in T.grid(12, 12, 24):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * A[vj, vk]


@T.prim_func(private=True, s_tir=True)
def symmetric_part(A: T.Buffer((12, 12), "float32"), C: T.Buffer((12, 12), "float32")):
    for i, j in T.grid(12, 12):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] + A[vj, vi]


@T.prim_func(private=True, s_tir=True)
def scan(A: T.Buffer((12, 24), "float32"), C: T.Buffer((12, 24), "float32")):
    for i, j in T.grid(12, 24):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] + T.if_then_else(vj > 0, C[vi, vj - 1], T.float32(0))


@T.prim_func(private=True, s_tir=True)
def sum_from_bias(
    A: T.Buffer((12, 24), "float32"),
    bias: T.Buffer((12,), "float32"),
    C: T.Buffer((12,), "float32"),
):
    for i, k in T.grid(12, 24):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = bias[vi]
            C[vi] = C[vi] + A[vi, vk]


@T.prim_func(private=True, s_tir=True)
def sum_from_one(A: T.Buffer((12, 24), "float32"), C: T.Buffer((12,), "float32")):
    for i, k in T.grid(12, 24):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(1)
            C[vi] = A[vi, vk] + C[vi]


@T.prim_func(private=True, s_tir=True)
def max_from_one(A: T.Buffer((12, 24), "float32"), C: T.Buffer((12,), "float32")):
    for i, k in T.grid(12, 24):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(1)
            C[vi] = T.max(C[vi], A[vi, vk])


@T.prim_func(private=True, s_tir=True)
def sum_apart_from_init(A: T.Buffer((12, 24), "float32"), C: T.Buffer((12,), "float32")):
    for i in range(12):
        with T.sblock("init"):
            vi = T.axis.spatial(12, i)
            C[vi] = T.float32(0)
    for i, k in T.grid(12, 24):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            C[vi] = C[vi] + A[vi, vk]


@T.prim_func(private=True, s_tir=True)
def two_results(
    A: T.Buffer((12, 24), "float32"),
    total: T.Buffer((12,), "float32"),
    copy: T.Buffer((12, 24), "float32"),
):
    for i, k in T.grid(12, 24):
        with T.sblock("total"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                total[vi] = T.float32(0)
            total[vi] = total[vi] + A[vi, vk]
    for i, k in T.grid(12, 24):
        with T.sblock("copy"):
            vi, vk = T.axis.remap("SS", [i, k])
            copy[vi, vk] = A[vi, vk]


@T.prim_func(private=True, s_tir=True)
def sum_plus_one(A: T.Buffer((12, 24), "float32"), C: T.Buffer((12,), "float32")):
    B = T.sblock_alloc_buffer((12,), "float32")
    for i, k in T.grid(12, 24):
        with T.sblock("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vi, vk]
    for i in range(12):
        with T.sblock("C"):
            vi = T.axis.spatial(12, i)
            C[vi] = B[vi] + T.float32(1)


@T.prim_func(private=True, s_tir=True)
def sum_scaled(
    A: T.Buffer((12, 24), "float32"), w: T.Buffer((12,), "float32"), C: T.Buffer((12,), "float32")
):
    B = T.sblock_alloc_buffer((12,), "float32")
    for i, k in T.grid(12, 24):
        with T.sblock("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vi, vk]
    for i in range(12):
        with T.sblock("C"):
            vi = T.axis.spatial(12, i)
            C[vi] = (T.float32(3) * B[vi]) * w[vi] / T.float32(24)


@T.prim_func(private=True, s_tir=True)
def weighted_by_own_sum(A: T.Buffer((12, 24), "float32"), C: T.Buffer((12, 24), "float32")):
    B = T.sblock_alloc_buffer((12,), "float32")
    for i, k in T.grid(12, 24):
        with T.sblock("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vi, vk]
    for i, j in T.grid(12, 24):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi] * A[vi, vj]


@T.prim_func(private=True, s_tir=True)
def max_of_sums(A: T.Buffer((12, 24), "float32"), C: T.Buffer((1,), "float32")):
    B = T.sblock_alloc_buffer((12,), "float32")
    for i, k in T.grid(12, 24):
        with T.sblock("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vi, vk]
    for i in range(12):
        with T.sblock("C"):
            vi = T.axis.reduce(12, i)
            with T.init():
                C[0] = T.float32(-1e9)
            C[0] = T.max(C[0], B[vi])


@T.prim_func(private=True, s_tir=True)
def sum_of_sums(A: T.Buffer((12, 24), "float32"), C: T.Buffer((1,), "float32")):
    B = T.sblock_alloc_buffer((12,), "float32")
    for i, k in T.grid(12, 24):
        with T.sblock("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vi, vk]
    for i in range(12):
        with T.sblock("C"):
            vi = T.axis.reduce(12, i)
            with T.init():
                C[0] = T.float32(0)
            C[0] = C[0] + B[vi] * T.float32(0.5)


@T.prim_func(private=True, s_tir=True)
def square_of_sum(A: T.Buffer((12, 24), "float32"), C: T.Buffer((12,), "float32")):
    B = T.sblock_alloc_buffer((12,), "float32")
    for i, k in T.grid(12, 24):
        with T.sblock("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vi, vk]
    for i in range(12):
        with T.sblock("C"):
            vi = T.axis.spatial(12, i)
            C[vi] = B[vi] * B[vi]


@T.prim_func(private=True, s_tir=True)
def product_of_sums(
    A: T.Buffer((12, 24), "float32"), D: T.Buffer((12, 6), "float32"), C: T.Buffer((12,), "float32")
):
    B = T.sblock_alloc_buffer((12,), "float32")
    E = T.sblock_alloc_buffer((12,), "float32")
    for i, k in T.grid(12, 24):
        with T.sblock("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vi, vk]
    for i, k in T.grid(12, 6):
        with T.sblock("E"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                E[vi] = T.float32(0)
            E[vi] = E[vi] + D[vi, vk]
    for i in range(12):
        with T.sblock("C"):
            vi = T.axis.spatial(12, i)
            C[vi] = B[vi] * E[vi]


@T.prim_func(private=True, s_tir=True)
def sum_of_partial_sums(A: T.Buffer((12, 24), "float32"), C: T.Buffer((12,), "float32")):
    B = T.sblock_alloc_buffer((12, 4), "float32")
    for i, r, k in T.grid(12, 4, 6):
        with T.sblock("B"):
            vi, vr, vk = T.axis.remap("SSR", [i, r, k])
            with T.init():
                B[vi, vr] = T.float32(0)
            B[vi, vr] = B[vi, vr] + A[vi, vr * 6 + vk]
    for i, r in T.grid(12, 4):
        with T.sblock("C"):
            vi, vr = T.axis.remap("SR", [i, r])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + B[vi, vr]


@T.prim_func(private=True, s_tir=True)
def causal_mask(A: T.Buffer((12, 12), "float32"), C: T.Buffer((12, 12), "float32")):
    for i, j in T.grid(12, 12):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.Select(vj <= vi, A[vi, vj], T.float32(0))


@T.prim_func(private=True, s_tir=True)
def add_position(A: T.Buffer((12, 24), "float32"), C: T.Buffer((12, 24), "float32")):
    for i, j in T.grid(12, 24):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] + T.Cast("float32", vj)


@T.prim_func(private=True, s_tir=True)
def rotate_half(A: T.Buffer((6, 12, 4), "float32"), C: T.Buffer((6, 12, 4), "float32")):
    for s, h, d in T.grid(6, 12, 4):
        with T.sblock("C"):
            vs, vh, vd = T.axis.remap("SSS", [s, h, d])
            C[vs, vh, vd] = T.if_then_else(vd < 2, -A[vs, vh, vd + 2], A[vs, vh, vd - 2])


@T.prim_func(private=True, s_tir=True)
def shifted(A: T.Buffer((12, 24), "float32"), C: T.Buffer((12, 24), "float32")):
    for i, j in T.grid(12, 24):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, (vj + 1) % 24]


@T.prim_func(private=True, s_tir=True)
def reversed_rows(A: T.Buffer((12, 24), "float32"), C: T.Buffer((12, 24), "float32")):
    for i, j in T.grid(12, 24):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[11 - vi, vj]


@T.prim_func(private=True, s_tir=True)
def last_column(A: T.Buffer((12, 24), "float32"), C: T.Buffer((12,), "float32")):
    for i, j in T.grid(12, 24):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi] = A[vi, vj]


@T.prim_func(private=True, s_tir=True)
def predicated(A: T.Buffer((12, 24), "float32"), C: T.Buffer((12, 24), "float32")):
    for i, j0, j1 in T.grid(12, 5, 5):
        with T.sblock("C"):
            vi = T.axis.spatial(12, i)
            vj = T.axis.spatial(24, j0 * 5 + j1)
            T.where(j0 * 5 + j1 < 24)
            C[vi, vj] = A[vi, vj] + T.float32(1)


@T.prim_func(private=True, s_tir=True)
def plain_loops(A: T.Buffer((12, 24), "float32"), C: T.Buffer((12, 24), "float32")):
    for i in T.serial(12):
        for j in T.vectorized(24):
            C[i, j] = A[i, j] * T.float32(2)


@T.prim_func(private=True, s_tir=True)
def doubled_in_place(A: T.Buffer((12, 24), "float32"), C: T.Buffer((12, 24), "float32")):
    for i, j in T.grid(12, 24):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj]
    for _ in range(4):
        for i, j in T.grid(12, 24):
            with T.sblock("D"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = C[vi, vj] * T.float32(2)


@T.prim_func(private=True, s_tir=True)
def loop_in_block(A: T.Buffer((12, 24), "float32"), C: T.Buffer((12,), "float32")):
    for i in range(12):
        with T.sblock("C"):
            vi = T.axis.spatial(12, i)
            T.reads(A[vi, 0:24])
            T.writes(C[vi])
            C[vi] = T.float32(0)
            for k in range(24):
                C[vi] = C[vi] + A[vi, k]


@T.prim_func(private=True, s_tir=True)
def heads_of_fused_projection(
    A: T.Buffer((12, 48), "float32"),
    q: T.Buffer((12, 4, 6), "float32"),
    k: T.Buffer((12, 4, 6), "float32"),
):
    for s, h, d in T.grid(12, 4, 6):
        with T.sblock("q"):
            vs, vh, vd = T.axis.remap("SSS", [s, h, d])
            q[vs, vh, vd] = A[vs, vh * 6 + vd]
    for s, h, d in T.grid(12, 4, 6):
        with T.sblock("k"):
            vs, vh, vd = T.axis.remap("SSS", [s, h, d])
            k[vs, vh, vd] = A[vs, vh * 6 + vd + 24]


@T.prim_func(private=True, s_tir=True)
def block_in_block(A: T.Buffer((12, 24), "float32"), C: T.Buffer((12, 24), "float32")):
    for i, j0 in T.grid(12, 4):
        with T.sblock("tile"):
            vi, vj0 = T.axis.remap("SS", [i, j0])
            T.reads(A[vi, vj0 * 6 : vj0 * 6 + 6])
            T.writes(C[vi, vj0 * 6 : vj0 * 6 + 6])
            for j1 in range(6):
                with T.sblock("C"):
                    vj = T.axis.spatial(24, vj0 * 6 + j1)
                    C[vi, vj] = T.exp(A[vi, vj])


@T.prim_func(private=True, s_tir=True)
def fill(C: T.Buffer((12, 24), "float32")):
    for i, j in T.grid(12, 24):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.float32(7)


RULES = [
    (
        tiled_matmul,
        "A[0 1][2] B[2][3 4] C[0 1][3 4]; "
        "0: 6 parallel, 1: 4 parallel, 2: 12 sum, 3: 12 parallel, 4: 2 parallel",
    ),
    (tiled_by_unaligned, "A[- -] C[-][-]"),
    (other_order_inside, "A[-][0] C[-][0]; 0: 12 parallel"),
    (diagonal, "A[-][-] C[-]"),
    (gram, "A[-][0] C[-][-]; 0: 24 sum"),
    (symmetric_part, "A[-][-] C[-][-]"),
    (scan, "A[0][-] C[0][-]; 0: 12 parallel"),
    (sum_from_bias, "A[0][-] bias[0] C[0]; 0: 12 parallel"),
    (sum_from_one, "A[0][-] C[0]; 0: 12 parallel"),
    (max_from_one, "A[0][1] C[0]; 0: 12 parallel, 1: 24 max"),
    (sum_apart_from_init, "A[0][-] C[0]; 0: 12 parallel"),
    (two_results, "A[0][-] total[0] copy[0][-]; 0: 12 parallel"),
    (sum_plus_one, "A[0][-] C[0]; 0: 12 parallel"),
    (sum_scaled, "A[0][1] w[0] C[0]; 0: 12 parallel, 1: 24 sum"),
    (weighted_by_own_sum, "A[0][-] C[0][-]; 0: 12 parallel"),
    (max_of_sums, "A[0][-] C[]; 0: 12 max"),
    (sum_of_sums, "A[0][1] C[]; 0: 12 sum, 1: 24 sum"),
    (square_of_sum, "A[0][-] C[0]; 0: 12 parallel"),
    (product_of_sums, "A[0][1] D[0][2] C[0]; 0: 12 parallel, 1: 24 sum, 2: 6 sum"),
    (sum_of_partial_sums, "A[0][1 2] C[0]; 0: 12 parallel, 1: 4 sum, 2: 6 sum"),
    (causal_mask, "A[-][-] C[-][-]"),
    (add_position, "A[0][-] C[0][-]; 0: 12 parallel"),
    (rotate_half, "A[0][1][-] C[0][1][-]; 0: 6 parallel, 1: 12 parallel"),
    (shifted, "A[0][-] C[0][-]; 0: 12 parallel"),
    (reversed_rows, "A[-][0] C[-][0]; 0: 24 parallel"),
    (last_column, "A[0][-] C[0]; 0: 12 parallel"),
    (predicated, "A[0][-] C[0][-]; 0: 12 parallel"),
    (plain_loops, "A[0][1] C[0][1]; 0: 12 parallel, 1: 24 parallel"),
    (doubled_in_place, "A[0][1] C[0][1]; 0: 12 parallel, 1: 24 parallel"),
    (loop_in_block, "A[0][-] C[0]; 0: 12 parallel"),
    (heads_of_fused_projection, "A[0][-] q[0][-][-] k[0][-][-]; 0: 12 parallel"),
    (block_in_block, "A[0][- -] C[0][- -]; 0: 12 parallel"),
    (fill, "C[0][1]; 0: 12 parallel, 1: 24 parallel"),
]
TWO_RESULTS = (two_results, heads_of_fused_projection)
NAMES = [
    kernel_name
    for kernel_name, value in list(globals().items())
    if isinstance(value, tvm.tirx.PrimFunc)
]
