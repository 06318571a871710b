"""Open dimensions, priorities and replicated axes are stated, kept with the program, and said again
as the user wrote them."""

from __future__ import annotations

import copy
import pickle

import pytest
import tvm
from tests.annotate.constrained import MESH, round_trip
from tvm import relax

import distir_ext as dx
from distir_ext.annotate.annotations import Mark
from distir_ext.mesh.dims import dims_text
from distir_ext.mesh.notation import Notation
from distir_ext.structure.annotated_function import annotated_already

STATED = {
    "open behind an axis": ((("dp", ...), None), "(('dp', ...), None)"),
    "open": ((..., "tp"), "(..., 'tp')"),
    "open, axes in another order": ((("tp", "dp", ...), ...), "(('tp', 'dp', ...), ...)"),
    "a priority": ((dx.Dim("dp", priority=2), None), "(Dim('dp', priority=2), None)"),
    "open with a priority": (
        (None, dx.Dim("tp", open=True, priority=1)),
        "(None, Dim('tp', open=True, priority=1))",
    ),
    "the highest priority, which all have": ((dx.Dim("dp", priority=0), None), "('dp', None)"),
    "a replicated axis": (
        dx.TensorDims(("dp", ...), ..., replicated=("tp",)),
        "TensorDims(('dp', ...), ..., replicated=('tp',))",
    ),
    "a replicated axis of a mesh in another order": (
        dx.TensorDims(("tp", "ep", ...), ..., replicated="dp"),
        "TensorDims(('tp', 'ep', ...), ..., replicated=('dp',))",
    ),
}
MESHES = {"ep": dx.Mesh(dp=2, ep=2, tp=2)}


def program():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 8), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.exp(x), "y"))
    return builder.finalize()


def annotated(dims):
    mesh = MESHES["ep"] if "ep" in dims_text(dims) else MESH
    return dx.annotate(program(), mesh, {"x": dims})


def words_of(mod):
    call = next(iter(annotated_already(mod["main"]).values()))
    return dims_text(Mark.of(call).dims(Notation(mod), call.args[0].ty))


@pytest.mark.parametrize(("dims", "words"), STATED.values(), ids=STATED)
def test_stated_is_kept_and_said_as_it_was_written(dims, words):
    mod = annotated(dims)
    assert words_of(mod) == words
    round_trip(mod)
    for kept in (
        tvm.script.from_source(mod.script()),
        tvm.ir.load_json(tvm.ir.save_json(mod)),
        pickle.loads(pickle.dumps(mod)),
        copy.deepcopy(mod),
    ):
        tvm.ir.assert_structural_equal(kept, mod)
        assert words_of(kept) == words
    assert words in str(dx.summary(mod))
    with pytest.warns(UserWarning, match="annotated already, with the same sharding"):
        again = dx.annotate(mod, dx.meshes(mod)[0], {"x": dims})
    tvm.ir.assert_structural_equal(again, mod)


def test_what_is_closed_stands_in_the_program_as_before():
    text = annotated(("dp", dx.Dim("tp"))).script()
    assert 'annotate_sharding(x, device_mesh="mesh[0]", placement="S[0], S[1]")' in text


def test_on_top_of_another_annotation_both_are_said():
    with pytest.warns(UserWarning, match=r"annotated already, as \(\('dp', \.\.\.\), None\); it"):
        dx.annotate(annotated((("dp", ...), None)), MESH, {"x": ("dp", None)})


def test_every_way_to_annotate_takes_them():
    dims = (("dp", ...), dx.Dim("tp", priority=1))
    words = "(('dp', ...), Dim('tp', priority=1))"

    class Result(dx.ShardingMutator):
        def place(self, call):
            return {"out": (MESH, dims)} if self.callee(call) == "relax.exp" else None

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 8), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(dx.constrain(x, MESH, dims)))
    for mod in (
        Result()(program()),
        builder.finalize(),
        dx.transform.AnnotateSharding(MESH, {"y": dims})(program()),
    ):
        assert words_of(mod) == words


def test_tensor_dims_are_a_tuple():
    dims = dx.TensorDims(("dp", ...), None, replicated=["tp", "tp"])
    assert tuple(dims) == (("dp", ...), None)
    assert dims.replicated == ("tp",)
    assert dims != tuple(dims)
    assert dx.TensorDims("dp", None) == ("dp", None)
    assert hash(dx.TensorDims("dp", None)) == hash(("dp", None))
    for kept in (copy.copy(dims), pickle.loads(pickle.dumps(dims))):
        assert kept == dims
        assert hash(kept) == hash(dims)


def test_a_placement_has_axes_only():
    with pytest.raises(TypeError, match=r"tensor dimension 0 is \('dp', \.\.\.\): a placement has"):
        MESH.placement(("dp", ...), None)
    with pytest.raises(TypeError, match=r"tensor dimension 1 is Dim\(priority=1\): a placement"):
        MESH.placement(None, dx.Dim(priority=1))


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: dx.Dim(3), TypeError, "Dim takes names of mesh axes, not 3"),
        (lambda: dx.Dim("dp", priority=-1), ValueError, "is -1; the first one is 0"),
        (lambda: dx.Dim("dp", priority=1.5), TypeError, "is an integer, not 1.5"),
        (lambda: dx.TensorDims("dp", replicated=[0]), TypeError, "names of mesh axes, not 0"),
    ],
)
def test_what_states_nothing(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize(
    ("dims", "kind", "message"),
    [
        (((..., "dp"), None), ValueError, r"x: in \(\.\.\., 'dp'\) names stand behind `\.\.\.`"),
        ((("pd", ...), None), ValueError, "x dimension 0: the mesh has no axis 'pd'"),
        ((("dp", ...), "dp"), ValueError, "x dimension 1: axis 'dp' already shards this tensor"),
        (
            (("dp", ...),),
            ValueError,
            r"x has 2 dimensions, but .* \(\('dp', \.\.\.\),\) has 1 entry",
        ),
        (
            dx.TensorDims(..., ..., replicated="pt"),
            ValueError,
            "x, replicated: the mesh has no axis 'pt'",
        ),
        (
            dx.TensorDims(("tp", ...), ..., replicated="tp"),
            ValueError,
            "x is replicated over axis 'tp', which shards its dimension 0",
        ),
        ((("dp", 1, ...), None), TypeError, r"x: \('dp', 1, \.\.\.\) is neither the name"),
    ],
)
def test_what_can_not_be_stated_of_a_tensor(dims, kind, message):
    with pytest.raises(kind, match=f"parameter {message}"):
        dx.annotate(program(), MESH, {"x": dims})
