"""The verifiers report every violation, and nothing else."""

import re

import pytest
import tvm
from tests.meshes import meshes
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx
from distir_ext.testing.phases import PHASES, verify, violations


@I.ir_module(check_well_formed=False)
class NotPropagated:
    I.module_global_infos(meshes((2,), (2,)))

    @R.function(private=True)
    def inner(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
    ) -> R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"):
        y = R.exp(x)
        return y

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        y: R.Tensor((8, 8), "float32"),
        t: R.Tuple(R.DTensor((8, 8), "float32", "mesh[1]", "R"), R.Tensor((4,), "float32")),
    ):
        cls = NotPropagated
        a = cls.inner(x)
        b = R.exp(y)
        c = R.dist.annotate_sharding(b, "mesh[0]", "S[0]")
        zeros = R.zeros(R.shape([8, 8]), "float32")
        also = zeros
        return a


def test_every_violation_of_propagated_is_listed():
    found = violations(NotPropagated, "propagated")
    expected = [
        "`y` in `main`: is a Tensor",
        "`t` in `main`: is a Tensor",
        "`b` in `main`: is a Tensor",
        "`b` in `main`: takes a Tensor",
        "`c` in `main`: is a Tensor",
        "`c` in `main`: annotate_sharding is left",
    ]
    assert len(found) == len(expected)
    for line, beginning in zip(found, expected, strict=True):
        assert line.startswith(beginning)


def test_callee_that_is_placed_otherwise_than_its_call_shows():
    @I.ir_module
    class Other:
        I.module_global_infos(meshes((2,)))

        @R.function(private=True)
        def inner(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
        ) -> R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"):
            y = R.exp(x)
            return y

    mod = NotPropagated.clone()
    mod.update_func(mod.get_global_var("inner"), Other["inner"])
    mod.update_global_info("mesh", [*mod.global_infos["mesh"], *Other.global_infos["mesh"]])
    found = set(violations(mod, "propagated")) - set(violations(NotPropagated, "propagated"))
    assert {line.split(":")[0] for line in found} == {"`a` in `main`"}
    assert any("argument 0 of `inner` is placed differently" in line for line in found)
    assert any("differently from the result of `inner`" in line for line in found)


def test_verify_raises_one_error_with_all_lines():
    with pytest.raises(ValueError, match=r"not propagated:\n`y`(.|\n)*annotate_sharding is left"):
        verify(NotPropagated, "propagated")


@I.ir_module
class Partial:
    I.module_global_infos(meshes((2,)))

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
        w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
    ):
        a = R.matmul(x, w)
        b = R.exp(a)
        c = R.dist.redistribute(b, "mesh[0]", "S[0]")
        return (c, a)


def test_redistributions_and_partial_values_are_not_legalized():
    assert violations(Partial, "propagated") == []
    found = violations(Partial, "legalized")
    assert found == [
        "`c` in `main`: redistribute is left",
        "`a` in `main`: is partial and used without a reduction",
        "`a` in `main`: is partial and used without a reduction",
    ]
    assert violations(dx.transform.LegalizeRedistribute()(Partial), "legalized") == []


def test_reduction_that_is_missing_shows():
    legal = dx.transform.LegalizeRedistribute()(Partial)
    text = legal.script()
    line = next(each for each in text.splitlines() if "all_reduce" in each)
    reduced, partial = re.match(r"\s*(\w+):.* = R.dist.all_reduce\((\w+),", line).groups()
    sabotaged = re.sub(rf"\b{reduced}\b", partial, text.replace(line + "\n", ""))
    assert "all_reduce" not in sabotaged
    assert violations(tvm.script.from_source(sabotaged), "legalized")


@I.ir_module
class Deferred:
    I.module_global_infos(meshes((2, 2)))

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "R, S[1]"),
        w: R.DTensor((8, 8), "float32", "mesh[0]", "R, S[0]"),
        c: R.DTensor((8, 8), "float32", "mesh[0]", "R, R"),
    ):
        with R.dataflow():
            a = R.matmul(x, w)
            b = R.matmul(x, w)
            ab = R.add(a, b)
            scaled = R.multiply(ab, c)
            sliced = R.dist.slice(scaled, "mesh[0]", "S[0], R")
            whole = R.dist.all_reduce(
                sliced, "mesh[0]", "S[0], R", reduce_axes=[1], reduction="sum"
            )
            R.output(whole)
        return whole


