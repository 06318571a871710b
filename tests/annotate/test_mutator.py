"""ShardingMutator: a subclass names shardings of calls, the base class writes annotations."""

from __future__ import annotations

import itertools

import pytest
import tvm
from tests.meshes import meshes
from tvm import relax
from tvm.ir import GlobalVar
from tvm.relax.distributed import DeviceMesh, Placement
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


@I.ir_module
class Chain:
    @R.function(private=True)
    def block(x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")) -> R.Tensor(
        (8, 8), "float32"
    ):
        with R.dataflow():
            h = R.matmul(x, w)
            y = R.nn.relu(h)
            R.output(y)
        return y

    @R.function
    def main(
        x: R.Tensor((8, 8), "float32"),
        w0: R.Tensor((8, 8), "float32"),
        w1: R.Tensor((8, 8), "float32"),
    ) -> R.Tensor((8, 8), "float32"):
        cls = Chain
        with R.dataflow():
            h = cls.block(x, w0)
            c = R.concat((h, x), axis=0)
            s = R.strided_slice(c, axes=[0], begin=[0], end=[8])
            y = cls.block(s, w1)
            R.output(y)
        return y


MESH = dx.Mesh((2, 2), ("dp", "tp"))
STAGES = [dx.Mesh((1,), ("d",), device_ids=(i,)) for i in range(2)]


class OneStageEach(dx.ShardingMutator):
    """The calls to block alternate between two meshes."""

    def __init__(self, mod=None):
        super().__init__(mod)
        self.stages = itertools.cycle(STAGES)

    def place(self, call):
        if self.callee(call) == "block":
            return {0: (next(self.stages), (None, None))}
        return None


class Fixed(dx.ShardingMutator):
    """Returns equal placements at every call of one callee."""

    def __init__(self, callee, places, mod=None, func="main"):
        super().__init__(mod, func)
        self.where, self.places = callee, places

    def place(self, call):
        return self.places if self.callee(call) == self.where else None


def body_text(mod, func="main"):
    return [line.strip() for line in mod[func].script().splitlines() if " = " in line]


def check(mod):
    assert relax.analysis.check_well_formed(mod)
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)


def test_result_is_the_same_as_written_by_hand():
    @I.ir_module
    class Expected:
        I.module_attrs({"distir.mesh_axes": {"mesh": [["d"], ["d"]]}})
        I.module_global_infos(meshes((1,), (1,)))

        @R.function(private=True)
        def block(x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")) -> R.Tensor(
            (8, 8), "float32"
        ):
            with R.dataflow():
                h = R.matmul(x, w)
                y = R.nn.relu(h)
                R.output(y)
            return y

        @R.function
        def main(
            x: R.Tensor((8, 8), "float32"),
            w0: R.Tensor((8, 8), "float32"),
            w1: R.Tensor((8, 8), "float32"),
        ) -> R.Tensor((8, 8), "float32"):
            cls = Expected
            with R.dataflow():
                x0 = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="R")
                h = cls.block(x0, w0)
                c = R.concat((h, x), axis=0)
                s = R.strided_slice(c, axes=[0], begin=[0], end=[8])
                s1 = R.dist.annotate_sharding(s, device_mesh="mesh[1]", placement="R")
                y = cls.block(s1, w1)
                R.output(y)
            return y

    before = Chain.script()
    result = OneStageEach()(Chain)
    tvm.ir.assert_structural_equal(result, Expected)
    check(result)
    assert Chain.script() == before


def test_run_uses_the_module_of_the_constructor():
    assert OneStageEach(Chain).run().script() == OneStageEach()(Chain).script()


def test_run_rewrites_the_named_function():
    result = Fixed("relax.matmul", {1: (MESH, (None, "tp"))}, Chain).run("block")
    assert result["main"].same_as(Chain["main"])
    assert any("annotate_sharding(w" in line for line in body_text(result, "block"))
    check(result)


