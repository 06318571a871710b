"""Bad programs: each is one exception that names the entity, and passes work on afterwards."""

# TVMScript has statements only.

import pytest
import tvm
from tests.meshes import meshes
from tvm import relax
from tvm.relax.distributed import DeviceMesh, DTensorType, Placement
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx


@I.ir_module
class Good:
    I.module_global_infos(meshes((2,)))

    @R.function
    def main(x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")):
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[1]")
        y = R.matmul(x0, w)
        return y


@pytest.fixture(autouse=True)
def process_stays_usable():
    yield
    text = dx.lower(Good).script()
    assert "R.ccl.all_reduce" in text
    tvm.ir.assert_structural_equal(tvm.script.from_source(text), dx.lower(Good))


def annotated(mesh, placement, shape=(8, 8), name="x"):
    """A function with one annotation that TVM's own checks let through."""
    builder = relax.BlockBuilder()
    x = relax.Var(name, relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        placed = builder.emit(
            relax.op.distributed.annotate_sharding(x, mesh, Placement.from_text(placement)), "y"
        )
        builder.emit_func_output(builder.emit(relax.op.exp(placed)))
    mod = builder.get()
    mod.update_global_info("mesh", [mesh])
    return mod


TWO = DeviceMesh((2,), tvm.ir.Range(0, 2))
FOUR = DeviceMesh((2, 2), tvm.ir.Range(0, 4))


@pytest.mark.parametrize(
    ("mesh", "placement", "shape", "message"),
    [
        (
            TWO,
            "S[0]",
            (1, 8),
            r"`y` in `main`: dimension 0 of size 1 has fewer elements than the 2 s",
        ),
        (FOUR, "S[1], S[1]", (8, 3), r"`y` in `main`: dimension 1 of size 3 .* than the 4 shards"),
        (TWO, "S[2]", (8, 8), r"`y` in `main`: placement .*S\[2\].* shards dimension 2 of a ten"),
        (TWO, "S[0], R", (8, 8), r"`y` in `main`: placement .* has 2 entries for a .* of 1 axis"),
        (FOUR, "S[0]", (8, 8), r"`y` in `main`: placement .* has 1 entry for a .* of 2 axes"),
        (TWO, "S[0]", (), r"`y` in `main`: placement .* shards dimension 0 of a tensor of 0"),
    ],
    ids=[
        "too many shards",
        "too many shards of two axes",
        "rank",
        "too long",
        "too short",
        "scalar",
    ],
)
def test_annotation_that_does_not_fit(mesh, placement, shape, message):
    with pytest.raises(ValueError, match=message):
        dx.transform.PropagateSharding()(annotated(mesh, placement, shape))


def test_dtensor_parameter_with_fewer_elements_than_shards():
    builder = relax.BlockBuilder()
    ty = DTensorType(relax.TensorType((1, 4), "float32"), TWO, Placement.from_text("S[0]"))
    x = relax.Var("tokens", ty)
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.exp(x)))
    mod = builder.get()
    mod.update_global_info("mesh", [TWO])
    with pytest.raises(ValueError, match=r"`tokens` in `main`: dimension 0 of size 1"):
        dx.transform.PropagateSharding()(mod)


def test_operator_that_cannot_be_padded_on_uneven_shards():
    @I.ir_module
    class Sorted:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.DTensor((7, 4), "float32", "mesh[0]", "S[0]")):
            y = R.sort(x, axis=0)
            return y

    message = r"`y` in `main`: relax.sort cannot be padded along dimension 0 of .*\(7, 4\)"
    with pytest.raises(ValueError, match=message):
        dx.transform.PadShards()(Sorted)


