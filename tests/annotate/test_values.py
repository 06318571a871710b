"""Plans that name results, variables and inputs; warnings for values annotated twice."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from tests.annotate.values import MESH, Branches, Pair, bound, check
from tests.meshes import meshes
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx


def operands():
    rng = np.random.default_rng(0)
    return (rng.standard_normal(shape).astype("float32") for shape in [(6, 8), (8, 12)])


def test_result_is_returned_as_annotated():
    mod = dx.transform.PropagateSharding()(
        dx.annotate(Pair, MESH, {"x": ("dp", None), "return": (None, ("tp", "dp"))})
    )
    type_ = mod["main"].ret_ty
    assert str(type_.placement) == '"S[1], S[1]"'
    assert [int(i) for i in type_.device_mesh.device_ids] == [0, 3, 1, 4, 2, 5]


def test_pattern_for_all_fields_of_the_result():
    mod = dx.annotate(Branches, MESH, {r"return\..*": ("dp", None)})
    assert bound(mod) == {"result_0": "S[0], R", "result_1": "S[0], R"}


def test_patterns_are_for_parameters_before_variables():
    assert set(bound(dx.annotate(Branches, MESH, {".": None, "h": None}))) == {
        "x_1",
        "w_1",
        "c_1",
        "h",
    }


def test_a_match_cast_is_annotated_behind_it():
    @I.ir_module
    class Cast:
        @R.function
        def main(x: R.Tensor(dtype="float32", ndim=2)) -> R.Tensor(dtype="float32", ndim=2):
            n = T.int64()
            y = R.match_cast(x, R.Tensor((n, 6), "float32"))
            z = R.add(y, y)
            return z

    mod = dx.annotate(Cast, MESH, {"y": (None, "tp")})
    check(mod)
    assert bound(mod) == {"y": "R, S[1]"}
    assert "y_computed: R.Tensor((n, 6)" in mod.script()


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            {"hh": None},
            r"'hh' matches no parameter .*no variable has this name.*did you mean 'h'\?",
        ),
        ({"return.2": None}, r"'return.2' matches no parameter .*did you mean 'return"),
        ({"return": None}, r"'return' matches no parameter"),
        ({"h": ("dp",)}, r"variable h has 2 dimensions, but .*\('dp',\) has 1 entry"),
        ({"return.1": ("dp", "dp")}, r"result 1 dimension 1: axis 'dp' already shards"),
        ({"h": (("tp", "dp", "tp"), None)}, r"variable h dimension 0: axis 'tp' already shards"),
    ],
)
def test_bad_name_or_dims_of_a_variable(plan, message):
    with pytest.raises(ValueError, match=message):
        dx.annotate(Branches, MESH, plan)


def test_name_of_several_variables():
    @I.ir_module
    class Shadowed:
        @R.function
        def main(x: R.Tensor((6, 6), "float32")) -> R.Tensor((6, 6), "float32"):
            a = R.add(x, x)
            a = R.multiply(a, a)
            return a

    with pytest.raises(ValueError, match="'a' is the name of 2 variables of function main"):
        dx.annotate(Shadowed, MESH, {"a": None})


def test_annotating_twice_warns():
    once = dx.annotate(Branches, MESH, {"x": ("dp", None), "h": ("dp", None), "return.1": None})
    with pytest.warns(UserWarning, match="parameter x of main is annotated already, with the same"):
        assert dx.annotate(once, MESH, {"x": ("dp", None)}).same_as(once)
    with pytest.warns(UserWarning, match=r"variable h .*, as \('dp', None\); it gets both") as seen:
        twice = dx.annotate(once, MESH, {"h": (None, "tp")})
    assert seen[0].filename == __file__
    check(twice)
    with pytest.warns(UserWarning, match="result 1 of main is annotated already"):
        dx.annotate(once, MESH, {"return.1": ("dp", None)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dx.annotate(once, MESH, {"w": (None, "tp"), "g": None, "return.0": None})


def test_annotating_what_was_annotated_by_hand_warns():
    with pytest.warns(UserWarning, match="parameter x of main is annotated already"):
        dx.annotate(Constrained, MESH, {"x": (None, "tp")})


@I.ir_module
class Constrained:
    I.module_global_infos(meshes((2, 3)))

    @R.function
    def main(x: R.Tensor((6, 6), "float32")) -> R.Tensor((6, 6), "float32"):
        y = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0], R")
        return y


def test_inputs_are_stated_by_name():
    mod = dx.annotate(Branches, MESH, {"w": (None, "tp")}, inputs=["x"])
    assert int(mod["main"].attrs["num_input"]) == 1
    again = dx.annotate(mod, MESH, {}, inputs=["w", "x"])
    assert int(again["main"].attrs["num_input"]) == 2
    assert "num_input" not in (Branches["main"].attrs or {})
    as_pass = dx.transform.AnnotateSharding(MESH, {"w": (None, "tp")}, inputs=["x"])
    assert as_pass(Branches).script() == mod.script()


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (["y"], ValueError, r"input 'y' is no parameter of function main, which has x, w, c"),
        (["ww"], ValueError, r"did you mean 'w'\?"),
        (["w"], ValueError, r"in main\(x, w, c\) 'x' comes before 'w'"),
        (["x", "c"], ValueError, r"in main\(x, w, c\) 'w' comes before 'c'"),
        ("x", TypeError, r"inputs are 'x', not a list of names"),
    ],
)
def test_bad_inputs(inputs, error, message):
    with pytest.raises(error, match=message):
        dx.annotate(Branches, MESH, {}, inputs=inputs)