def test_instance_is_a_pass():
    seq = tvm.transform.Sequential(
        [OneStageEach(), Fixed("relax.matmul", {"out": (MESH, ("dp", None))}, func="block")]
    )
    result = seq(Chain)
    assert [list(m.shape) for m in result.global_infos["mesh"]] == [[1], [1], [2, 2]]
    check(result)


def test_one_object_can_rewrite_several_modules():
    mutator = Fixed("block", {0: (MESH, ("dp", None))})
    assert mutator(Chain).script() == mutator(Chain.clone()).script()


def test_result_of_a_call_is_annotated():
    result = Fixed("block", {"out": (MESH, ("dp", "tp"))})(Chain)
    lines = body_text(result)
    (call,) = (i for i, line in enumerate(lines) if "block(x, w0)" in line)
    name = lines[call].split(":")[0]
    assert f"annotate_sharding({name}, " in lines[call + 1]
    assert 'placement="S[0], S[1]"' in lines[call + 1]
    check(result)


def test_path_names_a_field_of_a_tuple_argument():
    result = Fixed("relax.concat", {(0, 1): (MESH, (None, "tp"))})(Chain)
    lines = body_text(result)
    (concat,) = (i for i, line in enumerate(lines) if "R.concat" in line)
    annotated = lines[concat - 1]
    assert "annotate_sharding(x, " in annotated
    assert f"R.concat((h, {annotated.split(':')[0]})" in lines[concat]
    check(result)


@pytest.mark.parametrize("placement", ["R, S[1]", Placement.from_text("R, S[1]")])
def test_device_mesh_takes_tvms_own_placements(placement):
    device_mesh = DeviceMesh([2, 2], tvm.ir.Range(0, 4))
    result = Fixed("block", {1: (device_mesh, placement)})(Chain)
    expected = Fixed("block", {1: (MESH, (None, "tp"))})(Chain)
    assert body_text(result) == body_text(expected)
    assert "mesh_axes" not in result.script()  # TVM's mesh has no names


def test_subclass_of_a_subclass_and_other_visit_methods():
    class Renamed(OneStageEach):
        """Also replaces relu, which its base class knows nothing of."""

        def visit_call_(self, call):
            call = super().visit_call_(call)
            if self.callee(call) == "relax.strided_slice":
                return relax.op.nn.relu(call)
            return call

    text = Renamed()(Chain).script()
    assert text.count("annotate_sharding") == 2
    assert "strided_slice" in text
    assert text.count("R.nn.relu") == 2


def test_calls_in_branches_are_placed():
    @I.ir_module
    class Branch:
        @R.function
        def main(p: R.Tensor((), "bool"), x: R.Tensor((8, 8), "float32")) -> R.Tensor(
            (8, 8), "float32"
        ):
            if p:
                a = R.nn.relu(x)
                y = R.add(a, a)
            else:
                b = R.nn.relu(x)
                y = R.multiply(b, b)
            return y

    result = Fixed("relax.nn.relu", {0: (MESH, ("dp", None))})(Branch)
    assert result.script().count("annotate_sharding") == 2
    check(result)


def test_plain_mutator_in_the_style_of_the_forum_thread_works_beside_the_plan():
    @relax.expr_functor.mutator
    class EveryCallOnTheNextMesh(relax.PyExprMutator):
        def __init__(self, mod):
            super().__init__()
            self.meshes = itertools.cycle(mod.global_infos["mesh"])

        def visit_call_(self, call):
            call = self.visit_expr_post_order(call)
            if not isinstance(call.op, GlobalVar):
                return call
            first = relax.op.distributed.annotate_sharding(
                call.args[0], next(self.meshes), Placement.from_text("R")
            )
            return relax.Call(call.op, [first, *call.args[1:]], call.attrs, call.ty_args)

    plan = {"w0": (STAGES[0], None), "w1": (STAGES[1], None)}
    mod = dx.annotate(Chain, STAGES[0], plan)
    mod["main"] = EveryCallOnTheNextMesh(mod).visit_expr(mod["main"])
    assert mod.script().count("annotate_sharding") == 4
    check(mod)
