"""Two perceptron layers through one private function: on two meshes, then on a 2x2 mesh.

The program is the one that is usually asked about: a function that is called twice, where each
call is to run somewhere else. Its two calls are first put on a mesh of their own by a mutator
written against TVM alone (`forum_case`); the same program is sharded over a 2x2 mesh by a plan
(`megatron_case`).
"""

# TVMScript functions are no methods, and their annotations are values, not Python types.
# mypy: disable-error-code="valid-type"
# ruff: noqa: D102, N805

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax
from tvm.relax.distributed import Placement
from tvm.script.parser import ir as I  # noqa: N812
from tvm.script.parser import relax as R  # noqa: N812

from distir_ext.annotate.patterns import annotate
from distir_ext.demo.case import Case, normal_weights
from distir_ext.mesh.mesh import Mesh

SIZE = 128
SEED = 7


@I.ir_module
class TwoLayers:
    """``mlp`` called twice."""

    @R.function(private=True)
    def mlp(
        x: R.Tensor((128, 128), "float32"),
        up: R.Tensor((128, 128), "float32"),
        down: R.Tensor((128, 128), "float32"),
    ) -> R.Tensor((128, 128), "float32"):
        with R.dataflow():
            hidden = R.matmul(x, up)
            active = R.nn.relu(hidden)
            out = R.matmul(active, down)
            R.output(out)
        return out

    @R.function
    def main(
        x: R.Tensor((128, 128), "float32"),
        up0: R.Tensor((128, 128), "float32"),
        down0: R.Tensor((128, 128), "float32"),
        up1: R.Tensor((128, 128), "float32"),
        down1: R.Tensor((128, 128), "float32"),
    ) -> R.Tensor((128, 128), "float32"):
        R.func_attr({"num_input": 1})
        cls = TwoLayers
        with R.dataflow():
            first = cls.mlp(x, up0, down0)
            second = cls.mlp(first, up1, down1)
            R.output(second)
        return second


@relax.expr_functor.mutator
class NextMeshPerCall(relax.PyExprMutator):
    """Puts the first argument of each call to ``mlp`` on the next mesh of the module."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.meshes = itertools.cycle(mod.global_infos["mesh"])

    def visit_call_(self, call: relax.Call) -> relax.Call:
        """Annotates, if this is a call to ``mlp``."""
        call = self.visit_expr_post_order(call)
        if not isinstance(call.op, tvm.ir.GlobalVar) or call.op.name_hint != "mlp":
            return call
        placed = relax.op.distributed.annotate_sharding(
            call.args[0], next(self.meshes), Placement.from_text("R")
        )
        return relax.Call(call.op, [placed, *call.args[1:]], call.attrs, call.ty_args, call.span)


def forum_case() -> Case:
    """One call per mesh of a single device."""
    meshes = tuple(Mesh((1,), ("stage",), device_ids=(device,)) for device in range(2))

    def mark(mod: tvm.IRModule) -> tvm.IRModule:
        result = mod.clone()
        result.update_global_info("mesh", [mesh.device_mesh for mesh in meshes])
        result["main"] = NextMeshPerCall(result).visit_expr(result["main"])
        return result

    return _case("forum", "the two MLP layers again, each on a mesh of its own", mark, meshes)


def megatron_case() -> Case:
    """Rows of x over dp; the first weight of each layer by columns, the second by rows over tp."""
    mesh = Mesh((2, 2), ("dp", "tp"))
    plan = {"x": ("dp", None), r"up\d": (None, "tp"), r"down\d": ("tp", None)}
    title = "two MLP layers, batch over dp and Megatron sharding over tp"
    return _case("megatron", title, lambda mod: annotate(mod, mesh, plan), (mesh,))


def _case(
    name: str,
    title: str,
    mark: Callable[[tvm.IRModule], tvm.IRModule],
    meshes: tuple[Mesh, ...],
) -> Case:
    generator = np.random.default_rng(SEED)
    x = generator.standard_normal((SIZE, SIZE)).astype(np.float32)
    shapes = dict.fromkeys(("up0", "down0", "up1", "down1"), (SIZE, SIZE))
    return Case(
        name=name,
        title=title,
        module=TwoLayers,
        function="main",
        annotate=mark,
        meshes=meshes,
        inputs={"x": x},
        weights=normal_weights(shapes, generator),
    )
