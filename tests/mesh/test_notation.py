"""Names of mesh axes stay with a module, and shardings are said in them."""

import pytest
import tvm
from tests.every_pass import PASSES
from tvm.relax.distributed import DeviceMesh, DTensorType
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx
from distir_ext.mesh.notation import Notation

MESH = dx.Mesh((2, 4), ("dp", "tp"))


@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((8, 16), "float32"), v: R.Tensor((4,), "float32")):
        with R.dataflow():
            y = R.nn.relu(x)
            u = R.reshape(v, (2, 2))
            R.output(y, u)
        return (y, u)


def named(mod):
    """By name of a parameter or variable of main how it is sharded."""
    main = mod["main"]
    bound = [binding.var for block in main.body.blocks for binding in block.bindings]
    return {
        var.name: dx.dims(mod, var)
        for var in [*main.params, *bound]
        if isinstance(var.ty, DTensorType)
    }


@pytest.fixture(scope="module")
def annotated():
    return dx.annotate(Module, MESH, {"x": ("dp", None), "v": ("tp",)})


@pytest.fixture(scope="module")
def propagated(annotated):
    return dx.transform.PropagateSharding()(annotated)


def test_what_was_annotated_comes_back(propagated):
    assert named(propagated)["x"] == ("dp", None)
    assert named(propagated)["y"] == ("dp", None)
    assert named(propagated)["v"] == ("tp",)


def test_a_part_of_an_axis_is_said_on_the_axis(propagated):
    # A view (2, 2, 2) of the mesh, which has no names of its own.
    assert named(propagated)["u"] == ("tp:(1)2", "tp:(2)2")
    assert len(propagated.global_infos["mesh"]) == 2


def test_names_survive_passes_and_printing(annotated):
    mod = annotated
    for transform in PASSES:
        mod = transform(mod)
        parsed = tvm.script.from_source(mod.script())
        for each in (mod, parsed, tvm.relax.transform.CanonicalizeBindings()(mod)):
            assert dx.meshes(each)[0] == MESH


def test_orders_that_only_a_transposed_mesh_has():
    @I.ir_module
    class Transposed:
        I.module_attrs({"distir.mesh_axes": {"mesh": [["dp", "tp"]]}})
        I.module_global_infos(
            {
                "mesh": [
                    R.device_mesh((2, 4), I.Range(0, 8)),
                    R.device_mesh((4, 2), [0, 4, 1, 5, 2, 6, 3, 7]),
                ]
            }
        )

        @R.function
        def main(x: R.DTensor((8, 16), "float32", "mesh[1]", "S[0], S[0]")):
            return x

    assert named(Transposed) == {"x": (("tp", "dp"), None)}
    assert [mesh.axis_names for mesh in dx.meshes(Transposed)] == [("dp", "tp"), ("x", "y")]


def test_another_view_with_names_of_its_own_is_said_in_these():
    line = dx.Mesh((8,), ("all",))
    mod = dx.annotate(Module, MESH, {"v": (None,), "x": (line, ("all", None))})
    assert named(dx.transform.PropagateSharding()(mod))["x"] in [
        ("all", None),
        (("dp", "tp"), None),
    ]
    placed = DTensorType(
        R.Tensor((8, 16), "float32").as_ty(),
        mod.global_infos["mesh"][0],
        line.placement("all", None),
    )
    assert dx.dims(mod, placed) == ("all", None)


def test_axes_without_names_are_letters():
    mesh = DeviceMesh((2, 2, 1, 1, 2), tvm.ir.Range(0, 8))
    mesh5 = dx.Mesh((2, 2, 1, 1, 2), ("a", "b", "c", "d", "e"))
    type_ = DTensorType(
        R.Tensor((8, 16), "float32").as_ty(), mesh, mesh5.placement(("a", "e"), "b")
    )
    assert Notation(None).text(type_) == "(('x', 'a4'), 'y')"


def test_text_names_the_mesh_where_there_are_several():
    other = dx.Mesh((2,), ("tp",), device_ids=(8, 9))
    mod = dx.annotate(Module, MESH, {"x": ("dp", None), "v": (other, ("tp",))})
    type_ = dx.transform.PropagateSharding()(mod)["main"].params[1].ty
    assert Notation(mod).text(type_) == "('tp',) on (tp=2) of devices 8..9"
    assert Notation(None).text(type_) == "('x',)"


def test_stages_have_the_names_of_their_mesh():
    mesh = dx.Mesh((2, 2), ("pp", "tp"))
    mod = dx.annotate(Module, mesh, {"x": (None, "tp")})
    mod = dx.transform.AssignStages(mesh, "pp")(mod)
    assert {each.axis_names for each in dx.meshes(mod)} == {("pp", "tp"), ("tp",)}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"mesh": [["dp"]]}, r"distir.mesh_axes has 1 name for mesh\[0\], a mesh of 2 axes"),
        ({"mesh": "dp"}, r"distir.mesh_axes is no map from keys of the global infos to lists"),
    ],
)
def test_names_that_do_not_fit_are_an_error(annotated, names, message):
    mod = annotated.with_attr("distir.mesh_axes", names)
    with pytest.raises(ValueError, match=message):
        dx.transform.PropagateSharding()(mod)


def test_only_dtensors_are_sharded(annotated):
    with pytest.raises(TypeError, match=r"only a DTensor is sharded; this is R.Tensor"):
        dx.dims(annotated, annotated["main"].params[0])


@pytest.mark.parametrize("wrong", [1.5, "dp", [["dp"]], {"mesh": 1}, {"mesh": [None]}], ids=str)
def test_names_that_are_none(annotated, wrong):
    with pytest.raises(ValueError, match=r"attribute distir.mesh_axes is .*; it must be"):
        dx.meshes(annotated.with_attr("distir.mesh_axes", wrong))
