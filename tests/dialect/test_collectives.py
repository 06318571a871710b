"""Type inference of collectives on DTensors: their target placements, and errors."""

import pytest
import tvm
from tvm import relax
from tvm.relax.distributed import DeviceMesh, DTensorType, Placement
from tvm.script.parser import relax as R

import distir_ext as dx

MESH = dx.Mesh((2, 4), ("x", "y")).device_mesh
TURNED = dx.Mesh((4, 2), ("y", "x"), device_ids=[0, 4, 1, 5, 2, 6, 3, 7]).device_mesh
OTHER = dx.Mesh((8,), ("z",), device_ids=range(8, 16)).device_mesh


def tensor(placement, mesh=MESH, shape=(16, 16)):
    ty = DTensorType(relax.TensorType(shape, "float32"), mesh, Placement.from_text(placement))
    return relax.Var("v", ty)


def infer(kind, value, placement, mesh=MESH, **attrs):
    call = getattr(R.dist, kind)(value, mesh, placement, **attrs)
    return relax.BlockBuilder().normalize(call).ty


@pytest.mark.parametrize(
    ("kind", "before", "after", "attrs"),
    [
        ("all_gather", "S[0], S[1]", "R, S[1]", {}),
        ("all_gather", "S[0], S[0]", "S[0], R", {}),
        ("slice", "R, S[1]", "S[0], S[1]", {}),
        ("slice", "S[0], R", "S[0], S[0]", {}),
        ("all_to_all", "S[0], R", "S[1], R", {}),
        ("all_to_all", "S[0], S[0]", "S[0], S[1]", {}),
        ("all_reduce", "S[0], R", "S[0], R", {"reduce_axes": [1], "reduction": "sum"}),
        ("reduce_scatter", "S[0], R", "S[0], S[1]", {"reduce_axes": [1], "reduction": "max"}),
        ("permute", "S[0], S[1]", "S[0], S[1]", {}),
        ("view", "S[0], S[1]", "S[0], S[1]", {}),
    ],
)
def test_result_is_the_target(kind, before, after, attrs):
    ty = infer(kind, tensor(before), after, **attrs)
    assert repr(ty.placement) == f'"{after}"'
    tvm.ir.assert_structural_equal(ty.tensor_ty, relax.TensorType((16, 16), "float32"))


def test_target_may_be_named_on_another_view_of_the_mesh():
    assert infer("view", tensor("S[0], S[1]"), "S[1], S[0]", TURNED).device_mesh == TURNED
    assert infer("slice", tensor("R, S[0]"), "S[0], S[0]", TURNED).device_mesh == TURNED


def test_transfer_leads_to_another_device_set():
    ty = infer("transfer", tensor("S[0], S[1]"), "S[1]", OTHER)
    assert ty.device_mesh == OTHER


NO_STEP = [
    # kind, before, after, attributes
    ("all_gather", "S[0], S[1]", "R, R", {}),  # two dimensions at once
    ("all_gather", "S[0], S[0]", "R, S[0]", {}),  # the major axis from under the minor one
    ("all_gather", "R, R", "S[0], R", {}),
    ("all_gather", "S[0], R", "S[0], R", {}),
    ("slice", "S[0], R", "R, R", {}),
    ("slice", "R, S[0]", "S[0], S[0]", {}),  # x would become the major axis
    ("all_to_all", "S[0], R", "R, R", {}),
    ("all_to_all", "S[0], S[0]", "S[1], S[0]", {}),  # moves the major axis
    ("all_to_all", "S[0], S[1]", "S[1], S[0]", {}),
    ("all_reduce", "S[0], R", "R, R", {"reduce_axes": [1], "reduction": "sum"}),
    ("all_reduce", "S[0], R", "S[0], R", {"reduce_axes": [0], "reduction": "sum"}),
    ("all_reduce", "S[0], R", "S[0], R", {}),  # over nothing
    ("reduce_scatter", "S[0], R", "S[0], S[1]", {"reduce_axes": [0], "reduction": "sum"}),
    ("reduce_scatter", "R, R", "S[0], S[1]", {"reduce_axes": [0, 1], "reduction": "sum"}),
    ("permute", "S[0], R", "R, S[0]", {}),  # 2 shards and 4
    ("view", "S[0], R", "S[1], R", {}),
]


@pytest.mark.parametrize(("kind", "before", "after", "attrs"), NO_STEP)
def test_wrong_step_is_one_error_with_both_shardings(kind, before, after, attrs):
    with pytest.raises(ValueError, match=rf"{kind}.* does not lead from sharding \(.*\) to \(.*\)"):
        infer(kind, tensor(before), after, **attrs)


