"""Kernels of fixed sizes that are cut as a user's rule says, and those that cannot be."""

from __future__ import annotations

import re

import pytest
import tvm
from tests.native.library import call
from tests.rules.stated_kernels import MESH, loop_extents, unpacking, with_rule
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx
from distir_ext import rules

describe = rules.describe_kernel


def test_only_the_digits_that_are_used_as_numbers_are_needed_whole():
    rule = describe(unpacking(8, 256, None)["unpack"])
    assert rule == "W[0][1 2] S[0][1] D[0][1 2 -]; 0: 8 parallel, 1: 8 parallel, 2: 4 parallel"


def kernel(statement: str, rows: int = 8, head: str = "") -> tvm.IRModule:
    """A kernel of A, and of C that has the shape of A, with loops i and j over all of it."""
    shapes = f"({rows}, 6)"
    return tvm.script.from_source(f"""
@I.ir_module(s_tir=True)
class Module:
    @T.prim_func(private=True, s_tir=True)
    def kernel(A: T.Buffer({shapes}, "float32"), C: T.Buffer({shapes}, "float32")):
        {head or f"for i, j in T.grid({rows}, 6):"}
            with T.sblock("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                {statement}

    @R.function
    def main(x: R.Tensor({shapes}, "float32")):
        cls = Module
        y = R.call_tir(cls.kernel, (x,), out_ty=R.Tensor({shapes}, "float32"))
        return y
""")


@pytest.mark.parametrize(
    ("statement", "size", "rule", "plan", "message"),
    [
        (
            "C[vi, vj] = A[7 - vi, vj]",
            8,
            "n k -> n k",
            ("a", None),
            "dimension 0 of `A` is in 2 parts, but loop `i` does not run over dimension 0",
        ),
        (
            "C[vi, vj] = A[vi, (vj + 1) % 6]",
            8,
            "n k -> n k",
            (None, "a"),
            "dimension 1 of `A` is in 2 parts, but loop `j` does not run over dimension 1",
        ),
        (
            "C[vi, vj] = A[0, vj]",
            8,
            "n k -> n k",
            ("a", None),
            "dimension 0 of `A` is in 2 parts, but no loop runs over dimension 0 of `A`",
        ),
        (
            "C[vi, vj] = A[vi, vj]",
            6,
            "n k -> k n",
            ("a", None),
            "dimension 0 of `C` is whole, but the index maps tie it to one that is in 2 parts",
        ),
    ],
    ids=["reversed", "rolled", "one row", "transposed"],
)
def test_a_kernel_that_cannot_be_cut_as_stated_is_refused(statement, size, rule, plan, message):
    mod = with_rule(kernel(statement, size), rule)
    wanted = re.escape(f'kernel `kernel` by its rule "{rule}" cannot run on shards: {message}')
    with pytest.raises(ValueError, match=wanted):
        dx.lower(dx.annotate(mod, MESH, {"x": plan}))


def test_threads_are_not_cut_by_a_stated_rule():
    head = """for i in T.thread_binding(8, thread="threadIdx.x"):
          for j in range(6):"""
    mod = with_rule(kernel("C[vi, vj] = A[vi, vj]", head=head), "n k -> n k")
    with pytest.raises(ValueError, match="is in 2 parts, but loop `i` is bound to a thread"):
        dx.lower(dx.annotate(mod, MESH, {"x": ("a", None)}))


@I.ir_module(s_tir=True)
class Scaled:
    """Rows of any number, which both operands have."""

    @T.prim_func(private=True, s_tir=True)
    def scale(a: T.handle, b: T.handle, c: T.handle):
        T.func_attr({"distir.rule": "n k, _ -> n k"})
        n = T.int64()
        A = T.match_buffer(a, (n, T.int64(6)))
        B = T.match_buffer(b, (n,))
        C = T.match_buffer(c, (n, T.int64(6)))
        for i, j in T.grid(n, T.int64(6)):
            with T.sblock("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj] * B[vi]

    @R.function
    def main(x: R.Tensor((8, 6), "float32"), y: R.Tensor((8,), "float32")):
        cls = Scaled
        z = R.call_tir(cls.scale, (x, y), out_ty=R.Tensor((8, 6), "float32"))
        return z


def test_a_symbolic_size_of_two_values_is_refused():
    message = "`scale` by its rule .* size `n` is in 2 parts in dimension 0 of `A` and whole in dim"
    with pytest.raises(ValueError, match=message):
        dx.lower(dx.annotate(Scaled, MESH, {"x": ("a", None)}))


# ---- the proof behind all of this, for cuts that no rule would ask for


def cut(statement: str) -> list[str]:
    """Cuts each factor of a kernel in two by itself; returns loop extents or errors."""
    function = kernel(statement)["kernel"]
    outcomes = []
    for parts in ([2, 1, 1, 1], [1, 2, 1, 1], [1, 1, 2, 1], [1, 1, 1, 2]):
        try:
            outcomes.append(str(loop_extents(call("LocalKernel", "kernel `k`", function, parts))))
        except ValueError as error:
            outcomes.append(str(error))
    return outcomes


@pytest.mark.parametrize(
    ("statement", "refused"),
    [
        ("C[vi, vj] = A[7 - vi, vj]", r"index `7 - vi` in loop `i` .* within dimension 0 of `A`"),
        ("C[vi, vj] = A[(vi + 4) % 8, vj]", r"index `.*8` in loop `i` .* dimension 0 of `A`"),
        ("C[7 - vi, vj] = A[vi, vj]", r"index `7 - vi` in loop `i` .* within dimension 0 of `C`"),
    ],
)
def test_no_access_leaves_its_buffer(statement, refused):
    outcomes = cut(statement)
    assert any(
        re.match(rf"kernel `k`: {refused}, of which a worker has [48]$", o) for o in outcomes
    )
    assert "[3, 8]" in outcomes or "[8, 3]" in outcomes


def test_kernels_of_other_programs_are_not_refused():
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((8, 4, 6), "float32"))
    with builder.function("main", [x]):
        y = builder.emit(relax.op.reshape(relax.op.flip(x, 1), (8, 24)))
        y = builder.emit(relax.op.cumsum(relax.op.nn.pad(y, (0, 0, 1, 1)), 1))
        builder.emit_func_output(builder.emit(relax.op.take(y, relax.const([3, 1]), 1)))
    mod = dx.annotate(relax.transform.LegalizeOps()(builder.get()), MESH, {"x": ("a", None, None)})
    assert any("_local" in gv.name_hint for gv in dx.lower(mod).functions)
