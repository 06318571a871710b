"""A plan of patterns becomes annotations at the start of the function, and nothing else changes."""

from __future__ import annotations

import re

import pytest
import tvm
from tests.annotate.programs import Packed
from tests.meshes import meshes
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


@I.ir_module
class Perceptron:
    I.module_global_infos(meshes((2,)))

    @R.function(private=True)
    def double(x: R.Tensor(("n", 16), "float32")) -> R.Tensor(("n", 16), "float32"):
        with R.dataflow():
            y = R.add(x, x)
            R.output(y)
        return y

    @R.function
    def main(
        x: R.Tensor(("n", 8), "float32"),
        up: R.Tensor((8, 16), "float32"),
        down: R.Tensor((16, 8), "float32"),
        bias: R.Tensor((8,), "float32"),
    ) -> R.Tensor(("n", 8), "float32"):
        R.func_attr({"num_input": 1})
        cls = Perceptron
        with R.dataflow():
            h = R.matmul(x, up)
            a = cls.double(h)
            d = R.matmul(a, down)
            y = R.add(d, bias)
            R.output(y)
        return y


MESH = dx.Mesh((2, 2), ("dp", "tp"))
PLAN = {"x": ("dp", None), "up|gate": (None, "tp"), "do.*": ("tp", None)}


ANNOTATION = re.compile(
    r'annotate_sharding\((\w+), device_mesh="mesh\[(\d+)\]", placement="([^"]*)"\)'
)


def annotations(mod, func="main"):
    """(annotated variable, index of the mesh, placement) of every annotation, in order."""
    text = mod.script()
    # Python 3.12 and later: "def main[n](" where the function has symbolic variables.
    body = text[re.search(rf"def {func}\b", text).start() :]
    body = body.partition("@R.function")[0]
    return [(name, int(mesh), placement) for name, mesh, placement in ANNOTATION.findall(body)]


def assert_round_trip(mod):
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)


def test_result_is_the_same_as_written_by_hand():
    @I.ir_module
    class Expected:
        I.module_attrs({"distir.mesh_axes": {"mesh": [[], ["dp", "tp"]]}})
        I.module_global_infos(
            {"mesh": [R.device_mesh((2,), I.Range(0, 2)), R.device_mesh((2, 2), I.Range(0, 4))]}
        )

        @R.function(private=True)
        def double(x: R.Tensor(("n", 16), "float32")) -> R.Tensor(("n", 16), "float32"):
            with R.dataflow():
                y = R.add(x, x)
                R.output(y)
            return y

        @R.function
        def main(
            x: R.Tensor(("n", 8), "float32"),
            up: R.Tensor((8, 16), "float32"),
            down: R.Tensor((16, 8), "float32"),
            bias: R.Tensor((8,), "float32"),
        ) -> R.Tensor(("n", 8), "float32"):
            R.func_attr({"num_input": 1})
            cls = Expected
            x_1 = R.dist.annotate_sharding(x, device_mesh="mesh[1]", placement="S[0], R")
            up_1 = R.dist.annotate_sharding(up, device_mesh="mesh[1]", placement="R, S[1]")
            down_1 = R.dist.annotate_sharding(down, device_mesh="mesh[1]", placement="R, S[0]")
            with R.dataflow():
                h = R.matmul(x_1, up_1)
                a = cls.double(h)
                d = R.matmul(a, down_1)
                y = R.add(d, bias)
                R.output(y)
            return y

    before = Perceptron.script()
    result = dx.annotate(Perceptron, MESH, PLAN)
    tvm.ir.assert_structural_equal(result, Expected)
    assert relax.analysis.check_well_formed(result)
    assert_round_trip(result)
    assert Perceptron.script() == before


def test_pass_does_what_the_function_does():
    seq = tvm.transform.Sequential([dx.transform.AnnotateSharding(MESH, PLAN)])
    assert seq(Perceptron).script() == dx.annotate(Perceptron, MESH, PLAN).script()


def test_same_input_gives_the_same_text():
    texts = {dx.annotate(Perceptron, MESH, PLAN).script() for _ in range(3)}
    assert len(texts) == 1


def test_parameters_keep_names_types_and_order():
    result = dx.annotate(Perceptron, MESH, PLAN)["main"]
    assert [p.name for p in result.params] == ["x", "up", "down", "bias"]
    for new, old in zip(result.params, Perceptron["main"].params, strict=True):
        tvm.ir.assert_structural_equal(new.ty, old.ty, map_free_vars=True)
    assert int(result.attrs["num_input"]) == 1


def test_other_functions_are_the_same_objects():
    result = dx.annotate(Perceptron, MESH, PLAN)
    assert result["double"].same_as(Perceptron["double"])


def test_first_matching_pattern_decides():
    plan = {"up": (None, "tp"), "up|down": ("dp", None), ".*": None}
    result = dx.annotate(Perceptron, MESH, plan)
    assert [placement for _, _, placement in annotations(result)] == [
        "R, R",
        "R, S[1]",
        "S[0], R",
        "R, R",
    ]


