"""AssignStages: where functions are cut, and that cut functions compute the same."""

import pytest
import tvm
from tests.stages.programs import PP_TP, Layers, chain, programs, staged
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


def weights_of_stages(mod):
    return [[name for name in each["params"] if name != "x"] for each in programs(mod)]


def test_stages_are_balanced():
    mesh = dx.Mesh((2,), ("pp",))
    assert weights_of_stages(staged(chain([8] * 5), mesh, "pp")) == [["w0", "w1"], ["w2", "w3"]]
    heavy_first = chain([64, 64, 8, 8, 8, 8])
    assert weights_of_stages(staged(heavy_first, mesh, "pp"))[0] == ["w0"]


def test_of_balanced_cuts_the_one_with_least_transfers():
    # Each product takes the same time; the values between them are wide and narrow in turn.
    mesh = dx.Mesh((2,), ("pp",))
    mod = chain([4096, 64, 4096, 64, 4096, 64, 4096], rows=16)
    assert weights_of_stages(staged(mod, mesh, "pp", slack=0)) == [
        ["w0", "w1", "w2"],
        ["w3", "w4", "w5"],
    ]
    even = chain([64, 4096, 64, 4096, 64], rows=512)
    assert weights_of_stages(staged(even, mesh, "pp", slack=0.0)) == [["w0", "w1"], ["w2", "w3"]]
    # In the middle the value is wide; with slack, a narrow one is sent instead.
    odd = chain([64, 4096, 64, 4096, 64, 4096, 64], rows=512)
    assert weights_of_stages(staged(odd, mesh, "pp", slack=0.0))[0] == ["w0", "w1", "w2"]
    assert len(weights_of_stages(staged(odd, mesh, "pp", slack=0.4))[0]) in (2, 4)


def test_the_text_of_a_cut_program_parses_back():
    mod = staged(dx.annotate(chain([8, 16, 8]), PP_TP, {"w0": (None, "tp")}), PP_TP, "pp")
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)


@pytest.mark.parametrize(
    "mesh", [dx.Mesh(pp=2, tp=2, dp=2), dx.Mesh(tp=2, pp=2, dp=2)], ids=["first", "between"]
)
def test_terms_of_annotations_are_kept(mesh):
    dims = {
        "w0": (None, ("tp", ...)),
        "w1": dx.TensorDims(("dp", "tp", ...), None, replicated="pp"),
        "x": dx.TensorDims(dx.Dim("tp", priority=1), ..., replicated=("dp",)),
    }
    mod = staged(dx.annotate(chain([8, 16, 8]), mesh, dims), mesh, "pp")
    text = mod.script()
    assert "open=[1]" in text
    assert "open=[0]" in text
    assert "priorities=[1, 0], replicated=[1]" in text  # dp is the second axis of a stage
    assert text.count("replicated=") == 1  # a stage has no axis pp


def test_an_empty_function_can_not_be_cut():
    @I.ir_module
    class Nothing:
        @R.function
        def main(x: R.Tensor((4,), "float32")):
            return x

    with pytest.raises(ValueError, match=r"`main` has 0 operators.*2 stages"):
        staged(Nothing, dx.Mesh((2,), ("pp",)), "pp")


def test_more_stages_than_operators():
    with pytest.raises(ValueError, match=r"`main` has 4 operators.*5 stages"):
        staged(chain([8, 8, 8]), dx.Mesh((5,), ("pp",)), "pp")
    assert len(programs(staged(chain([8, 8, 8]), dx.Mesh((4,), ("pp",)), "pp"))) == 4


def test_annotations_that_have_no_place_on_stages():
    along = dx.annotate(chain([8, 8, 8]), PP_TP, {"w0": ("pp", None)})
    with pytest.raises(ValueError, match=r"is sharded over the axis 'pp'.*axis of the stages"):
        staged(along, PP_TP, "pp")
    other = dx.annotate(chain([8, 8, 8]), dx.Mesh((4,), ("all",)), {"w0": ("all", None)})
    with pytest.raises(ValueError, match="neither the mesh that is cut into stages"):
        staged(other, PP_TP, "pp")
    propagated = dx.transform.PropagateSharding()(
        dx.annotate(chain([8, 8, 8]), PP_TP, {"w0": (None, "tp")})
    )
    with pytest.raises(ValueError, match="assign stages before PropagateSharding"):
        staged(propagated, PP_TP, "pp")


def test_functions_that_can_not_be_cut():
    with pytest.raises(ValueError, match='no Relax function "other"; it has "main"'):
        staged(chain([8, 8, 8]), PP_TP, "pp", func="other")
    with pytest.raises(ValueError, match="`layer` is called by `main`"):
        staged(Layers, PP_TP, "pp", func="layer")


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((PP_TP, "dp"), {}, "no mesh axis 'dp'; the axes are 'pp', 'tp'"),
        ((PP_TP,), {}, "state axis="),
        (([PP_TP], "pp"), {}, "not for a mesh per stage"),
        (([],), {}, "there are no stages"),
        (([PP_TP, dx.Mesh((2,), ("tp",))],), {}, "they must be the same"),
        ((PP_TP, "pp"), {"slack": -1}, "slack is -1"),
        ((PP_TP, "pp"), {"operations": 0}, "operations is 0"),
    ],
)
def test_requests_that_make_no_sense(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        dx.transform.AssignStages(*arguments, **options)
    with pytest.raises(TypeError, match="mesh 0 of stages is of type int"):
        dx.transform.AssignStages([3])
