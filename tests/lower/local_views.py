"""Programs with local views, and the orders of passes that they go through."""

import tvm
from tests.meshes import meshes
from tvm import relax
from tvm.relax import op
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx
from distir_ext.testing.phases import verify

MESHES = {
    "2": dx.Mesh((2,), ("a",)),
    "4": dx.Mesh((4,), ("a",)),
    "3x2": dx.Mesh((3, 2), ("a", "b")),
}


ORDERS = {
    "upstream": ["LowerGlobalViewToLocalView", "LegalizeRedistribute"],
    "collectives first": [
        "LegalizeRedistribute",
        "OptimizeCollectives",
        "LowerGlobalViewToLocalView",
    ],
    "collectives last": ["LowerGlobalViewToLocalView", "OptimizeCollectives"],
}


PHASE = {"PropagateSharding": "propagated", "LowerDistIR": "lowered"}  # others: legalized


def through(mod, names):
    """The module after passes, each of which leaves what its phase promises."""
    for name in names:
        mod = getattr(dx.transform, name)()(mod)
        verify(mod, PHASE.get(name, "legalized"))
    return mod


def operators(mod):
    """The names of the operators that a module calls."""
    found = set()

    def visit(node):
        if isinstance(node, tvm.ir.Call) and isinstance(node.op, tvm.ir.Op):
            found.add(node.op.name)

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function.body, visit)
    return found


def perceptron(rows, number):
    """Copies of a perceptron as kernels, with a residual; ``rows`` may be the name of a size."""
    builder = relax.BlockBuilder()
    for i in range(number):
        size = tvm.tirx.Var(rows, "int64") if isinstance(rows, str) else rows
        x, up, down, bias = (
            relax.Var(name, R.Tensor(shape, "float32"))
            for name, shape in {
                "x": (size, 12),
                "up": (12, 24),
                "down": (24, 12),
                "bias": (12,),
            }.items()
        )
        with builder.function(f"f{i}", [x, up, down, bias]):
            with builder.dataflow():
                hidden = builder.emit(op.nn.relu(builder.emit(op.matmul(x, up))))
                summed = builder.emit(op.add(builder.emit(op.matmul(hidden, down)), bias))
                result = builder.emit_output(op.add(x, summed))
            builder.emit_func_output(result)
    return relax.transform.LegalizeOps()(builder.get())


def plans_on(mesh):
    """A reduction behind a kernel; a redistribution behind one; shards of rows too on 2 axes."""
    *_, last = mesh.axis_names
    yield {"up": (None, last), "down": (last, None)}
    if len(mesh.axis_names) == 1:
        yield {"x": (last, None), "up": (last, None), "return": (None, last)}
    else:
        yield {"x": ("a", None), "up": (None, "b"), "return": ("b", None)}


@I.ir_module(s_tir=True)
class ByHand:
    I.module_global_infos(meshes((2, 2)))

    @T.prim_func(private=True, s_tir=True)
    def scale(A: T.Buffer((4, 3), "float32"), B: T.Buffer((4, 3), "float32")):
        for i, j in T.grid(4, 3):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * T.float32(2)

    @T.prim_func(private=True, s_tir=True)
    def exponential(A: T.Buffer((8, 12), "float32"), B: T.Buffer((8, 12), "float32")):
        for i, j in T.grid(8, 12):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = T.exp(A[vi, vj])

    @T.prim_func(private=True, s_tir=True)
    def total(A: T.Buffer((8, 3), "float32"), B: T.Buffer((8,), "float32")):
        for i, k in T.grid(8, 3):
            with T.sblock("B"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    B[vi] = T.float32(0)
                B[vi] = B[vi] + A[vi, vk]

    @R.function
    def main(
        x: R.DTensor((8, 6), "float32", "mesh[0]", "S[0], S[1]"),
        w: R.DTensor((6, 12), "float32", "mesh[0]", "R, S[0]"),
    ):
        cls = ByHand
        twice = R.dist.call_tir_local_view(
            cls.scale, (x,), out_ty=R.DTensor((8, 6), "float32", "mesh[0]", "S[0], S[1]")
        )
        product = R.matmul(twice, w)
        grown = R.dist.call_tir(
            cls.exponential, (product,), out_ty=R.DTensor((8, 12), "float32", "mesh[0]", "S[0], R")
        )
        spread = R.dist.redistribute(grown, "mesh[0]", "S[1], S[1]")
        parts = R.dist.call_tir_local_view(
            cls.total, (spread,), out_ty=R.DTensor((8,), "float32", "mesh[0]", "R, R")
        )
        sums = R.ccl.allreduce(parts, op_type="sum", in_group=False)
        return (sums, grown)


def reduced_by(name, placement="R"):
    @I.ir_module(s_tir=True)
    class Reduced:
        I.module_global_infos(meshes((2,)))

        @T.prim_func(private=True, s_tir=True)
        def scale(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
            for i in range(4):
                with T.sblock("B"):
                    vi = T.axis.spatial(4, i)
                    B[vi] = A[vi] * T.float32(2)

        @R.function
        def main(x: R.DTensor((8,), "float32", "mesh[0]", "S[0]")):
            cls = Reduced
            each = R.dist.call_tir_local_view(
                cls.scale, (x,), out_ty=R.DTensor((4,), "float32", "mesh[0]", placement)
            )
            y = R.ccl.allreduce(each, op_type=name)
            return y

    return Reduced


SMALL = """
@I.ir_module(s_tir=True)
class Small:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @T.prim_func(private=True, s_tir=True)
    def scale(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("B"):
                vi = T.axis.spatial(4, i)
                B[vi] = A[vi] * T.float32(2)

    @R.function
    def main(x: R.{given}):
        cls = Small
        y = R.exp(x)
        each = R.dist.call_tir_local_view(
            cls.scale, (y,), out_ty=R.DTensor(({size},), "float32", "mesh[0]", "{placement}")
        )
        z = R.negative(each)
        return z
"""


def assert_prints_and_parses(mod):
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)


def small(given, placement="S[0]", size=8):
    text = SMALL.replace("{given}", given).replace("{placement}", placement)
    return tvm.script.from_source(text.replace("{size}", str(size)))