def test_partial_values_may_pass_what_commutes_with_their_reduction():
    assert violations(Deferred, "legalized") == []


@pytest.mark.parametrize(
    ("good", "bad", "var"),
    [
        ("R.add(a, b)", "R.add(a, c)", "a"),  # c would be added once per device
        ("R.multiply(ab, c)", "R.multiply(ab, ab)", "ab"),
        ("R.multiply(ab, c)", "R.nn.relu(ab)", "ab"),
        ('reduction="sum"', 'reduction="max"', "sliced"),
        ("return whole", "return sliced", "sliced"),
        ("return whole", "return (whole, ab)", "ab"),
    ],
)
def test_partial_values_must_not_pass_what_does_not_commute(good, bad, var):
    text = Deferred.script(show_meta=True)
    assert good in text
    sabotaged = text.replace(good, bad).replace("R.output(whole)", "R.output(whole, sliced, ab)")
    found = violations(tvm.script.from_source(sabotaged), "legalized")
    assert f"`{var}` in `main`: is partial and used without a reduction" in found


def test_dtensors_and_their_operators_are_not_lowered():
    found = violations(Partial, "lowered")
    assert found[0].startswith("`x` in `main`: is a DTensor")
    assert any("relax.dist.redistribute is left" in line for line in found)
    assert violations(dx.transform.LowerDistIR()(Partial), "lowered") == []


def test_segment_exchange_is_not_lowered():
    @I.ir_module
    class Reversed:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.DTensor((8,), "float32", "mesh[0]", "S[0]")):
            y = R.dist.segment_exchange(
                x, "mesh[0]", "S[0]", dim=0, size=8, segments=[[7, 0, -1, 8]], fill="0"
            )
            return y

    assert violations(Reversed, "legalized") == []
    found = violations(Reversed, "lowered")
    assert any("relax.dist.segment_exchange is left" in line for line in found)
    assert violations(dx.transform.LowerDistIR()(Reversed), "lowered") == []


def test_mesh_that_is_no_global_info_shows():
    mod = Partial.clone()
    mod.update_global_info("mesh", [dx.Mesh((2,), ("a",)).device_mesh])
    assert all(
        "no entry of the module's global infos" in each for each in violations(mod, "propagated")
    )
    assert violations(mod, "propagated")


def test_result_that_is_typed_otherwise_than_its_operands_decide_shows():
    @I.ir_module
    class Stated:
        I.module_global_infos(meshes((2,)))

        @T.prim_func(private=True, s_tir=True)
        def double(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
            for i in T.serial(8):
                with T.sblock("double"):
                    at = T.axis.spatial(8, i)
                    y[at] = x[at] * T.float32(2)

        @R.function
        def main(x: R.DTensor((8,), "float32", "mesh[0]", "S[0]")):
            cls = Stated
            good = R.dist.call_tir(cls.double, (x,), R.DTensor((8,), "float32", "mesh[0]", "S[0]"))
            wrong = R.dist.call_tir(cls.double, (x,), R.DTensor((8,), "float32", "mesh[0]", "R"))
            return (good, wrong)

    (found,) = violations(Stated, "propagated")
    assert re.match(
        r'`wrong` in `main`: is typed as .*"R"\), but its operands give .*"S\[0\]"', found
    )


def test_modules_without_dtensors_are_in_every_phase():
    @I.ir_module
    class Plain:
        @R.function
        def main(x: R.Tensor((8,), "float32")):
            y = R.exp(x)
            return y

    for phase in PHASES:
        verify(Plain, phase)


def test_unknown_phase():
    with pytest.raises(ValueError, match=r"'optimised'.*propagated, legalized, lowered"):
        verify(Partial, "optimised")