def test_message_names_the_shardings():
    with pytest.raises(ValueError, match=r"all_gather .*\('x', None\) to \(None, 'x'\)"):
        infer("all_gather", tensor("S[0], R"), "S[1], R")


@pytest.mark.parametrize("kind", ["all_gather", "slice", "all_to_all", "permute", "view"])
def test_other_device_set_needs_a_transfer(kind):
    with pytest.raises(ValueError, match=r"stays on one device set, got .*S\[0\].* and .*S\[1\]"):
        infer(kind, tensor("S[0], R"), "S[1]", OTHER)


@pytest.mark.parametrize("kind", ["all_gather", "transfer"])
def test_placement_of_another_rank_or_mesh(kind):
    with pytest.raises(ValueError, match="2 dimensions"):
        infer(kind, tensor("S[0], S[1]"), "S[2], R")
    with pytest.raises(ValueError, match="1 entry"):
        infer(kind, tensor("S[0], S[1]"), "R")


def test_reduce_axis_that_the_mesh_has_not():
    with pytest.raises(ValueError, match="reduce axis 2 is no axis"):
        infer("all_reduce", tensor("R, R"), "R, R", reduce_axes=[2], reduction="sum")


def test_tensor_that_is_not_distributed():
    value = relax.Var("v", relax.TensorType((4, 4), "float32"))
    with pytest.raises(TypeError, match=r"R\.dist\.all_gather takes a DTensor"):
        infer("all_gather", value, "R, R")


GROUPS = [[0, 1], [2, 3]]
LOCAL = [
    ("all_gather", {"groups": GROUPS, "dim": 1}, (4, 12)),
    ("slice", {"groups": GROUPS, "dim": 0}, (2, 6)),
    ("all_to_all", {"groups": GROUPS, "split_dim": 0, "concat_dim": 1}, (2, 12)),
    ("all_reduce", {"groups": GROUPS, "reduction": "sum"}, (4, 6)),
    ("reduce_scatter", {"groups": GROUPS, "dim": 1, "reduction": "sum"}, (4, 3)),
]


@pytest.mark.parametrize(("kind", "attrs", "shape"), LOCAL)
def test_local_shapes(kind, attrs, shape):
    value = relax.Var("v", relax.TensorType((4, 6), "float32"))
    ty = relax.BlockBuilder().normalize(getattr(R.ccl, kind)(value, **attrs)).ty
    tvm.ir.assert_structural_equal(ty, relax.TensorType(shape, "float32"))


def test_local_shapes_that_are_symbolic():
    n = tvm.tirx.Var("n", "int64")
    value = relax.Var("v", relax.TensorType((n, 6), "float32"))
    gathered = R.ccl.all_gather(value, groups=GROUPS, dim=0)
    ty = relax.BlockBuilder().normalize(gathered).ty
    tvm.ir.assert_structural_equal(ty, relax.TensorType((n * 2, 6), "float32"))


@pytest.mark.parametrize(
    ("kind", "attrs", "message"),
    [
        ("all_gather", {"dim": 0}, "needs attribute groups"),
        ("all_gather", {"groups": GROUPS}, "needs attribute dim"),
        ("all_gather", {"groups": GROUPS, "dim": 2}, "dim=2 is no dimension"),
        ("all_to_all", {"groups": GROUPS, "split_dim": 0}, "needs attribute concat_dim"),
    ],
)
def test_local_collective_with_attributes_missing(kind, attrs, message):
    value = relax.Var("v", relax.TensorType((4, 6), "float32"))
    with pytest.raises(ValueError, match=message):
        relax.BlockBuilder().normalize(getattr(R.ccl, kind)(value, **attrs))


@pytest.mark.parametrize("kind", ["redistribute", "annotate_sharding"])
def test_mesh_objects_are_not_needed_twice(kind):
    # An equal mesh that is another object means the same devices.
    again = DeviceMesh((2, 4), tvm.ir.Range(0, 8))
    assert again == MESH
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((16, 16), "float32"))
    with builder.function("main", [x]):
        operator = getattr(relax.op.distributed, kind)
        first = builder.emit(
            relax.op.distributed.annotate_sharding(x, MESH, Placement.from_text("S[0], R"))
        )
        value = tensor_of(builder, operator, first, again)
        builder.emit_func_output(value)
    mod = builder.get()
    mod.update_global_info("mesh", [MESH])
    result = dx.transform.PropagateSharding()(mod)
    assert len(result.global_infos["mesh"]) == 1
    assert repr(result["main"].ret_ty.placement) == '"R, S[1]"'


def tensor_of(builder, operator, value, mesh):
    return builder.emit(operator(value, mesh, Placement.from_text("R, S[1]")))
