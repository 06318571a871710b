"""Each bad plan or placement is one error that names the entity."""

from __future__ import annotations

import pytest
import tvm
from tests.meshes import meshes
from tvm.relax.distributed import DeviceMesh
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


@I.ir_module
class Linear:
    I.module_global_infos(meshes((4,)))

    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"),
        w1: R.Tensor((16, 10), "float32"),
        biases: R.Tuple(R.Tensor((3,), "float32"), R.Tensor((10,), "float32")),
        n: R.Shape(["m"]),
        d: R.DTensor((4, 4), "float32", "mesh[0]", "R"),
        u: R.Tensor(dtype="float32"),
    ) -> R.Tensor((8, 10), "float32"):
        with R.dataflow():
            y = R.matmul(x, w1)
            R.output(y)
        return y

    @R.function(private=True)
    def other(x: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        return x


MESH = dx.Mesh((2, 4), ("dp", "tp"))
WIDE = dx.Mesh((11,), ("tp",))

BAD_PLANS = [
    ({"q_proj": None}, r"'q_proj' matches no parameter of function main.*x, w1, biases\.0, .*u"),
    ({"biases": None}, r"'biases' matches no parameter .*biases\.0, biases\.1"),
    ({"w": (None, "tp")}, r"'w' matches no parameter .* must match a whole name"),
    ({"(": None}, r"pattern '\(' is not a regular expression"),
    ({"n": None}, r"pattern 'n' matches no tensor: parameter n has type R\.Shape"),
    ({"d": None}, r"parameter d has type R\.DTensor.*sharding already"),
    ({"u": (None,)}, r"parameter u has an unknown number of dimensions"),
    (
        {"w1": (None, "model")},
        r"parameter w1 dimension 1: the mesh has no axis 'model'; its axes are dp, tp",
    ),
    ({"x": ("dp", "dp")}, r"parameter x dimension 1: axis 'dp' already shards this tensor"),
    ({"x": (("tp", "tp"), None)}, r"parameter x dimension 0: axis 'tp' already shards this tensor"),
    ({"w1": ("tp",)}, r"parameter w1 has 2 dimensions, but .*\('tp',\) has 1 entry"),
    ({r"biases\.1": ("dp", None)}, r"parameter biases\.1 has 1 dimension, but .* has 2 entries"),
    (
        {r"biases\.0": ("tp",)},
        r"parameter biases\.0 dimension 0 of size 3 has fewer elements than the 4 shards of mesh "
        r"axis 'tp'",
    ),
    (
        {r"biases\.0": (("dp", "tp"),)},
        r"parameter biases\.0 dimension 0 of size 3 .* the 8 shards of mesh axis 'dp', 'tp'",
    ),
]


@pytest.mark.parametrize(("plan", "message"), BAD_PLANS)
def test_bad_plan_is_a_value_error(plan, message):
    with pytest.raises(ValueError, match=message):
        dx.annotate(Linear, MESH, plan)


@pytest.mark.parametrize(("plan", "message"), BAD_PLANS)
def test_pass_raises_the_same(plan, message):
    with pytest.raises(ValueError, match=message):
        tvm.transform.Sequential([dx.transform.AnnotateSharding(MESH, plan)])(Linear)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"w1": "tp"}, r"parameter w1: dims are 'tp', not a tuple"),
        ({"w1": (None, 1)}, r"parameter w1: 1 is neither the name of a mesh axis"),
        ({"w1": (None, ("tp", 1))}, r"parameter w1: \('tp', 1\) is neither"),
        ({"w1": 3}, r"parameter w1: dims are 3, not a tuple"),
        ([("w1", None)], r"the plan is a list, not a mapping"),
    ],
)
def test_wrong_type_in_a_plan_is_a_type_error(plan, message):
    with pytest.raises(TypeError, match=message):
        dx.annotate(Linear, MESH, plan)


def test_wrong_mesh_type():
    with pytest.raises(TypeError, match="the mesh to annotate with is of type tuple"):
        dx.annotate(Linear, (2, 4), {"x": None})


def test_unknown_function_lists_those_that_exist():
    with pytest.raises(ValueError, match="no Relax function named 'forward'; it has main, other"):
        dx.annotate(Linear, MESH, {"x": None}, func="forward")


def test_long_list_of_parameters_is_shortened():
    builder = tvm.relax.BlockBuilder()
    params = [tvm.relax.Var(f"w{i}", tvm.relax.TensorType([4], "float32")) for i in range(100)]
    with builder.function("main", params):
        builder.emit_func_output(params[0])
    with pytest.raises(ValueError, match=r"w0, w1, .* and 88 more") as caught:
        dx.annotate(builder.get(), MESH, {"v": None})
    assert len(str(caught.value)) < 300


def test_nothing_changes_on_failure():
    before = Linear.script()
    with pytest.raises(ValueError, match="w1"):
        dx.annotate(Linear, MESH, {"x": ("dp", None), "w1": (None, "model")})
    assert Linear.script() == before


class PlaceMatmul(dx.ShardingMutator):
    """Returns whatever it was given for every matmul."""

    def __init__(self, places, mod=None):
        super().__init__(mod)
        self.places = places

    def place(self, call):
        return self.places


@pytest.mark.parametrize(
    ("error", "places", "message"),
    [
        (ValueError, {2: (MESH, None)}, r"argument 2 of a call to relax\.matmul in main .* 0 to 1"),
        (ValueError, {(0, 1): (MESH, None)}, r"argument 0\.1 of a call to relax\.matmul in main"),
        (ValueError, {0: (MESH, ("tp",))}, r"argument 0 of a call to relax\.matmul in main has 2"),
        (ValueError, {1: (WIDE, (None, "tp"))}, r"argument 1 .* size 10 has fewer .* 11 shards"),
        (
            ValueError,
            {"out": (MESH, ("x", None))},
            r"result of a call to relax\.matmul in main .*x",
        ),
        (ValueError, {0: (DeviceMesh([2, 2], [0, 1, 2, 3]), "R")}, r"1 entry for a mesh with 2"),
        (TypeError, {0: (DeviceMesh([2], [0, 1]), "nonsense")}, r"dims are 'nonsense', not"),
        (ValueError, {0: (DeviceMesh([2], [0, 1]), "S[2]")}, r"S\[2\]. shards dimension 2 of a"),
        (TypeError, {0: MESH}, r"is not a pair of a mesh and dims"),
        (TypeError, {0: ("mesh[0]", None)}, r"in main: the mesh is of type str"),
        (TypeError, {"in": (MESH, None)}, r"returned the key 'in' for a call to relax\.matmul"),
        (TypeError, [(MESH, None)], r"returned a list for a call to relax\.matmul"),
    ],
)
def test_bad_answer_of_place(error, places, message):
    with pytest.raises(error, match=message):
        PlaceMatmul(places)(Linear)


def test_mutator_stays_usable_after_a_failure():
    mutator = PlaceMatmul({7: (MESH, None)})
    with pytest.raises(ValueError, match="argument 7"):
        mutator(Linear)
    mutator.places = {0: (MESH, ("dp", None))}
    assert "annotate_sharding(x" in mutator(Linear).script()


def test_run_without_a_module():
    with pytest.raises(ValueError, match="constructed without a module"):
        PlaceMatmul(None).run()


def test_mutator_on_unknown_function():
    with pytest.raises(ValueError, match="no Relax function named 'forward'"):
        PlaceMatmul(None, Linear).run("forward")


def test_subclass_without_place():
    class Nothing(dx.ShardingMutator):
        pass

    with pytest.raises(NotImplementedError, match="Nothing does not define place"):
        Nothing()(Linear)
