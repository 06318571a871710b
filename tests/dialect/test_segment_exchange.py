"""R.dist.segment_exchange, which moves slices between shards: types, errors, TVMScript."""

import pytest
import tvm
from tests.meshes import meshes
from tvm import relax
from tvm.relax.distributed import DTensorType, Placement
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

MESH = dx.Mesh((2, 4), ("x", "y")).device_mesh


def tensor(placement, shape=(8, 16)):
    ty = DTensorType(relax.TensorType(shape, "float32"), MESH, Placement.from_text(placement))
    return relax.Var("v", ty)


def infer(x, placement="S[0], S[1]", **attrs):
    attrs = {"dim": 1, "size": 24, "segments": [[0, 4, 1, 16]], "fill": "0", **attrs}
    attrs = {key: value for key, value in attrs.items() if value is not None}
    call = R.dist.segment_exchange(x, MESH, placement, **attrs)
    return relax.BlockBuilder().normalize(call).ty


BLOCKS = tensor("S[0], S[1]")


def test_changes_one_extent():
    tvm.ir.assert_structural_equal(infer(BLOCKS), tensor("S[0], S[1]", (8, 24)).ty)


def test_may_change_how_the_dimension_is_sharded():
    tvm.ir.assert_structural_equal(infer(BLOCKS, "S[0], R"), tensor("S[0], R", (8, 24)).ty)


@pytest.mark.parametrize(
    ("placement", "attrs", "message"),
    [
        ("S[1], S[0]", {}, "leaves all dimensions but 1 as they are"),
        ("R, S[1]", {}, "leaves all dimensions but 1 as they are"),
        ("S[0], S[1]", {"dim": 2}, "dim=2 is no dimension of"),
        ("S[0], S[1]", {"dim": None}, "needs attribute dim, an integer"),
        ("S[0], S[1]", {"size": None}, "needs attribute size, an integer"),
        ("S[0], S[1]", {"size": 16}, "does not lead from a dimension of 16 into one of 16"),
        ("S[0], S[1]", {"segments": None}, "needs attribute segments"),
        ("S[0], S[1]", {"segments": [[0, 0, 1]]}, "a segment is source, target, step, count"),
        ("S[0], S[1]", {"segments": [[0, 0, 1, 8], [8, 7, 1, 8]]}, "two segments give place 7"),
        ("S[0], S[1]", {"fill": "none"}, "needs attribute fill, the text of a number"),
    ],
)
def test_refuses(placement, attrs, message):
    with pytest.raises(ValueError, match=message):
        infer(BLOCKS, placement, **attrs)


def test_refuses_tensors():
    x = relax.Var("x", relax.TensorType((8, 16), "float32"))
    with pytest.raises(TypeError, match="takes a DTensor of known shape"):
        infer(x)


def test_text_parses_back_and_lowers():
    @I.ir_module
    class Halo:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.DTensor((3, 8), "float32", "mesh[0]", "S[1]")):
            y = R.dist.segment_exchange(
                x,
                "mesh[0]",
                "S[1]",
                dim=1,
                size=12,
                segments=[[0, 1, 1, 5], [3, 6, 1, 5]],
                fill="-inf",
            )
            return y

    tvm.ir.assert_structural_equal(tvm.script.from_source(Halo.script()), Halo)
    lowered = dx.transform.LowerDistIR()(dx.transform.LegalizeRedistribute()(Halo))
    tvm.ir.assert_structural_equal(tvm.script.from_source(lowered.script()), lowered)
    (found,) = dx.analysis.collectives(lowered)
    # One column of three rows to the neighbour.
    assert (found.kind, found.group_size, found.bytes_per_device) == ("segment_exchange", 2, 12)
    called = dx.transform.LowerCCL()(lowered)
    tvm.ir.assert_structural_equal(tvm.script.from_source(called.script()), called)
    assert "distir.runtime.segment_exchange" in called.script()