def test_local_function():
    @I.ir_module
    class Closure:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.Tensor((8, 8), "float32")):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")

            @R.function
            def inner(y: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
                z = R.exp(y)
                return z

            w = inner(x0)
            return w

    with pytest.raises(ValueError, match=r"local function `inner` in `main`.*LambdaLift"):
        dx.transform.PropagateSharding()(Closure)


def test_arguments_on_different_device_sets():
    def value(name, mesh):
        tensor = relax.TensorType((8, 8), "float32")
        return relax.Var(name, DTensorType(tensor, mesh, Placement.from_text("R")))

    x, y = value("x", TWO), value("y", DeviceMesh((2,), tvm.ir.Range(2, 4)))
    with pytest.raises(
        ValueError, match=r"arguments of .*relax.add.* lie on different device sets"
    ):
        relax.BlockBuilder().normalize(relax.op.add(x, y))


def test_branch_over_several_meshes():
    @I.ir_module
    class Spread:
        I.module_global_infos(meshes((2,), (2,)))

        @R.function
        def main(
            flag: R.Tensor((), "bool"),
            x: R.Tensor((8, 8), "float32"),
            y: R.Tensor((8, 8), "float32"),
        ):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            y1 = R.dist.annotate_sharding(y, "mesh[1]", "S[0]")
            if flag:
                a = R.exp(x0)
                b = R.exp(y1)
                pair = (a, b)
            else:
                pair = (x0, y1)
            return pair

    with pytest.raises(ValueError, match=r"`main`: the condition of `pair` lies on another mesh"):
        dx.lower(Spread)


def test_size_that_no_parameter_brings_to_a_mesh():
    @I.ir_module
    class Distinct:
        I.module_global_infos(meshes((2,), (2,)))

        @R.function
        def main(x: R.Tensor((8,), "float32")):
            m = T.int64()
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "R")
            u = R.unique(x0, sorted=True)
            y = R.match_cast(u, R.Tensor((m,), "float32"))
            y1 = R.dist.annotate_sharding(y, "mesh[1]", "R")
            z = R.exp(y1)
            return z

    with pytest.raises(ValueError, match=r"in `main`: symbolic dimension `m` is used on a mesh"):
        dx.lower(Distinct)


def test_function_on_several_meshes_that_lacks_a_size():
    @I.ir_module
    class Nested:
        I.module_global_infos(meshes((2,), (2,)))

        @R.function(private=True)
        def inner(x: R.Tensor(("n", 8), "float32")) -> R.Tensor(("n", 8), "float32"):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            x1 = R.dist.annotate_sharding(x0, "mesh[1]", "S[0]")
            y = R.exp(x1)
            return y

        @R.function
        def main(x: R.Tensor(("n", 8), "float32")):
            cls = Nested
            y = cls.inner(x)
            return y

    with pytest.raises(ValueError, match=r"`inner` spans several meshes.*`n`"):
        dx.lower(Nested)


def test_module_without_annotations():
    @I.ir_module
    class Plain:
        @R.function
        def main(x: R.Tensor((8,), "float32")):
            y = R.exp(x)
            return y

    with pytest.raises(ValueError, match="no sharding annotations"):
        dx.lower(Plain)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('y = R.dist.all_gather(x, "mesh[0]", "S[1]")', r"all_gather does not lead from sharding"),
        ('y = R.dist.slice(x, "mesh[0]", "R")', r"slice does not lead from sharding"),
        ('y = R.dist.all_reduce(x, "mesh[0]", "S[0]")', r"all_reduce does not lead from"),
        (
            'y = R.dist.all_reduce(x, "mesh[0]", "S[0]", reduce_axes=[0], reduction="mode")',
            r"does not lead|unknown|mode",
        ),
        ('y = R.dist.transfer(x, "mesh[0]", "S[3]")', r"dimension 3"),
        ('y = R.dist.all_gather(x, "mesh[7]", "R")', r"mesh\[7\]|index|range"),
        (
            'y = R.dist.segment_exchange(x, "mesh[0]", "S[1]", dim=0, size=8, '
            'segments=[[0, 0, 1, 8]], fill="0")',
            r"segment_exchange leaves all dimensions but 0 as they are",
        ),
        (
            'y = R.dist.segment_exchange(x, "mesh[0]", "S[0]", dim=0, size=8, '
            'segments=[[1, 0, 1, 8]], fill="0")',
            r"segment \[1, 0, 1, 8\] does not lead from a dimension of 8",
        ),
    ],
)
def test_text_that_misuses_a_collective(line, message):
    text = f"""
@I.ir_module
class Module:
    I.module_global_infos({{"mesh": [R.device_mesh((2,), I.Range(0, 2))]}})
    @R.function
    def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
        {line}
        return y
"""
    with pytest.raises(Exception, match=message):
        tvm.script.from_source(text)


def test_unknown_operator_is_replicated():
    @I.ir_module
    class Unknown:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.Tensor((8, 8), "float32")):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            y = R.call_pure_packed("test.unknown", x0, ty_args=R.Tensor((8, 8), "float32"))
            z = R.call_pure_packed("test.unknown", y, ty_args=R.Tensor((8, 8), "float32"))
            return z

    result = dx.transform.PropagateSharding()(Unknown)
    assert repr(result["main"].params[0].ty.placement) == '"S[0]"'
    assert repr(result["main"].ret_ty.placement) == '"R"'