def test_pattern_without_effect_warns():
    with pytest.warns(UserWarning, match=r"'x' has no effect.*'\.\*'"):
        dx.annotate(Perceptron, MESH, {".*": None, "x": ("dp", None)})


def test_pattern_matches_whole_names_only():
    result = dx.annotate(Perceptron, MESH, {".*o.*": None})
    assert [name for name, _, _ in annotations(result)] == ["down"]
    with pytest.raises(ValueError, match="'o' matches no parameter"):
        dx.annotate(Perceptron, MESH, {"o": None})


def test_tuple_of_axes_shards_one_dimension_over_both():
    result = dx.annotate(Perceptron, MESH, {"up": (("dp", "tp"), None)})
    assert [placement for _, _, placement in annotations(result)] == ["S[0], S[0]"]


def test_equal_mesh_is_reused_and_known_ones_stay():
    once = dx.annotate(Perceptron, MESH, {"x": ("dp", None)})
    twice = dx.annotate(once, dx.Mesh((2, 2), ("dp", "tp")), {"up": (None, "tp")})
    meshes = list(twice.global_infos["mesh"])
    assert [list(m.shape) for m in meshes] == [[2], [2, 2]]
    assert meshes[1].__chandle__() == once.global_infos["mesh"][1].__chandle__()
    assert_round_trip(twice)


def test_two_names_for_one_axis_are_an_error():
    once = dx.annotate(Perceptron, MESH, {"x": ("dp", None)})
    message = r"one mesh have two names: the module says \('dp', 'tp'\), .* says \('a', 'b'\)"
    with pytest.raises(ValueError, match=message):
        dx.annotate(once, dx.Mesh((2, 2), ("a", "b")), {"up": (None, "b")})


def test_mesh_written_as_a_range_is_reused():
    result = dx.annotate(Perceptron, dx.Mesh((2,), ("tp",)), {"up": (None, "tp")})
    assert len(result.global_infos["mesh"]) == 1
    assert_round_trip(result)


def test_a_pair_places_on_another_mesh():
    other = dx.Mesh((2,), ("stage",), device_ids=(4, 5))
    plan = {"x": ("dp", None), "down": (other, ("stage", None)), "bias": (other, None)}
    result = dx.annotate(Perceptron, MESH, plan)
    assert annotations(result) == [("x", 1, "S[0], R"), ("down", 2, "S[0]"), ("bias", 2, "R")]
    devices = [[int(i) for i in mesh.device_ids] for mesh in result.global_infos["mesh"]]
    assert devices == [[0, 1], [0, 1, 2, 3], [4, 5]]
    assert_round_trip(result)


def test_empty_plan_changes_nothing():
    assert dx.annotate(Perceptron, MESH, {}).same_as(Perceptron)


def test_any_function_can_be_named():
    result = dx.annotate(Perceptron, MESH, {"x": (None, "tp")}, func="double")
    assert len(annotations(result, "double")) == 1
    assert annotations(result) == []
    assert relax.analysis.check_well_formed(result)


def test_function_that_starts_with_a_plain_block():
    @I.ir_module
    class Plain:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            y = R.add(x, x)
            with R.dataflow():
                z = R.multiply(y, x)
                R.output(z)
            return z

    result = dx.annotate(Plain, MESH, {"x": ("dp", "tp")})
    assert relax.analysis.check_well_formed(result)
    assert_round_trip(result)


def test_function_without_bindings():
    @I.ir_module
    class Identity:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            return x

    result = dx.annotate(Identity, MESH, {"x": ("dp", "tp")})
    assert not result["main"].body.body.same_as(result["main"].params[0])
    assert_round_trip(result)


def test_fields_of_tuple_parameters_have_names():
    plan = {r"weights\.0": (None, "tp"), r"weights\.1\.1": ("tp", None), "x": ("dp", None)}
    result = dx.annotate(Packed, MESH, plan)
    assert [(name, p) for name, _, p in annotations(result)] == [
        ("x", "S[0], R"),
        ("weights_0", "R, S[1]"),
        ("weights_1_1", "R, S[0]"),
    ]
    assert relax.analysis.check_well_formed(result)
    assert_round_trip(result)


def test_other_parameters_of_a_matching_pattern_are_left_alone():
    result = dx.annotate(Packed, MESH, {".*": None})
    assert [name for name, _, _ in annotations(result)] == [
        "x",
        "weights_0",
        "weights_1_0",
        "weights_1_1",
    ]


def test_tensor_of_unknown_rank_can_be_replicated():
    @I.ir_module
    class Unknown:
        @R.function
        def main(x: R.Tensor(dtype="float32")) -> R.Tensor(dtype="float32"):
            y = R.nn.relu(x)
            return y

    assert [p for _, _, p in annotations(dx.annotate(Unknown, MESH, {"x": None}))] == ["R, R"]


def test_symbolic_dimension_is_not_checked_for_division():
    result = dx.annotate(Perceptron, MESH, {"x": (("dp", "tp"), None)})
    assert [p for _, _, p in annotations(result)] == ["S[0], S[0]"]
